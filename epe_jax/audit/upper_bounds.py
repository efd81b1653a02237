"""The ε that the mechanism of a run allows each attacker.

What an attacker finds beyond it is a violation of what the run claims, or an
estimate that extrapolates. An attacker who knows in which rounds a canary took part
faces the Gaussian mechanism; one who does not, a random round of each period; and
of the final model a server that adds up aggregates leaves the canary in the noise
of all rounds.
"""

import functools
import math
from typing import Literal

from jaxtyping import Float
import numpy as np

from epe_jax import accounting
from epe_jax.accounting import Analytic, Mixture
from epe_jax.audit.record import Record, respond_at_end
from epe_jax.epsilon import known_shifts, registry, tradeoff
from epe_jax.epsilon.tradeoff import Curve
from epe_jax.epsilon.types import Estimate
from epe_jax.fact import Fact

Excess = Literal['violation', 'extrapolates', 'more_than_expected']


def bound_known_rounds(record: Record, delta: float) -> Analytic | None:
  """The ε of an attacker who knows the rounds of a canary and all other updates.

  Returns:
    Of the canary whose rounds give away most; None where the noise is not known,
    or what was published are no rounds but models.
  """
  if record.noise_multiplier is None or record.rounds is None:
    return None
  if record.strategy is not None:
    norms = np.linalg.norm(record.strategy @ record.assigned, axis=0)
    return accounting.epsilon_of_matrix_mechanism(
      record.noise_multiplier, float(norms.max()), delta=delta
    )
  participations = record.participations
  if record.ring is not None:
    return accounting.epsilon_of_ring(
      record.ring, delta=delta, rounds=participations
    )
  return accounting.epsilon_of_releases(
    record.noise_multiplier, delta=delta, participations=participations
  )


def bound_unknown_rounds(record: Record, delta: float) -> Analytic | None:
  """The ε of an attacker who does not know the rounds of a canary.

  Returns:
    By random allocation where each canary is assigned one random round of each
    period; elsewhere that of an attacker who knows the rounds, which is no
    smaller. None as in `bound_known_rounds`.
  """
  known = bound_known_rounds(record, delta)
  if known is None or record.periods is None:
    return known
  # Random allocation is known of independent Gaussian noise.
  if record.strategy is not None or record.ring is not None:
    return known
  assert record.noise_multiplier is not None, 'it has an ε'
  # Where periods differ by a round the shorter ones leak more.
  allocated = accounting.epsilon_of_allocation(
    record.noise_multiplier,
    delta=delta,
    rounds=record.num_rounds // record.periods,
    periods=record.periods,
  )
  return min(known, allocated, key=lambda analytic: analytic.epsilon)


def expect_final_model(record: Record, delta: float) -> Analytic | None:
  """The expected ε of an attacker who sees only the final model of linear training.

  SGD adds up aggregates: a canary of round i is left with weight w_i S_i/m in
  noise of variance Σ_t w_t² σ_t². Whatever clients do because of a canary comes in
  addition, so this is not a bound.

  Returns:
    An expectation; where the server is not SGD, the bound of an attacker who sees all rounds
    and does not know those of a canary. None as in `bound_known_rounds`, and where
    the record has not all rounds that are in the model.
  """
  noise = _measure_noise_of_model(record) if record.is_whole else math.nan
  if math.isnan(noise):
    return None
  if not noise or record.weight is None:
    return bound_unknown_rounds(record, delta)
  shift = np.asarray(record.weight[record.observed], np.float64) / noise
  shifts, counts = np.unique(shift, return_counts=True)
  epsilon = known_shifts.epsilon_mixture(shifts, delta, counts / shift.size)
  return Analytic(
    epsilon=float(epsilon),
    assumes=(
      Fact('random_round'),
      Fact('unresponsive_clients'),
      Fact('linear_server'),
    ),
    kind='expectation',
    law=Mixture(tuple(shifts.tolist()), tuple(counts.tolist())),
  )


