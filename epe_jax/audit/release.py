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
from scipy import linalg

from epe_jax import accounting
from epe_jax.audit.record import FINAL_MODEL, RELEASES, Record
from epe_jax.audit.server_response import respond_at_end, respond_to_rounds
from epe_jax.training.round_scalars import RoundScalars

# Correlation of the change of the model with what it should be; the rest of it is
# rounding in float32.
_MIN_CORRELATION = 0.999

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


def restrict_record(
  record: Record,
  *,
  every: int | None = None,
  last: int | None = None,
  models: bool = False,
) -> Record:
  """Restricts a record to the published rounds.

  Args:
    record: the record of the run.
    every: publish only rounds n, 2n, ...
    last: publish only the last n rounds; with every, those of them.
    models: publish the models after these rounds instead of their aggregates; the
      initial model is known.

  Raises:
    ValueError: a number is out of range, or as `restrict_to_rounds` and
      `derive_models`.
  """
  rounds = record.num_rounds
  mask = np.ones(rounds, bool)
  if every is not None:
    mask &= every_nth_round(rounds, every)
  if last is not None:
    mask &= last_n_rounds(rounds, last)
  if models:
    return derive_models(record, mask)
  return record if mask.all() else restrict_to_rounds(record, mask)


def restrict_to_rounds(record: Record, shown: Bool[np.ndarray, ' T']) -> Record:
  """Restricts a record to some aggregates and the final model.

  The aggregate of a round holds the canaries of that round and no others, so the
  other rounds are left out and nothing else changes.

  Args:
    record: the record of the run.
    shown: the published rounds, such as `every_nth_round`.

  Raises:
    ValueError: shown is not a mask of the rounds, or holds the rounds of fewer than
      two observed canaries.
  """
  _check_mask(record, shown)
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
    record: the record of the run.
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


def derive_models(
  record: Record,
  shown: Bool[np.ndarray, ' T'],
  *,
  initial: bool = True,
) -> Record:
  """Derives the record of an attacker who sees the models after some rounds.

  With server SGD the difference of two models is a known sum of aggregates, so it
  is derived from the trace of a run that kept every round.

  The attacker scores the difference of every two consecutive published models,
  less what earlier differences predict of it: with momentum a difference holds
  aggregates of rounds before it, and models of all rounds give away all aggregates.
  With Σ the covariance of the differences if aggregates were orthogonal, and
  Σ = L Lᵀ, a model adds v = Σ_t w_t ρ̄_t, where w is a row of L⁻¹ times the weights
  of the differences, and

    <c_j, v> = Σ_t w_t |ρ̄_t| cos(c_j, ρ̄_t)

  is known from the trace and the norms of rounds. |v| is not, as no run records the
  angles between aggregates; it is estimated from the unobserved canaries, whose
  <c_j, v> has variance |v|²/d. With n of them |v| has the relative error 1/√(2n),
  the same for all canaries of a row: scores within a row are exact, and rows are
  weighted a little wrongly.

  A norm that is measured by canaries whose coin said no depends on coins, so the
  design becomes fixed.

  The residual of a difference is noise, whose norms are recorded, and the part of
  the one canary.

  Args:
    record: the record of a run whose trace is with aggregates.
    shown: the rounds after which the model is published.
    initial: whether the attacker knows the initial model. If not, the first
      published model only serves to read the second.

  Returns:
    A row for each difference instead of each round, and the expected cosine of a
    canary there instead of its participation. Canaries are kept if they took part,
    or are assigned a round, between two models that the attacker has.

  Raises:
    ValueError: shown is not a mask of the rounds or shows too little, or for the
      reasons of `explain_not_derivable`.
  """
  _check_mask(record, shown)
  if reason := explain_not_derivable(record):
    raise ValueError(reason)
  rounds = record.rounds
  assert rounds is not None
  assert record.momentum is not None
  stops = 1 + np.flatnonzero(shown)
  if initial:
    stops = np.concatenate([[0], stops])
  if len(stops) < 2:
    raise ValueError(
      'one published model has no difference with another. Publish more, or '
      'let the attacker know the initial model.'
    )
  effect = respond_to_rounds(
    record.num_rounds, momentum=record.momentum, stops=stops.tolist()
  )
  weights = np.diff(effect, axis=0)
  in_between = slice(stops[0], stops[-1])
  cosines, share = _score_differences(record, rounds, weights)
  if shown[-1]:
    of_model = FINAL_MODEL if initial else FINAL_MODEL[:1]
    cosines |= {n: x for n, x in record.cosines.items() if n in of_model}
  return replace_views(
    record,
    present=np.asarray(record.assigned[in_between].any(axis=0)),
    cosines=cosines,
    rounds=None,
    included=np.where(record.observed, share, 0),
    assigned=share,
    design='fixed',
  )


