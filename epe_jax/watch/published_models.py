"""What a run publishes: some of its rounds, or the models after them.

Models are derived from the trace of a run that kept every round, for attackers who see
no aggregates.
"""

from jaxtyping import Bool, Float
import numpy as np
from scipy import linalg

from epe_jax.audit.record import (
  FINAL_MODEL,
  Record,
  respond_at_end,
  respond_to_rounds,
)
from epe_jax.audit.release import (
  check_mask,
  every_nth_round,
  last_n_rounds,
  replace_views,
  restrict_to_rounds,
)
from epe_jax.training.round_scalars import RoundScalars

# Correlation of the change of the model with what it should be; the rest of it is
# rounding in float32.
_MIN_CORRELATION = 0.999


def restrict_record(
  record: Record,
  *,
  every: int | None = None,
  last: int | None = None,
  models: bool = False,
) -> Record:
  """Restricts a record to the published rounds.

  Args:
    every: publish only rounds n, 2n, ...
    last: publish only the last n rounds; with every, those of them.
    models: publish the models after these rounds instead of their aggregates; the
      initial model is known.

  Raises:
    ValueError: as `restrict_to_rounds` and `derive_models`.
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


def derive_models(record: Record, shown: Bool[np.ndarray, ' T']) -> Record:
  """Derives the record of an attacker who sees the models after some rounds.

  With server SGD the difference of two models is a known sum of aggregates, so it
  is derived from the trace of a run that kept every round. The initial model is known.

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

  Returns:
    A row for each difference instead of each round, and the expected cosine of a
    canary there instead of its participation. Canaries are kept if they took part,
    or are assigned a round, between two models that the attacker has.

  Raises:
    ValueError: shown is not a mask of the rounds, or for the reasons of
      `explain_not_derivable`.
  """
  check_mask(record, shown)
  if reason := explain_not_derivable(record):
    raise ValueError(reason)
  rounds = record.rounds
  assert rounds is not None
  assert record.momentum is not None
  stops = np.concatenate([[0], 1 + np.flatnonzero(shown)])
  effect = respond_to_rounds(
    record.num_rounds, momentum=record.momentum, stops=stops.tolist()
  )
  weights = np.diff(effect, axis=0)
  cosines, share = _score_differences(record, rounds, weights)
  if shown[-1]:
    cosines |= {n: x for n, x in record.cosines.items() if n in FINAL_MODEL}
  return replace_views(
    record,
    present=np.asarray(record.assigned[: stops[-1]].any(axis=0)),
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
      "model. Train with audit.view='aggregate' and audit.trace=True."
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
