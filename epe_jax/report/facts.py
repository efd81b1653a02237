"""Numbers of a finished run that its results do not state, and what figures draw."""

from collections.abc import Mapping
import math
from typing import NamedTuple

from jaxtyping import Float
import numpy as np
from scipy import special

from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.audit.record import Record
from epe_jax.audit.results import AttackResult, Audit
from epe_jax.audit.statistics import score_own_round
from epe_jax.epsilon.types import Assumption
from epe_jax.experiment import client_rounds
from epe_jax.experiment.run_result import RunResult
from epe_jax.fact import Facts
from epe_jax.report import clients, curves

# Schedules by which canaries may take part in different numbers of rounds.
_VARYING = ('as_clients', 'replace')


class AnalyticEpsilon(NamedTuple):
  """An analytic ε of a run.

  Attributes:
    who: 'canaries', 'clients', or 'canaries and clients'.
    epsilon: at the δ of the run; inf without noise.
    assumes: the participation and the attacker that it holds for.
  """

  who: str
  epsilon: float
  assumes: Facts


class TradeoffCurves(NamedTuple):
  """False negative rates of each attacker.

  Attributes:
    tradeoffs: of the attackers that have scores.
    grid: false positive rates of what follows, rising.
    allowed: attacker -> the least that the mechanism allows; None if not known.
    bounds: attacker -> the least of (ε, δ)-DP with the lower bound; None without.
  """

  tradeoffs: list[curves.Tradeoff]
  grid: Float[np.ndarray, ' m']
  allowed: Mapping[ThreatModel, Float[np.ndarray, ' m'] | None]
  bounds: Mapping[ThreatModel, Float[np.ndarray, ' m'] | None]


class DeltaCurves(NamedTuple):
  """ε at each δ.

  Attributes:
    deltas: of the curves, rising: those that so many canaries tell about.
    curves: of the attackers whose estimate is calibrated.
    gaussian: δ and ε of the Gaussian mechanism with the analytic ε at the δ of the
      run; None if that ε is not known.
  """

  deltas: Float[np.ndarray, ' n']
  curves: list[curves.DeltaCurve]
  gaussian: tuple[Float[np.ndarray, ' m'], Float[np.ndarray, ' m']] | None


def is_coin_flip(result: RunResult) -> bool:
  """Whether each canary was included independently with probability 1/2."""
  return any(
    Assumption.COINS in estimate.assumes
    for attack in result.audit.attacks
    for estimate in attack.estimates
  )


def find_analytic_epsilon(result: RunResult) -> float:
  """The analytic ε of a canary, or of a client where there are no canaries.

  Returns:
    ε >= 0; inf without noise.
  """
  if not result.is_audited:
    return result.clients_analytic_epsilon
  assert result.analytic_epsilon is not None, 'canaries took part'
  return result.analytic_epsilon


def list_analytic_epsilons(result: RunResult) -> list[AnalyticEpsilon]:
  """The analytic ε of canaries and of clients, once if they are the same."""
  of_client = AnalyticEpsilon(
    'clients',
    result.clients_analytic_epsilon,
    result.clients_analytic_assumes,
  )
  if not result.is_audited:
    return [of_client]
  assert result.analytic_assumes is not None, 'canaries took part'
  of_canary = AnalyticEpsilon(
    'canaries',
    find_analytic_epsilon(result),
    result.analytic_assumes,
  )
  is_same = np.isclose(of_canary.epsilon, of_client.epsilon, equal_nan=True)
  if is_same and of_canary.assumes == of_client.assumes:
    return [of_canary._replace(who='canaries and clients')]
  return [of_canary, of_client]


def count_participations(result: RunResult) -> client_rounds.Participations:
  """How often canaries and clients of a run take part."""
  schedule = result.config.get('canaries', {}).get('schedule')
  limit, amplified = result.clients_analytic_epsilon, math.inf
  if result.amplification and result.amplification.key == 'amplified':
    amplified = float(str(result.amplification.values['epsilon']))
  return client_rounds.Participations(
    result.participations,
    result.clients_participations,
    min(limit, amplified),
    canaries_vary=schedule in _VARYING,
    is_sampled=result.is_sampled,
    is_amplified=amplified < limit,
    shifts=result.clients_shifts,
  )


def estimate_guesses(
  attack: AttackResult, participations: client_rounds.Participations
) -> float | None:
  """The share of right guesses, at even odds, whether a canary took part.

  It is the number of the table of risks where that table has one, else what the
  attack itself reaches.
  Returns:
    A share in [0.5, 1]; None if it is not known.
  """
  found = clients.compute_attack_risks(attack, participations)
  if found is not None and found.estimate is not None:
    return float(found.estimate.accuracy)
  return None if attack.rates is None else attack.rates.accuracy


def compute_tradeoff_curves(
  audit: Audit, *, analytic: float = math.nan
) -> TradeoffCurves:
  """The trade-off of each attacker, with what is allowed and what is certain."""
  first = audit.attacks[0]
  lowest = 0.5 / max(first.num_observed, first.num_unobserved)
  # Evenly over normal quantiles, as the axes are.
  low, high = special.ndtri(1e-14), special.ndtri(1 - lowest)
  grid = special.ndtr(np.linspace(low, high, 240))
  return TradeoffCurves(
    curves.compute_tradeoffs(audit, grid),
    grid,
    {
      attack.threat_model: curves.compute_allowed_fnr(
        attack.analytic, analytic, first.first.delta, grid
      )
      for attack in audit.attacks
    },
    {
      attack.threat_model: curves.compute_bound_fnr(
        attack.bounds[0] if attack.bounds else None, grid
      )
      for attack in audit.attacks
    },
  )


def compute_delta_curves(result: RunResult) -> DeltaCurves:
  """ε of each attacker and of the mechanism, at each δ."""
  analytic, delta = find_analytic_epsilon(result), result.delta
  # No canary tells anything of outcomes that are rarer than one in all of them.
  known = np.geomspace(1 / max(result.num_observed, 3), 0.5, 30)
  gaussian = None
  if not math.isnan(analytic):
    wide = np.geomspace(min(known[0], delta / 3), 0.5, 30)
    epsilons = curves.compute_gaussian_over_delta(analytic, delta, wide)
    gaussian = (wide, epsilons)
  over_delta = curves.compute_over_delta(result.audit.attacks, known)
  return DeltaCurves(known, over_delta, gaussian)


def find_typical_canary(record: Record, trace: Float[np.ndarray, 'T k']) -> int:
  """The observed canary whose score in its own rounds is the median."""
  observed = np.flatnonzero(record.observed)
  own_round = score_own_round(trace[:, observed], record.included[:, observed])
  middle = (len(own_round) - 1) // 2
  return int(observed[np.argsort(own_round, kind='stable')[middle]])
