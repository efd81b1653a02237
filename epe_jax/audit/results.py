"""What an audit found: a result for each attacker, and which bound to report.

`evaluation` makes these from the record of a run, `audit_json` keeps them in a file,
and reports are made of nothing else.
"""

from collections.abc import Iterable
import dataclasses
from typing import Any, NamedTuple

from epe_jax import extras
from epe_jax.accounting import Analytic
from epe_jax.audit import upper_bounds
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.audit.attackers import EXTERNAL, sort_by_strength
from epe_jax.epsilon import tradeoff
from epe_jax.epsilon.types import Estimate, Scores, mark_rejected
from epe_jax.fact import Facts

SIGNIFICANCE = 0.05
"""Chance that a lower bound exceeds the true ε."""

FPRS = (0.01, 0.001)
"""False positive rates at which true positive rates are reported."""


class Rates(NamedTuple):
  """How good an attack itself is, by the fitted mixture of Gaussians.

  Attributes:
    accuracy: share of right guesses about those who took part with probability
      1/2, at the best threshold.
    tpr: true positive rates at the false positive rates `FPRS`.
  """

  accuracy: float
  tpr: tuple[float, ...]


class Agreement(NamedTuple):
  """Whether scores are shifted by what the norms of rounds tell to expect.

  Attributes:
    epsilon: that is to be expected.
    standard_errors: by which the shift differs, signed.
    p_value: of so large a difference.
  """

  epsilon: float
  standard_errors: float
  p_value: float


@dataclasses.dataclass(frozen=True)
class AttackResult:
  """What was found about one attacker.

  Attributes:
    threat_model: the attacker.
    view: the key of what is seen and known of the run at hand.
    num_observed: canaries that took part.
    num_unobserved: canaries that did not.
    is_calibrated: the first estimate estimates the ε of this attacker, and no
      test says otherwise.
    failed_checks: of the estimates.
    rates: of the attack; None where by how much canaries are shifted is unknown.
    agreement: with the norms of rounds; None where they tell nothing.
    estimates: point estimates, the one to believe first, then lower bounds, the
      pre-declared one first.
    analytic: the ε that the mechanism allows this attacker; None where that is
      not known.
    notes: what to know of the estimates and bounds.
    contradictions: what was measured that contradicts the claim of the run, and not
      the estimates.
    joint_bound: the pre-declared bound at a level at which all tests of the audit
      hold together; computed where the bound itself is above `analytic`.
    bootstrap_interval: 90 %, of the first estimate over resampled canaries; computed
      where it is shown and the estimator has no interval of its own.
    unit: of scores times scale, a key.
    scale: makes scores easy to read.
    scores: of the canaries, for curves and figures; None where they were not kept.
  """

  threat_model: ThreatModel
  view: str
  num_observed: int
  num_unobserved: int
  is_calibrated: bool
  failed_checks: Facts
  rates: Rates | None
  agreement: Agreement | None
  estimates: tuple[Estimate, ...]
  analytic: Analytic | None = None
  notes: Facts = ()
  contradictions: Facts = ()
  joint_bound: Estimate | None = None
  bootstrap_interval: tuple[float, float] | None = None
  unit: str = 'score'
  scale: float = 1.0
  scores: Scores | None = dataclasses.field(
    default=None, repr=False, compare=False
  )

  @property
  def is_violated(self) -> bool:
    """Whether more is found than is allowed, whatever else has been tested."""
    bound = self.joint_bound
    return bound is not None and self.describe_excess(bound) == 'violation'

  @property
  def first(self) -> Estimate:
    """The estimate to believe first."""
    return self.estimates[0]

  @property
  def first_with_interval(self) -> Estimate:
    """The first estimate with a 90 % interval, if there is one.

    Marked as rejected where it is not calibrated.
    """
    first = dataclasses.replace(
      self.first, interval=self.first.interval or self.bootstrap_interval
    )
    return first if self.is_calibrated else mark_rejected(first)

  def describe_excess(self, estimate: Estimate) -> upper_bounds.Excess | None:
    """As `upper_bounds.describe_excess`, of one of the estimates."""
    interval, error = self.first.interval, 0.0
    if interval is not None:
      error = (interval[1] - interval[0]) / 2
    return upper_bounds.describe_excess(estimate, self.analytic, error=error)

  @property
  def bounds(self) -> tuple[Estimate, ...]:
    """Confidence bounds, the pre-declared one first."""
    return list_bounds(self.estimates)

  def find(self, method: str) -> Estimate | None:
    """The estimate by a method; None if there is none."""
    return next((e for e in self.estimates if e.method == method), None)


