"""Scores of other privacy-auditing tools, read into `epsilon.Scores`.

One module for each tool says what its files or objects hold, which canaries
score higher in them, and how canaries were included. Whatever the tool, what is
read says "took part" by a higher score.
"""

from epe_jax.scores.formats.base import (
  find_reversed,
  make_scores,
  split_by_label,
)
from epe_jax.scores.formats.jax_privacy import from_canary_score_auditor
from epe_jax.scores.formats.lira import from_lira, read_lira
from epe_jax.scores.formats.privacy_estimates import (
  Counts,
  bound_counts,
  from_attack_results,
  read_counts,
)
from epe_jax.scores.formats.privacy_guard import from_privacy_guard
from epe_jax.scores.formats.privacy_meter import read_privacy_meter, read_rmia

__all__ = [
  'Counts',
  'bound_counts',
  'from_attack_results',
  'from_canary_score_auditor',
  'from_lira',
  'from_privacy_guard',
  'make_scores',
  'read_counts',
  'read_lira',
  'read_privacy_meter',
  'read_rmia',
  'split_by_label',
  'find_reversed',
]
