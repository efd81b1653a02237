"""Audits as JSON keeps them, and back."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

from epe_jax._version import __version__
from epe_jax.accounting import Allocation, Analytic, Mixture
from epe_jax.audit import threat_models
from epe_jax.audit.attack_results import (
  FPRS,
  Agreement,
  AttackResult,
  Audit,
  Headline,
  Rates,
)
from epe_jax.audit.threat_models import ThreatModel
from epe_jax.epsilon.types import Assumption, Estimate, Floor
from epe_jax.fact import facts_from_json, facts_to_json


def to_json(audit: Audit) -> dict[str, Any]:
  """Lists, dicts, strings and numbers; some numbers may not be finite."""
  headline = audit.headline
  bound = headline and headline.bound
  return {
    'version': __version__,
    'attacks': [_attack_to_json(attack, bound) for attack in audit.attacks],
    'headline': headline and _headline_to_json(headline),
    'is_simultaneous': audit.is_simultaneous,
  }


def from_json(values: Mapping[str, Any]) -> Audit:
  """The audit that `to_json` wrote; numbers that are not finite as strings.

  Raises:
    KeyError: a field is missing.
  """
  attacks = tuple(map(_attack_from_json, values['attacks']))
  return Audit(attacks, bool(values['is_simultaneous']))


def analytic_to_json(analytic: Analytic) -> dict[str, Any]:
  """An analytic ε, with the law of its mechanism if that is known."""
  law = analytic.law
  return analytic._asdict() | {
    'assumes': facts_to_json(analytic.assumes),
    'law': law and law._asdict(),
  }


def analytic_from_json(values: Mapping[str, Any]) -> Analytic:
  """The analytic ε that `analytic_to_json` wrote, among other fields.

  Raises:
    KeyError: a field is missing.
  """
  law = values['law']
  if law is not None and 'shifts' in law:
    law = Mixture(tuple(law['shifts']), tuple(law['weights']))
  elif law is not None:
    law = Allocation(**law)
  return Analytic(
    float(values['epsilon']),
    facts_from_json(values['assumes']),
    values['kind'],
    bool(values['is_gaussian']),
    law,
  )


def _headline_to_json(headline: Headline) -> dict[str, Any]:
  """The bound, its attacker and its point estimate."""
  attack, bound, point = headline
  return estimate_to_json(bound) | {
    'threat_model': attack.threat_model.key,
    'num_observed': attack.num_observed,
    'num_unobserved': attack.num_unobserved,
    'point_estimate': point and estimate_to_json(point),
  }


def _attack_to_json(
  attack: AttackResult, headline: Estimate | None
) -> dict[str, Any]:
  tpr = attack.rates and {
    f'{fpr:g}': rate for fpr, rate in zip(FPRS, attack.rates.tpr)
  }
  model = attack.threat_model
  # What the author of an attacker says of it; of those of this package, readers know.
  words = {} if threat_models.find(model.key) else model.to_json()
  fields = {name: x for name, x in vars(attack).items() if name != 'scores'}
  return fields | {
    **{name: x for name, x in words.items() if name != 'key'},
    'threat_model': model.key,
    'failed_checks': facts_to_json(attack.failed_checks),
    'notes': facts_to_json(attack.notes),
    'contradictions': facts_to_json(attack.contradictions),
    'rates': attack.rates and {'accuracy': attack.rates.accuracy, 'tpr': tpr},
    'agreement': attack.agreement and attack.agreement._asdict(),
    'analytic': attack.analytic and analytic_to_json(attack.analytic),
    'estimates': [
      estimate_to_json(estimate)
      | {
        'excess': attack.describe_excess(estimate),
        'is_headline': estimate is headline,
      }
      for estimate in attack.estimates
    ],
    'joint_bound': attack.joint_bound and estimate_to_json(attack.joint_bound),
    'bootstrap_interval': attack.bootstrap_interval
    and list(attack.bootstrap_interval),
  }


def estimate_to_json(estimate: Estimate) -> dict[str, Any]:
  """The fields of an estimate."""
  return dataclasses.asdict(estimate) | {
    'assumes': [str(assumption) for assumption in estimate.assumes],
    'is_shape_free': estimate.is_shape_free,
    'floor': estimate.floor and estimate.floor._asdict(),
    'interval': estimate.interval and list(estimate.interval),
  }


def _attack_from_json(values: Mapping[str, Any]) -> AttackResult:
  rates, agreement = values['rates'], values['agreement']
  analytic, joint = values['analytic'], values['joint_bound']
  return AttackResult(
    threat_model=threat_models.find(values['threat_model'])
    or ThreatModel.from_json({**values, 'key': values['threat_model']}),
    sees=values['sees'],
    num_observed=values['num_observed'],
    num_unobserved=values['num_unobserved'],
    is_calibrated=values['is_calibrated'],
    failed_checks=facts_from_json(values['failed_checks']),
    rates=rates
    and Rates(
      float(rates['accuracy']),
      tuple(float(rates['tpr'][f'{fpr:g}']) for fpr in FPRS),
    ),
    agreement=agreement
    and Agreement(**{name: float(x) for name, x in agreement.items()}),
    estimates=tuple(map(estimate_from_json, values['estimates'])),
    analytic=analytic and analytic_from_json(analytic),
    notes=facts_from_json(values['notes']),
    contradictions=facts_from_json(values['contradictions']),
    joint_bound=joint and estimate_from_json(joint),
    bootstrap_interval=_interval_from_json(values['bootstrap_interval']),
    unit=values['unit'],
    scale=float(values['scale']),
  )


def estimate_from_json(values: Mapping[str, Any]) -> Estimate:
  """The estimate that `estimate_to_json` wrote; raises a KeyError if a field is missing."""
  floor, interval = values['floor'], values['interval']
  return Estimate(
    epsilon=float(values['epsilon']),
    delta=values['delta'],
    method=values['method'],
    confidence=values['confidence'],
    kind=values['kind'],
    assumes=tuple(map(Assumption, values['assumes'])),
    floor=floor and Floor(**{name: float(x) for name, x in floor.items()}),
    interval=_interval_from_json(interval),
    p_value=values['p_value'],
    is_rejected=bool(values['is_rejected']),
  )


def _interval_from_json(
  values: Sequence[float | str] | None,
) -> tuple[float, float] | None:
  return None if values is None else (float(values[0]), float(values[1]))
