"""What the numbers of an audit mean, in sentences, and how to print them."""

from collections.abc import Mapping
import math
from typing import Any

from epe_jax.audit import effective_dimension, threat_models
from epe_jax.audit.estimates import Attack, Audit, Rates
from epe_jax.epsilon.types import Assumption, Estimate

# Differences of fewer standard errors are not worth a word.
_NOTABLE = 2.0

_UNKNOWN_SHIFT = 'by how much taking part moves a score is not known here'

NOT_AUDITED = (
  'Not audited: no canaries took part, so nothing was measured of what this run '
  'tells of anyone.'
)


# The maximum has a paragraph of its own, and the likelihood is never calibrated.
_NOT_NARRATED = (threat_models.MAXIMUM, threat_models.LIKELIHOOD)


def narrate(result: Mapping[str, Any]) -> list[str]:
  """What the estimates mean, for a reader who is no statistician.

  Args:
    result: what result.json holds.

  Returns:
    A paragraph for each attacker, then what the numbers do not say.
  """
  if not is_audited(result):
    return [NOT_AUDITED, *_caveats(result)]
  audit = result['audit']
  said = [] if audit.headline is None else [_headline(audit)]
  said += [
    f'{attack.threat_model.who}: {_of_attacker(result, attack)}'
    for attack in audit.attacks
    if attack.threat_model not in _NOT_NARRATED
  ]
  maximum = audit.find(threat_models.MAXIMUM)
  if maximum is not None and result['rounds'] > 1:
    said.append(_maximum(result, maximum))
  doubt = effective_dimension.warn_if_low(effective_dimension_of(result))
  return said + ([doubt] if doubt else []) + _caveats(result)


def give_verdict(result: Mapping[str, Any]) -> list[str]:
  """Three sentences at most: what is certain, what is likely, what to doubt.

  Args:
    result: what result.json holds.
  """
  if not is_audited(result):
    return [NOT_AUDITED]
  audit, limit = result['audit'], analytic_epsilon(result)
  allowed = (
    'without noise there is no limit to it'
    if limit == math.inf
    else f'the analysis allows {format_number(limit)} at most'
  )
  said = []
  if audit.headline is not None:
    attack, bound = audit.headline
    said.append(
      f'With {100 * bound.confidence:g} % confidence ε ≥ '
      f'{format_number(float(bound.epsilon))} at δ = {format_delta(bound.delta)} '
      f'for {_who(attack)}; {allowed}.'
    )
  final = audit.find(threat_models.FINAL)
  if final is not None:
    said.append(_of_final_model(final))
  strongest = audit.attacks[-1]
  doubted = [a for a in audit.attacks if a.doubts]
  agreement = strongest.agreement
  if agreement is not None and abs(agreement.standard_errors) > _NOTABLE:
    said.append(
      'The strongest attack differs from what the analysis implies by '
      f'{abs(agreement.standard_errors):.1f} standard errors, so the run may not '
      'do what is assumed of it.'
    )
  elif doubted:
    names = ', '.join(attack.threat_model.name for attack in doubted)
    said.append(f'Tests contradict the estimates of: {names}.')
  elif agreement is not None:
    said.append(
      'The strongest attack finds what the analysis implies, within '
      f'{abs(agreement.standard_errors):.1f} standard errors.'
    )
  return said


def is_audited(result: Mapping[str, Any]) -> bool:
  """Whether there were canaries to audit the run with."""
  return result['num_observed'] > 0


def effective_dimension_of(
  result: Mapping[str, Any],
) -> Mapping[str, Any] | None:
  """What `effective_dimension.summarize` made; None if the run was not audited."""
  # Result files of before it was measured have no such field.
  return result.get('effective_dimension')


def analytic_epsilon(result: Mapping[str, Any]) -> float:
  """Analytic ε of a canary, or of a client where there are no canaries."""
  who = '' if is_audited(result) else 'clients_'
  return float(result[f'{who}analytic_epsilon'])


