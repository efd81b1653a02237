"""The attackers of a run: the one list of them.

An attacker is a file here and an entry in `THREAT_MODELS`. Tables, figures and
comparisons follow this list, its order and the attributes of `ThreatModel`; a
user's own attackers follow it without an entry.
"""

from collections.abc import Iterable, Sequence

from epe_jax.audit.record import Record
from epe_jax.audit.threat_models.correlated_noise import DECORRELATED
from epe_jax.audit.threat_models.external import EXTERNAL
from epe_jax.audit.threat_models.final_model import CHANGE, FINAL
from epe_jax.audit.threat_models.likelihood import LIKELIHOOD
from epe_jax.audit.threat_models.maximum import MAXIMUM
from epe_jax.audit.threat_models.own_round import OWN
from epe_jax.audit.threat_models.residual import RESIDUAL
from epe_jax.audit.threat_models.threat_model import AttackScores, ThreatModel

OF_INDEPENDENT_NOISE = (FINAL, CHANGE, MAXIMUM, LIKELIHOOD, OWN, RESIDUAL)
"""The attackers of a run whose rounds have independent noise, in the same order."""

THREAT_MODELS = (*OF_INDEPENDENT_NOISE, DECORRELATED)
"""The attackers of a run, from the one who knows least to the one who knows most."""


def score_all(
  record: Record, threat_models: Sequence[ThreatModel] = THREAT_MODELS
) -> list[AttackScores]:
  """Scores the canaries of a run for each attacker, in the given order.

  The null law is exact for cosines with the final model; with the aggregate of the
  own round, if each canary took part once; and for inner products with the residual,
  in units of its noise. Elsewhere, and where the unobserved canaries reject it, the
  unobserved canaries supply the law; an attacker who needs it and has fewer than two
  is left out. The likelihood over rounds is left out where the cosine to expect of a
  canary is not known, and the final model where it is not shown. An unobserved canary
  is scored in the rounds that its coin assigned to it; without coins, in the rounds
  of another canary.

  Args:
    record: what attackers saw.
    threat_models: the attackers.
  """
  all_scores = (threat_model.score(record) for threat_model in threat_models)
  return [
    attack_scores for attack_scores in all_scores if attack_scores is not None
  ]


def sort_by_strength(threat_models: Iterable[ThreatModel]) -> list[ThreatModel]:
  """Attackers from the weakest to the strongest, each once.

  Those of `THREAT_MODELS` are the stronger the more they know. How strong another one
  is is not known: it comes last if it is declared to be the worst case, and first
  otherwise. Several such are in the order of their keys.
  """
  keys = [model.key for model in THREAT_MODELS]

  def rank(model: ThreatModel) -> tuple[int, str]:
    if model.key in keys:
      return keys.index(model.key), model.key
    return (len(keys) if model.is_worst_case else -1), model.key

  return sorted(dict.fromkeys(threat_models), key=rank)


def find(key: str) -> ThreatModel | None:
  """The attacker with a key; None if this package has none."""
  models = (*THREAT_MODELS, EXTERNAL)
  return next((model for model in models if model.key == key), None)
