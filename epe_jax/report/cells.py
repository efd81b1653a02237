"""Numbers and estimates as people read them, in cells of tables and sentences."""

from collections.abc import Callable, Iterable, Mapping
import math

from epe_jax.accounting import Analytic
from epe_jax.epsilon import registry, tradeoff
from epe_jax.epsilon.types import Assumption, Estimate

LOWER_BOUND, ESTIMATE, LIMIT = (
  'lower bound (95 %)',
  'estimate [90 % interval]',
  'limit',
)
"""Columns of ε: what holds with confidence, what is likely, and what is allowed."""

_SHAPES = {
  Assumption.GAUSSIAN_SCORES: 'Gaussian',
  Assumption.GAUSSIAN_CURVE: 'f Gaussian',
  Assumption.FAMILY: 'of the family',
}


def spell_key(key: str) -> str:
  """A key that reads as words.

  >>> spell_key('reproducible_simulation')
  'reproducible simulation'
  """
  return key.replace('_', ' ')


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


def format_epsilon(estimate: Estimate) -> str:
  """The ε of an estimate, as `format_number` has it."""
  return format_number(float(estimate.epsilon))


def format_mu(epsilon: float, delta: float) -> str:
  """μ of the Gaussian mechanism that has this ε at δ.

  >>> format_mu(4.3772, 1e-5)
  '1.00'
  """
  if math.isnan(epsilon):
    return format_number(math.nan)
  mu = tradeoff.mu_of_epsilon(float(epsilon), delta)
  # Nobody needs its digits.
  return f'{mu:.0e}' if 1e4 < mu < math.inf else format_number(mu)


def format_analytic(analytic: Analytic | None) -> str:
  """The ε that a mechanism allows an attacker; with ≈ if that is not a bound.

  >>> format_analytic(Analytic(1.156, (), 'expectation'))
  '≈ 1.16'
  """
  if analytic is None:
    return '-'
  epsilon = format_number(analytic.epsilon)
  return epsilon if analytic.kind == 'bound' else f'≈ {epsilon}'


def format_evidence(log_evidence: float) -> str:
  """Evidence against a claim, without digits that nobody needs.

  >>> format_evidence(1.0), format_evidence(265.2)
  ('2.72', '1e115')
  """
  if log_evidence < math.log(1e4):
    return format_number(math.exp(log_evidence))
  return f'1e{math.floor(log_evidence / math.log(10))}'


def format_errors(errors: float) -> str:
  """By how many standard errors something differs; one decimal suffices.

  >>> format_errors(4.25), format_errors(-9.56e23)
  ('4.2 standard errors', '-9.56e+23 standard errors')
  """
  is_large = abs(errors) >= 1000
  number = format_number(errors) if is_large else f'{errors:.1f}'
  return f'{number} standard errors'


def format_delta(delta: float) -> str:
  """δ as people write it.

  >>> format_delta(1e-05), format_delta(8.2e-07)
  ('1e-5', '8.2e-7')
  """
  digits, _, power = f'{delta:.1e}'.partition('e')
  return f'{digits.removesuffix(".0")}e{int(power)}'


def format_p_value(p_value: float) -> str:
  """A p-value, not of far in a tail, where limit laws and fitted formulas end.

  >>> format_p_value(0.0123), format_p_value(3.8e-24)
  ('p = 0.012', 'p < 1e-6')
  """
  return 'p < 1e-6' if p_value < 1e-6 else f'p = {p_value:.2g}'


def format_ratio(ratio: float) -> str:
  """A ratio, with as many digits as it takes to tell it from 1.

  >>> [format_ratio(x) for x in (0.4567, 0.99962, 1.0)]
  ['0.457', '0.9996', '1']
  """
  digits = 3
  while float(f'{ratio:.{digits}g}') == 1 != ratio:
    digits += 1
  return f'{ratio:.{digits}g}'


def format_percent(share: float | str) -> str:
  """A share in [0, 1] as a percentage.

  >>> format_percent(0.964)
  '96.4 %'
  """
  return f'{100 * float(share):.1f} %'