def is_coin_flip(result: Mapping[str, Any]) -> bool:
  """Whether each canary took part by a fair coin of its own."""
  return any(attack.find('one_run') for attack in result['audit'].attacks)


def format_number(value: float | str) -> str:
  """A number for people: two decimals below 10, none from 1000 on.

  >>> [format_number(x) for x in (0.304, 29.33, 45800.0, 'Infinity')]
  ['0.30', '29.3', '45,800', '∞']
  """
  x = float(value)
  if math.isnan(x):
    return 'undefined'
  if math.isinf(x):
    return '∞'
  if abs(x) < 10:
    return f'{x:.2f}'
  if abs(x) < 1000:
    return f'{x:.1f}'
  return f'{x:,.0f}' if abs(x) < 1e6 else f'{x:.2e}'


def format_delta(delta: float) -> str:
  """δ as people write it.

  >>> format_delta(1e-05), format_delta(8.2e-07)
  ('1e-5', '8.2e-7')
  """
  digits, _, power = f'{delta:.1e}'.partition('e')
  return f'{digits.removesuffix(".0")}e{int(power)}'


def describe_kind(estimate: Estimate) -> str:
  """What an estimate is worth, in a few words.

  >>> describe_kind(Estimate(1.0, 1e-5, 'band', 0.95, 'confidence bound'))
  'lower bound, 95 %'
  """
  if estimate.confidence is None:
    return 'point estimate'
  parts = ['credible'] if estimate.kind == 'credible bound' else []
  if not estimate.is_shape_free:
    parts.append(f'if {_SHAPES[_shape(estimate)]}')
  name = ' '.join(parts) or 'lower bound'
  return f'{name}, {100 * estimate.confidence:.4g} %'


def format_interval(interval: tuple[float, float] | None) -> str | None:
  """Two limits, if there are any."""
  if interval is None:
    return None
  low, high = map(format_number, interval)
  return f'{low} to {high}'


def format_floor(estimate: Estimate) -> str | None:
  """5 to 95 % of what the estimator reports when nothing leaks, if known."""
  if estimate.floor is None:
    return None
  return format_interval((estimate.floor.q05, estimate.floor.q95))


_SHAPES = {
  Assumption.GAUSSIAN_SCORES: 'Gaussian',
  Assumption.GAUSSIAN_CURVE: 'f Gaussian',
  Assumption.FAMILY: 'of the family',
}


def _shape(estimate: Estimate) -> Assumption:
  """The shape that an estimate assumes."""
  return next(shape for shape in _SHAPES if shape in estimate.assumes)


def _who(attack: Attack) -> str:
  """An attacker within a sentence."""
  return attack.threat_model.who.replace('An attacker', 'an attacker', 1)


def _of_final_model(attack: Attack) -> str:
  """What the model alone gives away."""
  first = attack.first
  text = f'The final model alone: ε ≈ {format_number(float(first.epsilon))}'
  if is_within_floor(first):
    return f'{text}, which is what is found where nothing leaks.'
  if not attack.is_calibrated:
    return f'{text}, which is not calibrated.'
  if attack.rates is None:
    return f'{text}.'
  return (
    f'{text}; at even odds it tells whether a person took part in '
    f'{_about(attack.rates.accuracy)} of cases.'
  )


def _headline(audit: Audit) -> str:
  """The one bound that was chosen before looking, and what of the others."""
  assert audit.headline is not None
  attack, bound = audit.headline
  assert bound.confidence is not None, 'bounds have one'
  level = f'{100 * bound.confidence:g} %'
  text = (
    f'The lower bound of this report: ε ≥ {format_number(float(bound.epsilon))} at δ = '
    f'{format_delta(bound.delta)}, with {level} confidence and without assuming a '
    f'shape of scores or mechanism, for {_who(attack)}. Which bound this is '
    'was fixed by the design and not by the scores.'
  )
  others = sum(len(one.bounds) for one in audit.attacks) - 1
  if others > 0:
    text += (
      f' The {others} others hold at {level} each and not all together: to '
      'choose the largest of them is no bound.'
    )
  return text