def explain_not_derivable(record: Record) -> str | None:
  """Says why models cannot be derived from a run; None if they can.

  That the server is SGD with this momentum is checked: the weighted sum of the
  aggregates must point where the model went.
  """
  lacks = {'aggregate', 'change'} - record.cosines.keys()
  if lacks or record.trace is None:
    return (
      f'the run kept no cosines with {sorted(lacks)}, but differences of models are '
      "derived from every round's aggregate and checked against the change of the "
      "model. Train with audit.sees='aggregate' and audit.trace=True."
    )
  if np.count_nonzero(~record.observed) < 2:
    return (
      'differences of models are measured by unobserved canaries, and there '
      'are fewer than two. Train with more of canaries.unobserved.'
    )
  if record.momentum is None or record.rounds is None:
    return (
      f'momentum={record.momentum}; differences of models are known for '
      "server SGD alone. Train with server.optimizer='sgd', or read aggregates."
    )
  if record.strategy is not None:
    return (
      'the noise of rounds is correlated, so that aggregates are not orthogonal, '
      'as differences of models take them to be. Read aggregates.'
    )
  effect = respond_at_end(record.num_rounds, momentum=record.momentum)
  norms = effect * record.rounds.aggregate_norm
  change = norms @ np.asarray(record.trace, np.float64)
  if np.corrcoef(change, record.cosines['change'])[0, 1] < _MIN_CORRELATION:
    return (
      f'momentum={record.momentum}, but with it the aggregates do not add up '
      'to the change of the model, so the file was not made by one run. Give '
      'the scores.npz of one run, or read aggregates.'
    )
  return None


def redact_record(record: Record) -> Record:
  """The record without what the noise of the run does not hide.

  The analytic ε covers the noisy aggregates and what follows from them. Any other
  number that a run has of its clients, however small, is a release that no ε
  counts: one number of an un-noised sum tells two guesses of it apart. So the
  residual goes: noise that is known is a sum of updates that is known.

  Args:
    record: the record of the run.
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
    record: the record of the run.
    present: canaries that may have left a trace in what is shown; None for those
      that are assigned a round of it.
    **changes: fields of the record.

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


def _check_mask(record: Record, shown: Bool[np.ndarray, ' T']) -> None:
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


def _orthogonalize(
  weights: Float[np.ndarray, 'n T'], norms: Float[np.ndarray, ' T']
) -> Float[np.ndarray, 'n T']:
  """Rows of L⁻¹ W, where L Lᵀ is the covariance of W applied to vectors.

  The vectors have these norms and are taken to be orthogonal.
  """
  # A round without noise and clients is a vector of zeros, which adds nothing.
  sizes = np.maximum(norms, 1e-6 * norms.max(initial=1e-30))
  root = np.linalg.cholesky((weights * sizes**2) @ weights.T)
  return linalg.solve_triangular(root, weights, lower=True)


def _score_differences(
  record: Record,
  rounds: RoundScalars,
  weights: Float[np.ndarray, 'n T'],
) -> tuple[dict[str, Float[np.ndarray, 'n k']], Float[np.ndarray, 'n k']]:
  """Cosines with what each difference adds, and the expected ones of a canary."""
  norms = np.asarray(rounds.aggregate_norm, np.float64)
  added = _orthogonalize(weights, norms)
  products = (added * norms) @ np.asarray(record.trace, np.float64)
  null = products[:, ~record.observed]
  norm = np.sqrt(record.dim * np.mean(null**2, axis=1, keepdims=True))
  norm = np.where(norm > 0, norm, 1)
  cosines = {'models': products / norm}
  if 'residual' in record.cosines:
    cosines['residual'] = _score_residual(record, rounds, weights)
  return cosines, (added * rounds.canary_norm) @ record.assigned / norm


def _score_residual(
  record: Record,
  rounds: RoundScalars,
  weights: Float[np.ndarray, 'n T'],
) -> Float[np.ndarray, 'n k']:
  """Cosines with the noise that each difference adds, plus the canary itself."""
  residual = np.asarray(record.cosines['residual'], np.float64)
  norms = np.asarray(rounds.residual_norm, np.float64)
  added = _orthogonalize(weights, norms)
  noise = (added * norms) @ residual
  own = (added * rounds.canary_norm) @ record.included
  square = 1 + own * (2 * noise + own)
  return (noise + own) / np.sqrt(square)
