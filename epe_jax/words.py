"""What the numbers of an audit mean, in sentences, and how to print them."""

from collections.abc import Mapping
import math
from typing import Any

from epe_jax import spread

Row = Mapping[str, Any]

# Statistics that a calibrated estimate can be made from, and who reads them.
_ATTACKERS = {
  'cosine with the final model': 'An attacker who sees only the final model',
  'cosine with the change of the model': (
    'An attacker who sees the initial and the final model'
  ),
  'own round': (
    'An attacker who sees what every round releases and knows when a person '
    'took part'
  ),
}


NOT_AUDITED = (
  'Not audited: no canaries took part, so nothing was measured of what this run '
  'tells of anyone.'
)


def sentences(result: Mapping[str, Any]) -> list[str]:
  """What the estimates mean, for a reader who is no statistician.

  Args:
    result: what result.json holds.

  Returns:
    A paragraph for each attacker, then what the numbers do not say.
  """
  if not audited(result):
    return [NOT_AUDITED, *_caveats(result)]
  limit = analytic(result)
  said = []
  for statistic, who in _ATTACKERS.items():
    row = find(result, statistic, 'two_gaussian_null')
    if row is not None:
      said.append(f'{who}: {_calibrated(row, limit)}')
  known = find(result, 'own round, others removed', 'two_gaussian_null')
  if known is not None:
    said.append(_audited(known, limit))
  row = find(result, 'maximum over rounds', 'two_gaussian_fitted')
  if row is not None and result['rounds'] > 1:
    own = find(result, 'own round', 'two_gaussian_null')
    said.append(_maximum(row, result['rounds'], limit, own))
  doubt = spread.warning(spread_of(result))
  return said + ([doubt] if doubt else []) + _caveats(result)


def audited(result: Mapping[str, Any]) -> bool:
  """Whether there were canaries to audit the run with."""
  return result['num_observed'] > 0


def spread_of(result: Mapping[str, Any]) -> Mapping[str, Any] | None:
  """What `spread.of_run` made; None if the run was not audited."""
  # Result files of before it was measured have no such field.
  return result.get('effective_dimension')


def analytic(result: Mapping[str, Any]) -> float:
  """Analytic ε of a canary, or of a client where there are no canaries."""
  who = '' if audited(result) else 'clients_'
  return float(result[f'{who}analytic_epsilon'])


def by_coins(result: Mapping[str, Any]) -> bool:
  """Whether each canary took part by a fair coin of its own."""
  return any(row['method'] == 'one_run' for row in result['estimates'])


def number(value: float | str) -> str:
  """A number for people: two decimals below 10, none from 1000 on.

  >>> [number(x) for x in (0.304, 29.33, 45800.0, 'Infinity')]
  ['0.30', '29.3', '45,800', '∞']
  """
  x = float(value)
  if math.isnan(x):
    return 'undefined'
  if math.isinf(x):
    return '∞'
  if x < 10:
    return f'{x:.2f}'
  if x < 1000:
    return f'{x:.1f}'
  return f'{x:,.0f}' if x < 1e6 else f'{x:.2e}'


def small(delta: float) -> str:
  """δ as people write it.

  >>> small(1e-05), small(8.2e-07)
  ('1e-5', '8.2e-7')
  """
  digits, _, power = f'{delta:.1e}'.partition('e')
  return f'{digits.removesuffix(".0")}e{int(power)}'


def posterior(epsilon: float) -> float:
  """e^ε/(1 + e^ε): how sure ε lets a person become who was at 1/2 before.

  >>> round(posterior(1.2), 2)
  0.77
  """
  return 1 / (1 + math.exp(-epsilon))


def find(result: Mapping[str, Any], statistic: str, method: str) -> Row | None:
  """The estimate that a run made; None if it made no such one."""
  for row in result['estimates']:
    if (row['statistic'], row['method']) == (statistic, method):
      return row
  return None


def floor(row: Row) -> str | None:
  """5 to 95 % of what the estimator reports when nothing leaks, if known."""
  if row['floor_quantiles'] is None:
    return None
  low, high = (number(row['floor_quantiles'][q]) for q in ('5', '95'))
  return f'{low} to {high}'