def _of_attacker(result: Mapping[str, Any], attack: Attack) -> str:
  """ε of an attacker, how it compares, and what it lets one guess."""
  first = attack.first
  if math.isnan(first.epsilon):
    return 'no ε could be estimated.'
  text = f'ε ≈ {format_number(float(first.epsilon))} at δ = {format_delta(first.delta)}'
  if is_within_floor(first):
    return (
      f'{text}. This is not distinguishable from no leakage at all: '
      f'{format_floor(first)} is what this estimator reports in 9 of 10 audits '
      'when nothing leaks.'
    )
  extra = []
  if between := format_interval(first.interval):
    extra.append(f'90 % interval {between}')
  if floor := format_floor(first):
    extra.append(f'when nothing leaks this estimator reports {floor}')
  text += f' ({"; ".join(extra)}).' if extra else '.'
  if not attack.is_calibrated:
    text += f' Not calibrated: {"; ".join(attack.doubts) or _UNKNOWN_SHIFT}.'
  exposed = attack.find('most_exposed')
  if exposed is not None:
    text += (
      f' That is of a canary of a random round; of the one that shows most, '
      f'ε ≈ {format_number(float(exposed.epsilon))}.'
    )
  if attack.rates is not None and attack.is_calibrated:
    text += _guesses(attack.rates)
  return text + _compared(result, attack)


def _guesses(rates: Rates) -> str:
  """How well the attack itself guesses who took part."""
  right, some, few = map(_about, (rates.accuracy, *rates.tpr))
  text = ' Of people who took part with a chance of 50 % this attack guesses '
  if right == some == few:
    return (
      f'{text}{right} right, and with one false alarm in 1,000 it finds as many of '
      'those who did.'
    )
  return (
    f'{text}{right} right; allowed one false alarm in 100 it finds {some} of those '
    f'who did, and one in 1,000, {few}.'
  )


def _compared(result: Mapping[str, Any], attack: Attack) -> str:
  """Whether an estimate agrees with norms, and with the analytic ε."""
  text, limit = '', analytic_epsilon(result)
  is_strongest = attack.threat_model.is_worst_case
  if is_strongest and limit == math.inf:
    return (
      ' Without noise nothing is left but the canary itself, and the analytic ε '
      'is infinite too.'
    )
  if attack.agreement is not None:
    expected, errors, p = attack.agreement
    by = f'{abs(errors):.1f} standard errors (p = {p:.2g})'
    if is_strongest:
      text = (
        f' This is the attacker of the analytic ε, {format_number(limit)}: the shift of '
        f'the scores differs from the one it implies by {by}'
      )
    else:
      text = (
        f' From the norms of rounds ε = {format_number(expected)} is to be '
        f'expected: the shift of the scores differs by {by}'
      )
    if abs(errors) > _NOTABLE:
      text += ', so the run may not do what is assumed of it'
    text += '.'
  beyond = _standard_errors_above(attack.first, limit)
  if beyond > _NOTABLE:
    text += (
      f' The estimate exceeds the analytic ε of {format_number(limit)}, which the '
      f'true ε cannot, by {beyond:.1f} standard errors.'
    )
  return text


def _standard_errors_above(estimate: Estimate, limit: float) -> float:
  """By how many standard errors an estimate exceeds a limit; 0 if unknown."""
  if estimate.interval is None or not math.isfinite(limit):
    return 0.0
  low, high = estimate.interval
  # A two-sided interval of 90 %.
  error = (high - low) / (2 * 1.6449)
  return (float(estimate.epsilon) - limit) / error if error > 0 else 0.0


def _about(share: float) -> str:
  """A share for people; nothing is certain that was estimated.

  >>> [_about(x) for x in (0.672, 0.9871, 0.99999)]
  ['about 67 %', 'about 98.7 %', 'more than 99.9 %']
  """
  if share >= 0.9995:
    return 'more than 99.9 %'
  if share < 0.0005:
    return 'less than 0.1 %'
  return f'about {100 * share:.{0 if 0.1 <= share < 0.985 else 1}f} %'


