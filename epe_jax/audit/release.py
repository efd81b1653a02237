"""What a run releases: some of its rounds, some of its models, or no secrets.

Each function maps the record of a run to the record of an attacker who is shown
less, so that every score and estimate of a run is also one of that attacker.
Canaries that leave no trace in what is shown are dropped, so that "observed" means
that there is something to see. With coins a canary is kept or dropped by its
assigned rounds, whatever its coin said, so the coins of the others stay fair.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import hashlib
from typing import Any

from jaxtyping import Bool, Float
import numpy as np

from epe_jax import accounting
from epe_jax.audit.record import FINAL_MODEL, RELEASES, Record
from epe_jax.training.round_scalars import RoundScalars

# What the noise of a run hides, and what follows from it. The clip norm follows
# from counts that have noise of their own.
_PUBLIC_NUMBERS = {
  'round',
  'clip_norm',
  'canary_norm',
  'noise_std',
  'num_canaries',
  'aggregate_norm',
  'effective_dimension',
}
# Cosines of any other name may be with what only the server knows.
_PUBLIC_COSINES = (
  *FINAL_MODEL,
  *RELEASES,
  *(f'max_{name}' for name in RELEASES),
)
_TEST = 'test_'


def restrict_to_rounds(record: Record, shown: Bool[np.ndarray, ' T']) -> Record:
  """Restricts a record to some aggregates and the final model.

  The aggregate of a round holds the canaries of that round and no others, so the
  other rounds are left out and nothing else changes.

  Args:
    shown: the published rounds, such as `every_nth_round`.

  Raises:
    ValueError: shown is not a mask of the rounds, or holds the rounds of fewer than
      two observed canaries.
  """
  check_mask(record, shown)
  # A maximum over all rounds is not one over these rounds.
  of_model = {n: x for n, x in record.cosines.items() if n in FINAL_MODEL}
  return replace_views(
    record,
    cosines=of_model | _select_cosines(record, shown),
    rounds=_select_scalars(record, shown),
    included=record.included[shown],
    assigned=record.assigned[shown],
    strategy=None
    if record.noising is None
    else accounting.whiten(record.noising[shown]),
  )


def truncate_after(record: Record, round: int) -> Record:
  """The run as it stood after some rounds.

  Canaries with a later round are dropped: they are not yet observed, and not
  unobserved either, as they were chosen to take part.

  Args:
    round: t, 1 <= t <= T. Before T there is no final model.

  Raises:
    ValueError: round is out of range, or fewer than two observed canaries took part
      by then.
  """
  if not 1 <= round <= record.num_rounds:
    raise ValueError(
      f'round={round}; give 1 to the {record.num_rounds} rounds of the run.'
    )
  if round == record.num_rounds:
    return replace_views(record)
  return replace_views(
    record,
    cosines=_select_cosines(record, slice(round)),
    weight=None,
    rounds=_select_scalars(record, slice(round)),
    included=record.included[:round],
    assigned=record.assigned[:round],
    strategy=None
    if record.strategy is None
    else record.strategy[:round, :round],
  )


def redact_record(record: Record) -> Record:
  """The record without what the noise of the run does not hide.

  The analytic ε covers the noisy aggregates and what follows from them. Any other
  number that a run has of its clients, however small, is a release that no ε
  counts: one number of an un-noised sum tells two guesses of it apart. So the
  residual goes: noise that is known is a sum of updates that is known.
  """
  rounds = record.rounds
  if rounds is not None:
    unknown = np.full_like(rounds.num_clients, np.nan)
    hidden = set(rounds._fields) - _PUBLIC_NUMBERS
    rounds = rounds._replace(**dict.fromkeys(hidden, unknown))
  cosines = {n: x for n, x in record.cosines.items() if n in _PUBLIC_COSINES}
  return dataclasses.replace(record, cosines=cosines, rounds=rounds)


def hash_record(record: Record) -> str:
  """SHA-256 of the arrays of a record that may be published, in hexadecimal digits.

  It covers the name, dtype, shape and bytes of each array: the cosines of canaries
  with models and releases, and the rounds that canaries were assigned to and took
  part in.
  """
  # The file of a record is for the auditor alone. Its digest may be published: it is
  # of thousands of floats of which noise hides the digits, so that nobody can try all
  # that it may be of. What the noise does not hide is left out all the same.
  record = redact_record(record)
  arrays = {
    **{f'cosines.{name}': x for name, x in record.cosines.items()},
    'assigned': record.assigned,
    'included': record.included,
  }
  digest = hashlib.sha256()
  for name, array in sorted(arrays.items()):
    array = np.ascontiguousarray(array)
    # Little-endian on every machine.
    array = array.astype(array.dtype.newbyteorder('<'), copy=False)
    head = f'{name} {array.dtype.str} {array.shape}\n'
    digest.update(head.encode() + array.tobytes())
  return digest.hexdigest()


def redact_history(
  records: Sequence[Mapping[str, float]],
) -> list[dict[str, float]]:
  """The lines of metrics.jsonl without what the noise of the run does not hide.

  The duration of a round goes too: it depends on the number of examples.

  Args:
    records: what `metrics.read_lines` returns.

  >>> redact_history([{'round': 1, 'loss': 0.7, 'clip_norm': 0.1, 'test_loss': 0.6}])
  [{'round': 1, 'clip_norm': 0.1, 'test_loss': 0.6}]
  """
  return [
    {
      name: value
      for name, value in line.items()
      if name in _PUBLIC_NUMBERS or name.startswith(_TEST)
    }
    for line in records
  ]


def every_nth_round(rounds: int, n: int) -> Bool[np.ndarray, ' T']:
  """Returns the mask of rounds n, 2n, ... of T.

  Raises:
    ValueError: n is out of range.

  >>> every_nth_round(5, 2).astype(int)
  array([0, 1, 0, 1, 0])
  """
  _check_number('every', n, rounds)
  return np.arange(1, rounds + 1) % n == 0


def last_n_rounds(rounds: int, n: int) -> Bool[np.ndarray, ' T']:
  """Returns the mask of the last n rounds of T.

  Raises:
    ValueError: n is out of range.

  >>> last_n_rounds(5, 2).astype(int)
  array([0, 0, 0, 1, 1])
  """
  _check_number('last', n, rounds)
  return np.arange(rounds) >= rounds - n


def _check_number(name: str, n: int, rounds: int) -> None:
  if not 1 <= n <= rounds:
    raise ValueError(f'{name}={n}; give 1 to the {rounds} rounds of the run.')


def replace_views(
  record: Record,
  present: Bool[np.ndarray, ' k'] | None = None,
  **changes: Any,
) -> Record:
  """Changes fields of a record and drops the canaries that are not in it.

  Args:
    present: canaries that may have left a trace in what is shown; None for those
      that are assigned a round of it.

  Raises:
    ValueError: fewer than two observed canaries are left.
  """
  observed, had_rounds = record.observed, record.assigned.any(axis=0)
  if 'assigned' in changes:
    # Counts are of the whole run.
    changes |= {'is_whole': False, 'planned': None}
    if record.ring is not None:
      changes['ring'] = record.ring._replace(wrapped=0)
  record = dataclasses.replace(record, **changes)
  if present is None:
    present = np.asarray(record.assigned.any(axis=0))
  num_left = np.count_nonzero(present & observed)
  if num_left < 2:
    raise ValueError(
      f'{num_left} of {np.count_nonzero(observed)} observed canaries took part in '
      'what is shown, but an audit needs two; show more of the run.'
    )
  # How many of a canary's rounds are shown follows no known law.
  if record.periods is not None and record.periods > 1:
    record = dataclasses.replace(record, periods=None)
  is_kept = present | ~had_rounds
  weight = record.weight
  return dataclasses.replace(
    record,
    cosines={name: x[..., is_kept] for name, x in record.cosines.items()},
    weight=None if weight is None else weight[is_kept],
    included=record.included[:, is_kept],
    assigned=record.assigned[:, is_kept],
  )


def check_mask(record: Record, shown: Bool[np.ndarray, ' T']) -> None:
  """Raises a ValueError unless this is a mask of the rounds with one or more."""
  if shown.shape != (record.num_rounds,) or not shown.any():
    raise ValueError(
      f'shown has shape {shown.shape} and {np.count_nonzero(shown)} rounds; '
      f'give a mask of the {record.num_rounds} rounds with one or more.'
    )


def _select_cosines(
  record: Record, which: Bool[np.ndarray, ' T'] | slice
) -> dict[str, Float[np.ndarray, 't k']]:
  """Selects some rounds of the cosines that are kept for every round."""
  return {n: x[which] for n, x in record.cosines.items() if x.ndim == 2}


def _select_scalars(
  record: Record, which: Bool[np.ndarray, ' T'] | slice
) -> RoundScalars | None:
  if record.rounds is None:
    return None
  return RoundScalars(*(x[which] for x in record.rounds))
