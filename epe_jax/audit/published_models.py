"""Published models in place of aggregates: what their differences show.

With server SGD the difference of two models is a known sum of aggregates, so
that what an attacker sees who is given some models only is derived from the
trace of a run that kept every round.
"""

from jaxtyping import Bool, Float
import numpy as np
from scipy import linalg

from epe_jax.audit import attack_statistics, restrict
from epe_jax.audit.record import FINAL_MODEL, Record
from epe_jax.audit.round_scalars import RoundScalars
from epe_jax.audit.server_response import respond_to_rounds

# Of what the change of the model is and what it should be; the rest is float32.
_SAME = 0.999


def derive_models(
  record: Record,
  shown: Bool[np.ndarray, ' T'],
  *,
  initial: bool = True,
) -> Record:
  """The models after some rounds are published, and not the aggregates.

  The attacker scores the difference of each two models published in a row,
  less what those before tell of it: with momentum a difference holds aggregates
  of rounds before it too, and models with none left out in between give away all
  aggregates. With Σ the covariance of the differences if aggregates were
  orthogonal, and Σ = L Lᵀ, what a model adds is a row of L⁻¹ times the
  differences, v = Σ_t w_t ρ̄_t, and

    <c_j, v> = Σ_t w_t |ρ̄_t| cos(c_j, ρ̄_t)

  is known from the trace and the norms of rounds. |v| is not, as no run
  records how aggregates lie to one another; it is estimated from the unobserved
  canaries, whose <c_j, v> has variance |v|²/d. With n of them |v| is off by
  1/√(2n) of itself, in the same way for all canaries of a row: what can be told
  from one row is exact, and rows are weighted a little wrongly.

  A norm that is measured by those whose coin said no has been told of coins, so
  what is left is of a fixed design.

  When all that others put in is removed, what remains is noise, whose norms are
  recorded, and what was put in of the one canary.

  Args:
    record: of a run whose trace is of aggregates.
    shown: after which rounds the model is published.
    initial: the attacker knows the initial model. If not, the first published
      model only serves to read the second.

  Returns:
    A row for each difference in place of each round, and for participation the
    cosine to expect of a canary there. Of canaries those are kept that took part
    in between two models that the attacker has, or are assigned a round there.

  Raises:
    ValueError: shown is not of the run or shows too little, or for the reasons
      of `explain_not_derivable`.
  """
  restrict.check_mask(record, shown)
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
  effect = respond_to_rounds(record.num_rounds, momentum=record.momentum)
  weights = np.diff(effect[stops], axis=0)
  in_between = slice(stops[0], stops[-1])
  cosines, share = _score_differences(record, rounds, weights)
  if shown[-1]:
    of_model = FINAL_MODEL if initial else FINAL_MODEL[:1]
    cosines |= {n: x for n, x in record.cosines.items() if n in of_model}
  return restrict.replace_views(
    record,
    present=np.asarray(record.assigned[in_between].any(axis=0)),
    cosines=cosines,
    rounds=None,
    included=np.where(record.observed, share, 0),
    assigned=share,
    design='fixed',
  )


def explain_not_derivable(record: Record) -> str | None:
  """Why `models` cannot be derived from a run; None if they can.

  Whether the server is SGD with its momentum is not taken on trust: the sum of
  all aggregates has to point where the model went.
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
  effect = respond_to_rounds(record.num_rounds, momentum=record.momentum)[-1]
  norms = effect * record.rounds.aggregate_norm
  change = norms @ np.asarray(record.trace, np.float64)
  if np.corrcoef(change, record.cosines['change'])[0, 1] < _SAME:
    return (
      f'momentum={record.momentum}, but with it the aggregates do not add up '
      'to the change of the model, so the file was not made by one run. Give '
      'the scores.npz of one run, or read aggregates.'
    )
  return None


def _orthogonalize(
  weights: Float[np.ndarray, 'n T'], norms: Float[np.ndarray, ' T']
) -> Float[np.ndarray, 'n T']:
  """Weights of what each difference adds to those before, of norm 1.

  Were vectors of these norms orthogonal.
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
  """Cosines with what each difference adds, and those to expect of a canary."""
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
  """Cosines with the noise that each difference adds, and the canary itself."""
  residual = np.asarray(record.cosines['residual'], np.float64)
  norms = np.asarray(rounds.residual_norm, np.float64)
  added = _orthogonalize(weights, norms)
  noise = (added * norms) @ residual
  own = (added * rounds.canary_norm) @ record.included
  square = 1 + own * (2 * noise + own)
  return (noise + own) / np.sqrt(square)


def restrict_record(
  record: Record,
  *,
  every: int | None = None,
  last: int | None = None,
  models: bool = False,
) -> Record:
  """A run of which some rounds are published.

  Args:
    record: what its scores.npz holds.
    every: only rounds n, 2n, ...
    last: only the last n rounds; with every, those of them.
    models: the models after these rounds are published and not their
      aggregates; the initial model is known.

  Raises:
    ValueError: a number is out of range, or `restrict` or `published_models`
      refuses.
  """
  rounds = record.num_rounds
  mask = np.ones(rounds, bool)
  if every is not None:
    mask &= attack_statistics.every_nth_round(rounds, every)
  if last is not None:
    mask &= attack_statistics.last_n_rounds(rounds, last)
  if models:
    return derive_models(record, mask)
  return record if mask.all() else restrict.restrict_to_rounds(record, mask)
