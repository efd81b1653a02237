"""Scores of an auditor of jax-privacy.

`CanaryScoreAuditor(in_canary_scores, out_canary_scores)` takes two arrays [n1]
and [n0]; a higher score says "in". It has no file format, and does not say how
canaries were included, although its `epsilon_one_run` holds only for fair coins.

References: jax_privacy 2.0.0, `auditing.py` (CanaryScoreAuditor).
"""

from typing import Any, Unpack

from epe_jax.epsilon.types import Scores
from epe_jax.scores.formats import base


def from_canary_score_auditor(
  auditor: Any,
  **settings: Unpack[base.Settings],
) -> Scores:
  """Scores that an auditor of jax-privacy was given.

  Args:
    auditor: a `jax_privacy.auditing.CanaryScoreAuditor`, or the pair of arrays
      (in_canary_scores, out_canary_scores) that it takes.
    **settings: as in `base.Settings`. `epsilon_one_run` of the auditor needs
      design 'coin_flip'; the auditor does not know.

  Raises:
    ValueError: it is neither, or these are no scores.

  >>> scores = from_canary_score_auditor(([2.0, 3.0], [0.0, 1.0]))
  >>> scores.observed.tolist(), scores.unobserved.tolist()
  ([2.0, 3.0], [0.0, 1.0])
  """
  observed, unobserved = base.take_pair(
    'auditor',
    auditor,
    ('_in_canary_scores', '_out_canary_scores'),
    cure='Give a CanaryScoreAuditor of jax_privacy 2, or the pair '
    '(in_canary_scores, out_canary_scores).',
  )
  return base.make_scores('auditor', observed, unobserved, **settings)