class Headline(NamedTuple):
  """The one number of an audit: a bound that the design chose, and its estimate.

  An audit has several bounds for each attacker, and the largest of them is not a
  bound. Which one is reported follows from who the attackers are and from how
  canaries were included, before any score is computed; docs/estimates.md says which
  and why.

  Attributes:
    attack: of the strongest attacker that has scores.
    bound: its pre-declared lower bound.
    point: its point estimate, with floor and interval; None where tests contradict
      it.
  """

  attack: AttackResult
  bound: Estimate
  point: Estimate | None


class Audit(NamedTuple):
  """What an audit found.

  Attributes:
    attacks: of each attacker, in the order in which they were given.
    is_simultaneous: lower bounds hold all together, not each by itself.
  """

  attacks: tuple[AttackResult, ...]
  is_simultaneous: bool = False

  @property
  def by_strength(self) -> tuple[AttackResult, ...]:
    """From the weakest attacker to the strongest, as `sort_by_strength` ranks them."""
    order = sort_by_strength(attack.threat_model for attack in self.attacks)
    return tuple(
      sorted(self.attacks, key=lambda a: order.index(a.threat_model))
    )

  @property
  def headline(self) -> Headline | None:
    """The bound to report; None if the strongest attacker has none.

    Nothing is known of external scores that could calibrate an estimate; theirs is
    part of the headline unless a test speaks against it.
    """
    if not self.attacks or not self.by_strength[-1].bounds:
      return None
    strongest = self.by_strength[-1]
    is_external = strongest.threat_model == EXTERNAL
    # Of an order no law can be fitted, and an estimate by thresholds is too low.
    is_order = any(note.key == 'order_only' for note in strongest.notes)
    is_shown = strongest.is_calibrated or (
      is_external and not strongest.failed_checks and not is_order
    )
    point = dataclasses.replace(
      strongest.first,
      interval=strongest.first.interval or strongest.bootstrap_interval,
    )
    return Headline(strongest, strongest.bounds[0], point if is_shown else None)

  @property
  def significance_of_one(self) -> float:
    """The level of each test by which an audit may speak against its run.

    Of each attacker these are its pre-declared bound, the interval of its first
    estimate and its agreement with norms. Together they speak against a right run
    with a chance of `SIGNIFICANCE` at most.
    """
    num = sum(
      bool(attack.bounds)
      + (attack.first.interval is not None)
      + (attack.agreement is not None)
      for attack in self.attacks
    )
    return SIGNIFICANCE / max(num, 1)

  def to_frame(self) -> Any:
    """Every estimate of every attacker as a `pandas.DataFrame`, in the order shown.

    Of each it has the attacker's key and what `Estimate` has, with the ends of the
    interval as low and high; mu, of the Gaussian mechanism with that ε at δ; floor, the
    95 % point of what the estimator reports when nothing leaks; and analytic, the ε that
    the mechanism allows this attacker. The extra 'reports' installs pandas.
    """
    with extras.explain_missing():
      import pandas as pd
    rows = []
    for attack in self.attacks:
      for estimate in (attack.first_with_interval, *attack.estimates[1:]):
        epsilon = float(estimate.epsilon)
        low, high = estimate.interval or (None, None)
        rows.append(
          {
            'attacker': attack.threat_model.key,
            'method': estimate.method,
            'kind': estimate.kind,
            'epsilon': epsilon,
            'delta': estimate.delta,
            'mu': tradeoff.mu_of_epsilon(epsilon, estimate.delta),
            'confidence': estimate.confidence,
            'low': low,
            'high': high,
            'floor': estimate.floor and estimate.floor.q95,
            'p_value': estimate.p_value,
            'analytic': attack.analytic and attack.analytic.epsilon,
            'assumes': tuple(map(str, estimate.assumes)),
            'is_rejected': estimate.is_rejected,
          }
        )
    return pd.DataFrame(rows)

  def find(self, threat_model: ThreatModel) -> AttackResult | None:
    """What was found about an attacker; None if there are no scores for it."""
    return next(
      (a for a in self.attacks if a.threat_model == threat_model), None
    )

  def find_first(self, threat_model: ThreatModel) -> Estimate | None:
    """The `first_with_interval` of an attacker; None as in `find`."""
    attack = self.find(threat_model)
    return attack and attack.first_with_interval


def list_bounds(estimates: Iterable[Estimate]) -> tuple[Estimate, ...]:
  """The confidence bounds among estimates, in their order."""
  return tuple(e for e in estimates if e.kind == 'confidence_bound')
