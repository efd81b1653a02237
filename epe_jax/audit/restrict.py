"""What is left of a run for an attacker who is shown only a part of it.

Each function takes what a whole run recorded to what an attacker has of it who
is shown less, in the same form: every score and estimate of a run is then one
of that attacker. Canaries whose rounds leave no trace in what is shown are
dropped, so that "observed" means that there is something to see. Where canaries
flip coins those go by their assigned rounds, whatever their coins said, so that among the
others a coin is still fair.
`published_models` is the same for models in place of aggregates.
"""

import dataclasses
from typing import Any

from jaxtyping import Bool, Float
import numpy as np

from epe_jax.audit.record import FINAL_MODEL, Record
from epe_jax.audit.round_scalars import RoundScalars


def restrict_to_rounds(record: Record, shown: Bool[np.ndarray, ' T']) -> Record:
  """The aggregates of some rounds are published, and the final model.

  The aggregate of a round holds the canaries of that round and no others, so
  the other rounds are left out and nothing else changes.

  Args:
    record: what attackers saw of the run.
    shown: the published rounds, such as `statistics.every_nth_round`.

  Raises:
    ValueError: shown is not of the run, or holds the rounds of fewer than two
      observed canaries.
  """
  check_mask(record, shown)
  # The largest cosine of all rounds is not what a part of them shows.
  of_model = {n: x for n, x in record.cosines.items() if n in FINAL_MODEL}
  return replace_views(
    record,
    cosines=of_model | _select_cosines(record, shown),
    rounds=_select_scalars(record, shown),
    included=record.included[shown],
    assigned=record.assigned[shown],
  )


def truncate_after(record: Record, round: int) -> Record:
  """A run as it stood after some rounds: what had leaked by then.

  Canaries with a later round are dropped: they are neither among those who have
  something to lose nor, for having been chosen, among the unobserved.

  Args:
    record: what attackers saw of the run.
    round: t, 1 <= t <= T. Before T the final model is not there yet.

  Raises:
    ValueError: round is out of range, or fewer than two observed canaries took
      part by then.
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
  )


def replace_views(
  record: Record,
  present: Bool[np.ndarray, ' k'] | None = None,
  **changes: Any,
) -> Record:
  """A run with these changes, and the canaries that then count.

  Args:
    record: what attackers saw of the run.
    present: canaries that may have left something in what is shown; None for
      those that are assigned a round of it.
    **changes: fields of the run.

  Raises:
    ValueError: fewer than two observed canaries are left.
  """
  observed, had_rounds = record.observed, record.assigned.any(axis=0)
  if 'assigned' in changes:
    changes['is_whole'] = False
  record = dataclasses.replace(record, **changes)
  if present is None:
    present = np.asarray(record.assigned.any(axis=0))
  num_left = np.count_nonzero(present & observed)
  if num_left < 2:
    raise ValueError(
      f'{num_left} of {np.count_nonzero(observed)} observed canaries took part in '
      'what is shown, but an audit needs two; show more of the run.'
    )
  # Of several rounds some may be among those shown, by no law that is known.
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
  """Raises a ValueError unless this is a mask of some rounds of the run."""
  if shown.shape != (record.num_rounds,) or not shown.any():
    raise ValueError(
      f'shown has shape {shown.shape} and {np.count_nonzero(shown)} rounds; '
      f'give a mask of the {record.num_rounds} rounds with one or more.'
    )


def _select_cosines(
  record: Record, which: Bool[np.ndarray, ' T'] | slice
) -> dict[str, Float[np.ndarray, 't k']]:
  """Cosines of some rounds, of what was scored round by round."""
  return {n: x[which] for n, x in record.cosines.items() if x.ndim == 2}


def _select_scalars(
  record: Record, which: Bool[np.ndarray, ' T'] | slice
) -> RoundScalars | None:
  if record.rounds is None:
    return None
  return RoundScalars(*(x[which] for x in record.rounds))
