"""The one number of an audit: a bound that the design chose, and its estimate.

An audit has several bounds for each attacker, and the largest of them is no bound.
Which one is reported follows from who the attackers are and from how canaries were
included, before any score is seen; docs/headline.md says which and why.
"""

from typing import NamedTuple

from epe_jax.audit.evaluation import Attack, Audit
from epe_jax.audit.threat_models import EXTERNAL
from epe_jax.epsilon.types import Estimate


class Headline(NamedTuple):
  """What to report of an audit.

  Attributes:
    attack: of the strongest attacker that has scores.
    bound: its pre-declared lower bound.
    point: its point estimate, with its floor; None where tests contradict it.
  """

  attack: Attack
  bound: Estimate
  point: Estimate | None


def find_headline(audit: Audit) -> Headline | None:
  """The headline of an audit; None if no attacker has a bound.

  Of scores from elsewhere nothing is known that could calibrate an estimate; it is
  part of the headline unless a test speaks against it.

  Args:
    audit: what `audit.evaluate` or `evaluate_scores` returns.
  """
  if audit.headline is None:
    return None
  attack, bound = audit.headline
  is_external = attack.threat_model == EXTERNAL
  is_shown = attack.is_calibrated or (is_external and not attack.failed_checks)
  return Headline(attack, bound, attack.first if is_shown else None)