def format_share(share: float) -> str:
  """A share for a cell; nothing is certain that was estimated.

  >>> [format_share(x) for x in (0.672, 0.0312, 0.99999)]
  ['67.2 %', '3.1 %', '> 99.9 %']
  """
  if share >= 0.9995:
    return '> 99.9 %'
  return '< 0.1 %' if share < 0.0005 else format_percent(share)


def format_estimated_share(share: float) -> str:
  """A share for people; nothing is certain that was estimated.

  >>> [format_estimated_share(x) for x in (0.672, 0.9871, 0.99999)]
  ['about 67 %', 'about 98.7 %', 'more than 99.9 %']
  """
  if share >= 0.9995:
    return 'more than 99.9 %'
  if share < 0.0005:
    return 'less than 0.1 %'
  return f'about {100 * share:.{0 if 0.1 <= share < 0.985 else 1}f} %'


def format_interval(interval: tuple[float, float] | None) -> str | None:
  """The two limits of an interval; None if there is no interval."""
  if interval is None:
    return None
  low, high = map(format_number, interval)
  return f'{low} to {high}'


def format_range(low: float | str, high: float | str) -> str:
  """What lies between two numbers; one number if both read the same.

  >>> format_range(2.1, 33), format_range(2.1, 2.101)
  ('2.10 to 33.0', '2.10')
  """
  first, last = map(format_number, (low, high))
  return first if first == last else f'{first} to {last}'


def format_floor(estimate: Estimate) -> str | None:
  """5 to 95 % of what the estimator reports when nothing leaks; None without."""
  if estimate.floor is None:
    return None
  return format_interval((estimate.floor.q05, estimate.floor.q95))


def format_with_interval(estimate: Estimate | None) -> str:
  """ε and its interval in brackets, with a dagger where scores contradict it."""
  if estimate is None:
    return '-'
  text = format_epsilon(estimate)
  if estimate.interval is not None and math.isfinite(estimate.epsilon):
    text += f' [{", ".join(map(format_number, estimate.interval))}]'
  return f'{text} †' if estimate.is_rejected else text


def explain_rejected(cells: Iterable[str]) -> list[str]:
  """A note on what the dagger after an ε means, if any of the cells has one."""
  if not any('†' in cell for cell in cells):
    return []
  return [
    '† the scores contradict what the estimate assumes: take it for an order of '
    'magnitude.'
  ]


def describe_method(estimate: Estimate) -> str:
  """The estimator in a few words; the key of one that is not of this package."""
  entry = registry.find(estimate.method)
  if entry is None:
    return spell_key(estimate.method)
  return entry.labels[estimate.method]


def describe_kind(estimate: Estimate) -> str:
  """What an estimate is worth, in a few words.

  >>> describe_kind(Estimate(1.0, 1e-5, 'band', 0.95, 'confidence_bound'))
  'lower bound, 95 %'
  """
  if estimate.confidence is None:
    return 'estimate'
  parts = ['credible'] if estimate.kind == 'credible_bound' else []
  # Where inclusion is random, some bounds hold for canaries that leak together too.
  has_choice = {Assumption.COINS, Assumption.INDEPENDENT} <= {*estimate.assumes}
  conditions = ['independent'] if has_choice else []
  shapes = [x for shape, x in _SHAPES.items() if shape in estimate.assumes]
  if not (shapes or estimate.is_shape_free):
    shapes = ['of its shape']
  conditions += shapes
  if conditions:
    parts.append(f'if {" and ".join(conditions)}')
  name = ' '.join(parts) or 'lower bound'
  return f'{name}, {100 * estimate.confidence:.4g} %'


def format_rounds(num: int) -> str:
  """A number of rounds, as sentences have it.

  >>> format_rounds(1), format_rounds(2048)
  ('one round', '2,048 rounds')
  """
  return 'one round' if num == 1 else f'{num:,} rounds'


COLUMNS: Mapping[str, Callable[[Estimate], str]] = {
  'ε': format_epsilon,
  'μ': lambda estimate: format_mu(float(estimate.epsilon), estimate.delta),
  '90 % interval': lambda estimate: format_interval(estimate.interval) or '-',
  'floor 5-95 %': lambda estimate: format_floor(estimate) or '-',
  'kind': describe_kind,
}
"""Name of a column of a table of estimates -> what it shows of one."""
