"""What may be published of a run with fresh noise: what its noise hides.

The noisy aggregates, and whatever follows from them, are what the analytic ε is
of. Anything else that a run knows of its clients, however small, is a release
that no ε counts: one number of an un-noised sum tells two guesses of it apart.
"""

from collections.abc import Mapping, Sequence
import dataclasses

import numpy as np

from epe_jax.audit.record import FINAL_MODEL, RELEASES, Record

# The clip norm follows from counts with noise of their own.
_SHOWN = {
  'round',
  'clip_norm',
  'canary_norm',
  'noise_std',
  'num_canaries',
  'aggregate_norm',
  'effective_dimension',
}
# Of cosines, those with what was released. Whatever else an observer scored may be
# of what only the server knows.
_COSINES = (
  *FINAL_MODEL,
  *RELEASES,
  *(f'max_{name}' for name in RELEASES),
)
_TEST = 'test_'


def redact_record(record: Record) -> Record:
  """What attackers saw, without what only one knew who had no noise to fear.

  Args:
    record: what attackers saw of the run. Of what observers scored, cosines with the
      models and with what rounds released are left. The residual is not: noise that
      is known is a sum of updates that is known.
  """
  rounds = record.rounds
  if rounds is not None:
    nothing = np.full_like(rounds.num_clients, np.nan)
    hidden = set(rounds._fields) - _SHOWN
    rounds = rounds._replace(**dict.fromkeys(hidden, nothing))
  cosines = {n: x for n, x in record.cosines.items() if n in _COSINES}
  return dataclasses.replace(record, cosines=cosines, rounds=rounds)


def redact_history(
  records: Sequence[Mapping[str, float]],
) -> list[dict[str, float]]:
  """Lines of metrics.jsonl without what clients measured, and how many came.

  How long a round took is among that: it tells of the number of examples.

  Args:
    records: as `metrics.read_lines` gives them.

  >>> redact_history([{'round': 1, 'loss': 0.7, 'clip_norm': 0.1, 'test_loss': 0.6}])
  [{'round': 1, 'clip_norm': 0.1, 'test_loss': 0.6}]
  """
  return [
    {
      name: value
      for name, value in line.items()
      if name in _SHOWN or name.startswith(_TEST)
    }
    for line in records
  ]
