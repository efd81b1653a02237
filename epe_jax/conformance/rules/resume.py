"""Rule `resume`: a run that is restored from a checkpoint has fresh noise."""

from __future__ import annotations

import math

import numpy as np

from epe_jax.conformance import laws
from epe_jax.conformance.laws import ALPHA
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.rule import Cause, Outcome, rule
from epe_jax.conformance.session import NotChecked

_REPEATS = 4
_REPLAYED = Cause(
  'noise_replayed_after_restore',
  'the state of the generator is in the checkpoint, or noise depends on seed '
  'and round alone: a round that is run again with other clients has the same '
  'noise, and the difference of the two releases has none',
  'Mix fresh randomness of the operating system into the key at every start, or '
  'make sure that a round is repeated with the same clients and data.',
)
_SEEDED = Cause(
  'seeded_at_restore',
  'restoring seeds the generator by a constant, or by the seed of the run',
  'Seed from the operating system at every start.',
)


@rule
def resume(m: Measurements) -> Outcome:
  """A round that is run again with other data has other noise."""
  if (m.claim.max_rounds or 2) < 2:
    raise NotChecked('it needs two rounds')
  m.check_quiet()
  zeros = m.cohort(m.zero)
  # Other data in one coordinate, which are subtracted as they are without noise.
  other = m.cohort(m.in_coordinate(0))
  expected = m.influence(other, zeros)
  differences, after = [], []
  # Noise of few coordinates on a grid repeats by chance, but not so often.
  for _ in range(max(_REPEATS, 64 // m.claim.dim)):
    run, resumed = m.session.start(m.claim), m.session.start(m.claim)
    if not all(hasattr(run.mechanism, x) for x in ('save', 'restore')):
      raise NotChecked('the mechanism has no save() and restore(state)')
    first = run.release(zeros)
    with m.session.call('save or restore'):
      state = run.mechanism.save()  # pyright: ignore[reportAttributeAccessIssue]
      resumed.mechanism.restore(state)  # pyright: ignore[reportAttributeAccessIssue]
    clip_norm = run.public_clip_norm
    if clip_norm != resumed.public_clip_norm:
      raise NotChecked(f'a run with clip norm {clip_norm} resumes with another')
    again = resumed.release(other) - expected
    differences.append(m.layout.keep(run.release(zeros) - again))
    after.append((m.layout.keep(again), m.layout.keep(first)))
  rest = np.stack(differences)
  std = float(np.sqrt(np.mean(rest**2)) / np.sqrt(2))
  usual = m.noise.common_std
  measured = (
    f'releases of a round and of its repetition after restore differ by noise of '
    f'{std / usual if usual else 0:.3g} × the usual'
  )
  # A fiftieth of the usual noise is far below any fresh noise, and rounds after the
  # first may well have less new noise than the first.
  p = laws.p_of_mu(1 / std if std else math.inf, 50 / usual, num=rest.size)
  p = min(1.0, 2 * p)
  if p < ALPHA:
    return Outcome(measured, p, _REPLAYED, math.inf)
  if m.repeats[0] >= ALPHA:
    # A seed that restoring sets is that of every restored run, or of the first round.
    again, first = np.swapaxes(np.array(after), 0, 1)
    pairs = [again[1:] - again[:-1], again - first]
    least = min(float(np.sqrt(np.mean(x**2) / 2)) for x in pairs)
    p_seed = laws.p_of_mu(
      1 / least if least else math.inf, 50 / usual, num=pairs[0].size
    )
    p = min(p, 2 * p_seed)
    if p < ALPHA:
      measured = (
        'the noise after restore is that of another run, or of the first round'
      )
      return Outcome(measured, p, _SEEDED, math.inf)
  return Outcome(measured, p)