def expect_shifts(record: Record) -> Float[np.ndarray, ' T'] | None:
  """What the final model of linear training keeps of an update of each round.

  Returns:
    w_t S_t/m of updates of the clip norm, in units of the noise of the model; None
    where the server is not SGD, or there is no noise.
  """
  noise = _measure_noise_of_model(record) if record.is_whole else 0.0
  if record.rounds is None or record.momentum is None or not noise > 0:
    return None
  response = respond_at_end(record.num_rounds, momentum=record.momentum)
  return response * record.rounds.canary_norm / noise


def _measure_noise_of_model(record: Record) -> float:
  """Standard deviation of what noise leaves in the model.

  It is NaN where that of rounds is not known, and 0 without noise or a linear server.
  """
  if record.rounds is None or record.momentum is None:
    return 0.0
  response = respond_at_end(record.num_rounds, momentum=record.momentum)
  in_model = response * record.rounds.noise_std
  if record.noising is not None:
    in_model = in_model @ record.noising
  return float(np.linalg.norm(in_model))


def find_curve(analytic: Analytic, delta: float) -> Curve:
  """The trade-off curve below which no attack is, or is expected to be.

  Returns:
    log FPR -> the smallest FNR. It is exact where the law of the mechanism is
    known; elsewhere it follows from ε alone, and is not above the exact one.
  """
  if math.isinf(analytic.epsilon):
    return np.zeros_like
  if analytic.is_gaussian:
    mu = float(tradeoff.mu_of_epsilon(analytic.epsilon, delta))
    return functools.partial(tradeoff.fnr_gdp, mu)
  if isinstance(analytic.law, Mixture):
    law = (np.asarray(x, np.float64) for x in analytic.law)
    return functools.partial(known_shifts.fnr_mixture, *law)
  if analytic.law is not None:
    return accounting.compute_lines(analytic.law).fnr
  return tradeoff.Lines(np.array([analytic.epsilon]), np.array([delta])).fnr


def is_above(epsilon: float, analytic: Analytic) -> bool:
  """Whether ε is above an analytic one, by more than the accuracy of either number.

  >>> is_above(1.0005, Analytic(1.0, assumes=(), kind='bound'))
  False
  """
  return epsilon > 1.001 * analytic.epsilon


def find_limit(
  estimate: Estimate, analytic: Analytic | None
) -> Analytic | None:
  """The analytic ε to compare an estimate with.

  It is that of its attacker; but where no more than an expectation is known the most
  exposed canary has its own, if its round is known.
  """
  entry = registry.find(estimate.method)
  if analytic is None or entry is None or not entry.is_of_most_exposed:
    return analytic
  if analytic.kind != 'expectation':
    return analytic
  if not isinstance(analytic.law, Mixture):
    return None
  epsilon = tradeoff.epsilon_gdp(max(analytic.law.shifts), estimate.delta)
  return Analytic(
    float(epsilon),
    (Fact('most_exposed_canary'),),
    kind='expectation',
    is_gaussian=True,
  )


def describe_excess(
  estimate: Estimate, analytic: Analytic | None, *, error: float = 0.0
) -> Excess | None:
  """What it means that an estimate is above the ε that its attacker is allowed.

  Args:
    error: half the width of the interval of another estimate from the same scores,
      >= 0, which is taken for a point estimate that has no interval of its own.

  Returns:
    'violation' of a bound with a stated confidence, 'extrapolates' of an estimate
    that is above a bound by more than its error, 'more_than_expected' of
    either where no more than an expectation is known; None where the estimate is
    in line.
  """
  analytic = find_limit(estimate, analytic)
  if analytic is None:
    return None
  is_certain = estimate.kind == 'confidence_bound'
  lowest = float(estimate.epsilon) - (0.0 if is_certain else error)
  if estimate.interval is not None:
    lowest = estimate.interval[0]
  if not is_above(lowest, analytic):
    return None
  if analytic.kind == 'expectation':
    return 'more_than_expected'
  return 'violation' if is_certain else 'extrapolates'
