"""Scores of other privacy-auditing tools, read into `epsilon.Scores`.

One module for each tool says what its files hold, which canaries score higher in
them, and how canaries were included. Whatever the tool, what is read says "took part"
by a higher score.
"""

from epe_jax.scores.formats.base import (
  find_reversed,
  make_scores,
  split_by_label,
)
from epe_jax.scores.formats.privacy_estimates import (
  Counts,
  bound_counts,
  from_attack_results,
  read_counts,
)
from epe_jax.scores.formats.privacy_meter import read_privacy_meter, read_rmia

__all__ = [
  'Counts',
  'bound_counts',
  'from_attack_results',
  'make_scores',
  'read_counts',
  'read_privacy_meter',
  'read_rmia',
  'split_by_label',
  'find_reversed',
]
