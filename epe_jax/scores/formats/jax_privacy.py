"""Scores of an auditor of jax-privacy.

`CanaryScoreAuditor(in_canary_scores, out_canary_scores)` takes two arrays [n1]
and [n0], of which a higher score says "in". It has no file of its own, and does
not say how canaries were included, although its `epsilon_one_run` holds for
fair coins alone.

Source: jax_privacy 2.0.0, `auditing.py` (CanaryScoreAuditor).
"""

from typing import Any

from epe_jax.epsilon.types import Scores
from epe_jax.scores.formats import groups

_GROUPS = ('_in_canary_scores', '_out_canary_scores')


def from_canary_score_auditor(
  auditor: Any,
  *,
  higher: groups.Higher = 'in',
  design: groups.Design = 'fixed',
  inclusion_probability: float = 0.5,
) -> Scores:
  """Scores that an auditor of jax-privacy was given.

  Args:
    auditor: a `jax_privacy.auditing.CanaryScoreAuditor`, or the pair of arrays
      (in_canary_scores, out_canary_scores) that it takes.
    higher: who scores higher.
    design: 'coin_flip' if a coin of its own decided of each canary, as
      `epsilon_one_run` needs it; the auditor does not know.
    inclusion_probability: of these coins, in (0, 1).

  Raises:
    ValueError: it is neither, or these are no scores.

  >>> scores = from_canary_score_auditor(([2.0, 3.0], [0.0, 1.0]))
  >>> scores.observed.tolist(), scores.unobserved.tolist()
  ([2.0, 3.0], [0.0, 1.0])
  """
  if all(hasattr(auditor, name) for name in _GROUPS):
    observed, unobserved = (getattr(auditor, name) for name in _GROUPS)
  elif isinstance(auditor, tuple | list) and len(auditor) == 2:
    observed, unobserved = auditor
  else:
    raise ValueError(
      f'auditor is a {type(auditor).__name__}. Give a CanaryScoreAuditor of '
      'jax_privacy 2, or the pair (in_canary_scores, out_canary_scores).'
    )
  return groups.make_scores(
    'auditor',
    observed,
    unobserved,
    higher=higher,
    design=design,
    inclusion_probability=inclusion_probability,
  )