def _calibrated(row: Row, analytic: float) -> str:
  """ε of a calibrated estimate, how it compares, and what it lets one infer."""
  epsilon = float(row['epsilon'])
  if math.isnan(epsilon):
    return 'no ε could be estimated.'
  text = f'ε ≈ {number(epsilon)} at δ = {small(row["delta"])}'
  reported = floor(row)
  if _inside_floor(row):
    return (
      f'{text}. This is not distinguishable from no leakage at all: {reported} is '
      'what this estimator reports in 9 of 10 audits when nothing leaks.'
    )
  if reported:
    text += f' ({reported} is what this estimator reports when nothing leaks)'
  text += (
    '. Suspecting at 50 % that someone took part, such an attacker could '
    f'become {_sure(epsilon)}, leaving aside the rare outcomes that δ allows.'
  )
  if epsilon > analytic:
    text += (
      f' It exceeds the analytic ε of {number(analytic)}, which the true ε '
      'cannot: this is chance, or the run does not do what the analytic ε '
      'assumes.'
    )
  return text


def _audited(row: Row, analytic: float) -> str:
  """What the attacker of the analytic ε found: an audit of the code itself."""
  who = (
    'An attacker who also knows the updates of all other clients and removes '
    f'them: ε ≈ {number(row["epsilon"])}.'
  )
  if analytic == math.inf:
    return (
      f'{who} Without noise the analytic ε is infinite; only other canaries in '
      'the round and the number of parameters limit what is measured.'
    )
  return (
    f'{who} This is the attacker that the analytic '
    f'ε of {number(analytic)} assumes, so that the two should agree: it audits '
    'clipping and noise themselves.'
  )


def _sure(epsilon: float) -> str:
  sure = posterior(epsilon)
  if epsilon == math.inf:
    return 'certain'
  if sure >= 0.9995:
    return 'practically certain (more than 99.9 % sure)'
  decimals = 1 if sure >= 0.985 else 0
  return f'at most {100 * sure:.{decimals}f} % sure'


def _maximum(row: Row, rounds: int, analytic: float, own: Row | None) -> str:
  """ε of the paper's attacker, and why not to take it literally."""
  epsilon = float(row['epsilon'])
  text = (
    'An attacker who sees what every round releases but does not know when '
    f'anyone took part: ε ≈ {number(epsilon)} by two fitted Gaussians. '
  )
  if _inside_floor(row):
    return text + (
      f'This is not distinguishable from no leakage at all: {floor(row)} is '
      'what the fit reports in 9 of 10 audits when nothing leaks.'
    )
  text += (
    f'This fit extrapolates: the largest of {rounds:,} cosines varies less '
    'than one does, and ε is read from tails where no canary was. Take it for '
    'an order of magnitude at best.'
  )
  if epsilon > analytic:
    text += (
      f' Here it exceeds the analytic ε of {number(analytic)}, which the true '
      'ε cannot.'
    )
  elif own is not None and epsilon > float(own['epsilon']):
    text += (
      f' Here it exceeds the {number(own["epsilon"])} of the attacker who '
      'knows more, which the true ε cannot.'
    )
  return text


def _caveats(result: Mapping[str, Any]) -> list[str]:
  """What the numbers do not say."""
  if analytic(result) == math.inf:
    limit = 'Without noise there is no limit: the analytic ε is infinite.'
  else:
    limit = (
      'Only the analytic ε limits every attack, as far as what it assumes '
      'holds.'
    )
  if audited(result):
    said = [
      'A point estimate is about one attack on canaries, which are updates of '
      'the full clip norm in random directions. It is no guarantee: another '
      f'attack may learn more. {limit}'
    ]
    clients = float(result['clients_analytic_epsilon'])
    if clients > analytic(result):
      said.append(
        'Clients take part in more rounds than canaries do, so that a client may '
        'leak more than these estimates say: the analytic ε of one is '
        f'{number(clients)}.'
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
  if by_coins(result):
    said.append(
      'Each canary took part by a fair coin of its own. The bounds from one run '
      'rest on these coins alone: neither the scores of canaries nor their law '
      'matter. The one for a Gaussian f also takes the mechanism for Gaussian, '
      'as that of this run is by design.'
    )
  for level in sorted({r['confidence'] for r in rows} - {None}):
    said.append(
      f'A lower bound at {100 * level:g} % is below the true ε in at least '
      f'{100 * level:g} % of audits. How far below, it does not say.'
    )
  if result['noise'] != 'fresh' and result['noise_multiplier'] > 0:
    said.append(
      f'The noise of this run is a {result["noise"]}: whoever has the seed can '
      'subtract it, so this model is for measuring and not for publishing.'
    )
  return said


def _inside_floor(row: Row) -> bool:
  quantiles = row['floor_quantiles']
  return quantiles is not None and float(row['epsilon']) <= float(
    quantiles['95']
  )