def _maximum(result: Mapping[str, Any], attack: Attack) -> str:
  """ε of the paper's attacker, and why not to believe two fitted Gaussians."""
  first, fitted = attack.first, attack.find('two_gaussian_fitted')
  text = (
    'An attacker who sees what every round releases but does not know when '
    'anyone took part, and looks at the largest cosine: '
  )
  if first.method == 'maximum_over_rounds':
    text += f'ε ≈ {format_number(float(first.epsilon))} by the law of a maximum'
    if is_within_floor(first):
      text += (
        ', which is not distinguishable from no leakage at all (when nothing '
        f'leaks it gives {format_floor(first)} in 9 of 10 audits)'
      )
    text += '. '
  if attack.doubts:
    text += f'Not calibrated: {"; ".join(attack.doubts)}. '
  if fitted is None:
    return text.rstrip()
  text += f"The paper's two fitted Gaussians give {format_number(float(fitted.epsilon))}"
  if is_within_floor(fitted):
    return text + (
      ', which is not distinguishable from no leakage at all: when nothing leaks '
      f'they give {format_floor(fitted)} in 9 of 10 audits.'
    )
  text += (
    f': this fit extrapolates, as the largest of {result["rounds"]:,} cosines '
    'varies less than one does, and ε is read from tails where no canary was.'
  )
  limit = analytic_epsilon(result)
  if fitted.epsilon > limit:
    text += (
      f' That exceeds the analytic ε of {format_number(limit)}, which the true ε '
      'cannot.'
    )
  return text


def _caveats(result: Mapping[str, Any]) -> list[str]:
  """What the numbers do not say."""
  if analytic_epsilon(result) == math.inf:
    limit = 'Without noise there is no limit: the analytic ε is infinite.'
  else:
    limit = (
      'Only the analytic ε limits every attack, as far as what it assumes '
      'holds.'
    )
  if is_audited(result):
    said = [
      'A point estimate is about one attack on canaries, which are updates of '
      'the full clip norm in random directions. It is no guarantee: another '
      f'attack may learn more. {limit}'
    ]
    clients = float(result['clients_analytic_epsilon'])
    if clients > analytic_epsilon(result):
      said.append(
        'Clients take part in more rounds than canaries do, so that a client may '
        'leak more than these estimates say: the analytic ε of one is '
        f'{format_number(clients)}.'
      )
  else:
    said = [limit]
  found = [e for attack in result['audit'].attacks for e in attack.estimates]
  if any(estimate.method == 'eps_lo' for estimate in found):
    said.append(
      'The paper calls its ε_lo a lower bound at 95 %. It is no bound: it takes '
      'the best of many thresholds and allows for the error of one, and so it can '
      'exceed the true ε in far more than 5 % of audits.'
    )
  if is_coin_flip(result):
    said.append(
      'Each canary took part by a fair coin of its own. The bounds from one run '
      'rest on these coins alone: neither the scores of canaries nor their law '
      'matter. The one for a Gaussian f also takes the mechanism for Gaussian, '
      'as that of this run is by design.'
    )
  if any(estimate.kind == 'confidence bound' for estimate in found):
    said.append(
      'A lower bound at 95 % exceeds the true ε in at most 5 % of audits, if '
      'canaries score independently; how far below the truth it is, it does not '
      'say. A bound "if Gaussian" holds only if scores are: tests see departures '
      'from that only when they are large (docs/coverage.md).'
    )
  if any(estimate.kind == 'credible bound' for estimate in found):
    said.append(
      'A credible bound holds as often as it says on average over what one '
      'believed before; at a given ε it may fail more often.'
    )
  if result['noise'] != 'fresh' and result['noise_multiplier'] > 0:
    said.append(
      f'The noise of this run is a {result["noise"]}: whoever has the seed can '
      'subtract it, so this model is for measuring and not for publishing.'
    )
  return said


def is_within_floor(estimate: Estimate) -> bool:
  """Whether the estimator reports as much in 9 of 10 audits without leakage."""
  floor = estimate.floor
  return floor is not None and float(estimate.epsilon) <= floor.q95
