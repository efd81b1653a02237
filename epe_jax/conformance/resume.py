"""Rule `resume`: a run that goes on from a checkpoint has fresh noise."""

from __future__ import annotations

import numpy as np

from epe_jax.conformance import laws
from epe_jax.conformance.findings import ALPHA, Result, break_rule, hold
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.session import NotChecked

_REPEATS = 4


def check_resume(m: Measurements) -> Result:
  """Rule: a round that is run again with other data has other noise."""
  if (m.claim.max_rounds or 2) < 2:
    raise NotChecked('it needs two rounds')
  m.check_quiet()
  zeros = m.cohort(m.zero)
  # Other data in one coordinate; noise is compared in all others.
  data = np.zeros(m.claim.dim)
  data[0] = 1 - 1e-6
  other = m.cohort(data)
  differences = []
  for _ in range(_REPEATS):
    run, resumed = m.session.start(m.claim), m.session.start(m.claim)
    if not all(hasattr(run.mechanism, x) for x in ('save', 'restore')):
      raise NotChecked('the mechanism has no save() and restore(state)')
    run.release(zeros)
    try:
      state = run.mechanism.save()  # pyright: ignore[reportAttributeAccessIssue]
      resumed.mechanism.restore(state)  # pyright: ignore[reportAttributeAccessIssue]
    except Exception as error:
      raise NotChecked(f'save or restore raised {error!r}') from error
    clip_norms = run.public_clip_norm, resumed.public_clip_norm
    if clip_norms[0] != clip_norms[1]:
      raise NotChecked(
        f'a run with clip norm {clip_norms[0]} resumes with another'
      )
    differences.append(
      m.layout.keep(run.release(zeros) - resumed.release(other))
    )
  rest = np.stack(differences)[:, 1:]
  std = float(np.sqrt(np.mean(rest**2)) / np.sqrt(2))
  usual = m.noise.common_std
  measured = (
    f'releases of a round and of its repetition after restore differ by noise of '
    f'{std / usual if usual else 0:.3g} × the usual'
  )
  # Far below what any fresh noise would give; rounds after the first may well have
  # less new noise than the first.
  p = laws.p_of_mu(1 / std if std else np.inf, 50 / usual, num=rest.size)
  if p >= ALPHA:
    return hold('resume', measured, p)
  return break_rule(
    'resume',
    'noise_replayed_after_restore',
    measured,
    likely=(
      'the state of the generator is in the checkpoint, or noise depends on seed '
      'and round alone: a round that is run again with other clients has the same '
      'noise, and the difference of the two releases has none'
    ),
    cure=(
      'Mix fresh randomness of the operating system into the key at every start, or '
      'make sure that a round is repeated with the same clients and data.'
    ),
    mu=np.inf,
    p_value=p,
  )
