"""What the numbers of an audit mean, in sentences, and how to print them."""

from collections.abc import Mapping
import math
from typing import Any

from epe_jax.audit import effective_dimension, threat_models
from epe_jax.epsilon.types import Assumption

Row = Mapping[str, Any]

NAMES = {
  threat_models.FINAL: 'final model',
  threat_models.CHANGE: 'change of the model',
  threat_models.MAXIMUM: 'maximum over rounds',
  threat_models.LIKELIHOOD: 'likelihood over rounds',
  threat_models.OWN: 'own round',
  threat_models.REMOVED: 'own round, others removed',
}
"""What tables and figures call all readings, from who knows least on."""

_ATTACKERS = {
  threat_models.FINAL: 'An attacker who sees only the final model',
  threat_models.CHANGE: 'An attacker who sees the initial and the final model',
  threat_models.OWN: (
    'An attacker who sees what every round releases and knows when a person '
    'took part'
  ),
  threat_models.REMOVED: (
    'An attacker who also knows the updates of all others and removes them'
  ),
}
# Differences of fewer standard errors are not worth a word.
_NOTABLE = 2.0

_UNKNOWN_SHIFT = 'by how much taking part moves a score is not known here'

NOT_AUDITED = (
  'Not audited: no canaries took part, so nothing was measured of what this run '
  'tells of anyone.'
)


def narrate(result: Mapping[str, Any]) -> list[str]:
  """What the estimates mean, for a reader who is no statistician.

  Args:
    result: what result.json holds.

  Returns:
    A paragraph for each attacker, then what the numbers do not say.
  """
  if not is_audited(result):
    return [NOT_AUDITED, *_caveats(result)]
  said = [_headline(result)] if result['headline'] else []
  for statistic, who in _ATTACKERS.items():
    row = first_estimate(result, statistic)
    if row is not None:
      said.append(f'{who}: {_of_attacker(result, row)}')
  if (
    first_estimate(result, threat_models.MAXIMUM) is not None
    and result['rounds'] > 1
  ):
    said.append(_maximum(result))
  doubt = effective_dimension.warn_if_low(effective_dimension_of(result))
  return said + ([doubt] if doubt else []) + _caveats(result)


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
  return any(row['method'] == 'one_run' for row in result['estimates'])


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

  >>> small(1e-05), format_delta(8.2e-07)
  ('1e-5', '8.2e-7')
  """
  digits, _, power = f'{delta:.1e}'.partition('e')
  return f'{digits.removesuffix(".0")}e{int(power)}'


def find_estimate(
  result: Mapping[str, Any], statistic: str, method: str
) -> Row | None:
  """The estimate that a run made; None if it made no such one."""
  for row in result['estimates']:
    if (row['statistic'], row['method']) == (statistic, method):
      return row
  return None


def first_estimate(result: Mapping[str, Any], statistic: str) -> Row | None:
  """The estimate of an attacker to believe first; None without such one."""
  for row in result['estimates']:
    if row['statistic'] == statistic:
      return row
  return None


def find_reading(result: Mapping[str, Any], statistic: str) -> Row:
  """What is to be known of an attacker's scores besides the estimates."""
  return next(r for r in result['readings'] if r['statistic'] == statistic)


def describe_kind(row: Row) -> str:
  """What an estimate is worth, in a few words.

  >>> describe_kind({'kind': 'confidence bound', 'confidence': 0.95,
  ...       'is_shape_free': True})
  'lower bound, 95 %'
  """
  if row['kind'] == 'point estimate':
    return 'point estimate'
  parts = ['credible'] if row['kind'] == 'credible bound' else []
  if not row['is_shape_free']:
    parts.append(f'if {_SHAPES[_shape(row)]}')
  name = ' '.join(parts) or 'lower bound'
  return f'{name}, {100 * row["confidence"]:.4g} %'


def format_interval(row: Row) -> str | None:
  """The interval of an estimate, if it has one."""
  if row['interval'] is None:
    return None
  low, high = map(format_number, row['interval'])
  return f'{low} to {high}'


def format_floor(row: Row) -> str | None:
  """5 to 95 % of what the estimator reports when nothing leaks, if known."""
  if row['floor_quantiles'] is None:
    return None
  low, high = (format_number(row['floor_quantiles'][q]) for q in ('5', '95'))
  return f'{low} to {high}'


_SHAPES = {
  Assumption.GAUSSIAN_SCORES: 'Gaussian',
  Assumption.GAUSSIAN_CURVE: 'f Gaussian',
  Assumption.FAMILY: 'of the family',
}


def _shape(row: Row) -> Assumption:
  """The shape that an estimate assumes."""
  return next(shape for shape in _SHAPES if shape in row['assumes'])


def _headline(result: Mapping[str, Any]) -> str:
  """The one bound that was chosen before looking, and what of the others."""
  row, rows = result['headline'], result['estimates']
  who = _ATTACKERS[row['statistic']].removeprefix('An attacker ')
  level = f'{100 * row["confidence"]:g} %'
  text = (
    f'The lower bound of this report: ε ≥ {format_number(row["epsilon"])} at δ = '
    f'{format_delta(row["delta"])}, with {level} confidence and without assuming a '
    f'shape of scores or mechanism, for an attacker {who}. Which bound this is '
    'was fixed by the design and not by the scores.'
  )
  others = sum(r['kind'] == 'confidence bound' for r in rows) - 1
  if others > 0:
    text += (
      f' The {others} others hold at {level} each and not all together: to '
      'choose the largest of them is no bound.'
    )
  return text


def _of_attacker(result: Mapping[str, Any], row: Row) -> str:
  """ε of an attacker, how it compares, and what it lets one guess."""
  about, epsilon = find_reading(result, row['statistic']), float(row['epsilon'])
  if math.isnan(epsilon):
    return 'no ε could be estimated.'
  text = f'ε ≈ {format_number(epsilon)} at δ = {format_delta(row["delta"])}'
  if is_within_floor(row):
    return (
      f'{text}. This is not distinguishable from no leakage at all: {format_floor(row)} '
      'is what this estimator reports in 9 of 10 audits when nothing leaks.'
    )
  extra = []
  if between := format_interval(row):
    extra.append(f'90 % interval {between}')
  if reported := format_floor(row):
    extra.append(f'when nothing leaks this estimator reports {reported}')
  text += f' ({"; ".join(extra)}).' if extra else '.'
  if not about['calibrated']:
    text += f' Not calibrated: {"; ".join(about["doubts"]) or _UNKNOWN_SHIFT}.'
  exposed = find_estimate(result, row['statistic'], 'most_exposed')
  if exposed is not None:
    text += (
      f' That is of a canary of a random round; of the one that shows most, '
      f'ε ≈ {format_number(exposed["epsilon"])}.'
    )
  if about['rates'] is not None and about['calibrated']:
    text += _guesses(about['rates'])
  return text + _compared(result, row, about)


def _guesses(rates: Mapping[str, Any]) -> str:
  """How well the attack itself guesses who took part."""
  right = _about(rates['accuracy'])
  some, few = _about(rates['tpr']['0.01']), _about(rates['tpr']['0.001'])
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


def _compared(
  result: Mapping[str, Any], row: Row, about: Mapping[str, Any]
) -> str:
  """Whether an estimate agrees with norms, and with the analytic ε."""
  text, limit = '', analytic_epsilon(result)
  if row['statistic'] == threat_models.REMOVED and limit == math.inf:
    return (
      ' Without noise nothing is left but the canary itself, and the analytic ε '
      'is infinite too.'
    )
  if agreement := about['agreement']:
    errors, p = float(agreement['standard_errors']), agreement['p_value']
    by = f'{abs(errors):.1f} standard errors (p = {float(p):.2g})'
    if row['statistic'] == threat_models.REMOVED:
      text = (
        f' This is the attacker of the analytic ε, {format_number(limit)}: the shift of '
        f'the scores differs from the one it implies by {by}'
      )
    else:
      text = (
        f' From the norms of rounds ε = {format_number(agreement["epsilon"])} is to be '
        f'expected: the shift of the scores differs by {by}'
      )
    if abs(errors) > _NOTABLE:
      text += ', so the run may not do what is assumed of it'
    text += '.'
  beyond = _standard_errors_above(row, limit)
  if beyond > _NOTABLE:
    text += (
      f' The estimate exceeds the analytic ε of {format_number(limit)}, which the true '
      f'ε cannot, by {beyond:.1f} standard errors.'
    )
  return text


def _standard_errors_above(row: Row, limit: float) -> float:
  """By how many standard errors an estimate exceeds a limit; 0 if unknown."""
  if row['interval'] is None or not math.isfinite(limit):
    return 0.0
  low, high = map(float, row['interval'])
  # A two-sided interval of 90 %.
  error = (high - low) / (2 * 1.6449)
  return (float(row['epsilon']) - limit) / error if error > 0 else 0.0


def _about(share: float | str) -> str:
  """A share for people; nothing is certain that was estimated.

  >>> [_about(x) for x in (0.672, 0.9871, 0.99999)]
  ['about 67 %', 'about 98.7 %', 'more than 99.9 %']
  """
  x = float(share)
  if x >= 0.9995:
    return 'more than 99.9 %'
  if x < 0.0005:
    return 'less than 0.1 %'
  return f'about {100 * x:.{0 if 0.1 <= x < 0.985 else 1}f} %'


def _maximum(result: Mapping[str, Any]) -> str:
  """ε of the paper's attacker, and why not to believe two fitted Gaussians."""
  row = first_estimate(result, threat_models.MAXIMUM)
  fitted = find_estimate(result, threat_models.MAXIMUM, 'two_gaussian_fitted')
  assert row is not None
  text = (
    'An attacker who sees what every round releases but does not know when '
    'anyone took part, and looks at the largest cosine: '
  )
  if row['method'] == 'maximum_over_rounds':
    text += f'ε ≈ {format_number(row["epsilon"])} by the law of a maximum'
    if is_within_floor(row):
      text += (
        ', which is not distinguishable from no leakage at all (when nothing '
        f'leaks it gives {format_floor(row)} in 9 of 10 audits)'
      )
    text += '. '
  doubts = find_reading(result, threat_models.MAXIMUM)['doubts']
  if doubts:
    text += f'Not calibrated: {"; ".join(doubts)}. '
  if fitted is None:
    return text.rstrip()
  text += (
    f"The paper's two fitted Gaussians give {format_number(fitted['epsilon'])}"
  )
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
  if float(fitted['epsilon']) > limit:
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
  rows = result['estimates']
  if any(row['method'] == 'eps_lo' for row in rows):
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
  if any(r['kind'] == 'confidence bound' for r in rows):
    said.append(
      'A lower bound at 95 % exceeds the true ε in at most 5 % of audits, if '
      'canaries score independently; how far below the truth it is, it does not '
      'say. A bound "if Gaussian" holds only if scores are: tests see departures '
      'from that only when they are large (docs/coverage.md).'
    )
  if any(r['kind'] == 'credible bound' for r in rows):
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


def is_within_floor(row: Row) -> bool:
  """Whether the estimator reports as much in 9 of 10 audits without leakage."""
  quantiles = row['floor_quantiles']
  return quantiles is not None and float(row['epsilon']) <= float(
    quantiles['95']
  )
