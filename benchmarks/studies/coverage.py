"""Do bounds keep their word? How often each exceeds the truth, and by how far.

Scores are drawn from pairs of laws whose ε is known: those of the Gaussian
mechanism, N(0, 1) for a canary that took no part and N(1/σ, 1) for one that did,
others whose shape is not what a bound may assume, and those of a mechanism that errs
with all canaries of an audit together.
"""

from collections.abc import Callable, Iterable, Sequence
import functools
from typing import Any, NamedTuple

from jaxtyping import Bool, Float
import numpy as np
from scipy import optimize, special, stats

from epe_jax.audit import estimators
from epe_jax.epsilon import (
  bayes,
  parametric,
  strategies,
  threshold,
  threshold_bound,
  tradeoff_bound,
  tradeoff_curves,
)
from epe_jax.epsilon.types import Assumption, Estimate, Scores

_DIM = 10**8  # So large that a cosine is Gaussian.
_SPLIT, _SPLITS = strategies.Split(seed=0), strategies.MultiSplit(seed=0)
_BOUND = threshold_bound.lower_bound
Estimator = Callable[..., Estimate]


class Law(NamedTuple):
  """Scores of canaries that did not take part, and of some that did.

  Attributes:
    name: of the law.
    draw: (rng, shape) -> scores of canaries that took no part.
    moved: (rng, shape) -> scores of canaries that took part.
    epsilon: the true ε at a δ.
    is_gaussian: both are Gaussian of one spread.
    share: (rng, shape) -> log odds, if all canaries of an audit share theirs:
      each is told truly with probability 1/(1 + e^-|log odds|). None if canaries
      score independently.
  """

  name: str
  draw: Callable[[np.random.Generator, Any], Float[np.ndarray, '...']]
  moved: Callable[[np.random.Generator, Any], Float[np.ndarray, '...']]
  epsilon: Callable[[float], float]
  is_gaussian: bool = False
  share: (
    Callable[[np.random.Generator, Any], Float[np.ndarray, '...']] | None
  ) = None


class Row(NamedTuple):
  """How a bound did at one truth."""

  method: str
  law: str
  null: str  # 'exact', 'empirical', or 'coins' for audits by fair coins.
  kind: str  # As `Estimate.kind`, if no audit rejected anything.
  assumes_shape: bool  # Of scores or mechanism.
  assumes_independence: bool  # Of the scores of canaries.
  holds: bool  # Whether what it assumes is so.
  epsilon: float  # The truth.
  delta: float
  num_canaries: int  # Observed, and as many unobserved.
  audits: int
  stated: float | None  # Share of audits that may exceed; None: no promise.
  exceeded: float  # Share of audits whose bound exceeds the truth.
  median: float  # Of the bounds.
  passed: float | None  # Share of audits whose scores pass for Gaussian.


NO_BOUNDS: tuple[Estimator, ...] = (
  threshold.eps_lo,
  functools.partial(_BOUND, multiplicity=strategies.Uncorrected()),
)
"""What is taken for a bound and promises nothing."""

FIXED: tuple[Estimator, ...] = (
  _BOUND,
  functools.partial(_BOUND, multiplicity=strategies.Bonferroni()),
  functools.partial(_BOUND, multiplicity=_SPLIT),
  functools.partial(_BOUND, multiplicity=_SPLITS),
  functools.partial(_BOUND, multiplicity=strategies.Explicit((1.0, 2.0))),
  functools.partial(_BOUND, multiplicity=_SPLIT, interval='jeffreys'),
  functools.partial(_BOUND, multiplicity=_SPLIT, interval='katz'),
  tradeoff_bound.gdp_bound,
  functools.partial(
    tradeoff_bound.gdp_bound, multiplicity=strategies.Bonferroni()
  ),
  functools.partial(tradeoff_bound.gdp_bound, multiplicity=_SPLIT),
  functools.partial(tradeoff_bound.gdp_bound, multiplicity=_SPLITS),
  functools.partial(
    tradeoff_bound.family_bound,
    family=tradeoff_curves.gaussian_family()._replace(name='family'),
    multiplicity=_SPLIT,
  ),
  parametric.gaussian_lower_bound,
  functools.partial(parametric.gaussian_lower_bound, std='common'),
  functools.partial(bayes.epsilon_credible, multiplicity=_SPLIT),
  functools.partial(bayes.gdp_credible, multiplicity=_SPLIT),
)
"""Bounds from fixed numbers of canaries."""


def gaussian(epsilon: float, delta: float) -> Law:
  """The Gaussian mechanism of this ε at this δ.

  >>> law = gaussian(1.0, 1e-5)
  >>> round(law.epsilon(1e-5), 6)
  1.0
  """
  mu = tradeoff_curves.mu_of_epsilon(epsilon, delta)
  return Law(
    'Gaussian',
    lambda rng, shape: rng.standard_normal(shape),
    lambda rng, shape: rng.standard_normal(shape) + mu,
    lambda delta: float(tradeoff_curves.epsilon_gdp(mu, delta)),
    is_gaussian=True,
  )


def coupled(epsilon: float, delta: float) -> Law:
  """A mechanism of the same ε that errs with all canaries of an audit together.

  Whatever it tells of the others, what it tells of a canary is what the Gaussian
  mechanism tells: it is as private for each. Scores are log odds.
  """
  mu = tradeoff_curves.mu_of_epsilon(epsilon, delta)
  half = mu**2 / 2
  return Law(
    'coupled',
    lambda rng, shape: rng.normal(-half, mu, shape),
    lambda rng, shape: rng.normal(half, mu, shape),
    lambda delta: float(tradeoff_curves.epsilon_gdp(mu, delta)),
    share=lambda rng, shape: rng.normal(half, mu, shape),
  )


def shifted(name: str, law: Any, shift: float) -> Law:
  """A law of SciPy, and the same moved by `shift`; ε by integration."""
  return Law(
    name,
    lambda rng, shape: law.rvs(size=shape, random_state=rng),
    lambda rng, shape: law.rvs(size=shape, random_state=rng) + shift,
    lambda delta: _integrated(law.pdf, shift, delta),
  )


def log_losses(shift: float) -> Law:
  """Lognormal scores whose logarithms are shifted Gaussians: their ε is exact."""
  return Law(
    'lognormal',
    lambda rng, shape: rng.lognormal(0, 1, shape),
    lambda rng, shape: rng.lognormal(shift, 1, shape),
    lambda delta: float(tradeoff_curves.epsilon_gdp(shift, delta)),
  )


def randomised_response(epsilon: float) -> Law:
  """One bit, right with probability e^ε/(1 + e^ε)."""
  right = 1 / (1 + np.exp(-epsilon))
  return Law(
    'randomised response',
    lambda rng, shape: (rng.random(shape) >= right).astype(float),
    lambda rng, shape: (rng.random(shape) < right).astype(float),
    lambda delta: float(np.log((right - delta) / (1 - right))),
  )


def rounded(shift: float, step: float = 0.5) -> Law:
  """Shifted Gaussians rounded to multiples of a step; ε by summation."""
  far = np.ceil((15 + shift) / step)
  edges = (np.arange(-far, far) - 0.5) * step
  null, moved = (np.diff(stats.norm.cdf(edges - m)) for m in (0.0, shift))

  def snapped(mean):
    return lambda rng, shape: step * np.round(rng.normal(mean, 1, shape) / step)

  return Law(
    'rounded Gaussian',
    snapped(0.0),
    snapped(shift),
    lambda delta: _hockey_stick(null, moved, delta),
  )


def others() -> list[Law]:
  """Laws that are not Gaussian."""
  return [
    shifted('t, 3 degrees of freedom', stats.t(3), 2.0),
    shifted('t, 10 degrees of freedom', stats.t(10), 2.0),
    shifted('t, 20 degrees of freedom', stats.t(20), 2.0),
    shifted('logistic', stats.logistic(), 2.5),
    shifted('Laplace', stats.laplace(), 2.0),
    log_losses(1.0),
    rounded(2.0),
    randomised_response(2.0),
  ]


def run_study(
  seed: int,
  laws: Sequence[Law],
  *,
  deltas: Sequence[float],
  nums: Sequence[int],
  audits: int,
  progress: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> list[Row]:
  """Simulates audits of mechanisms of known ε with every bound.

  Args:
    seed: of the simulated scores.
    laws: of the scores.
    deltas: each in (0, 1).
    nums: numbers of observed canaries, >= 8.
    audits: simulations of each case, >= 1.
    progress: wraps the list of cases, as `tqdm.tqdm` does.
  """
  rows = []
  cases = [
    (law, d, k, i) for k in nums for d in deltas for i, law in enumerate(laws)
  ]
  for law, delta, num, i in progress(cases):
    rng = np.random.default_rng(
      np.random.SeedSequence(seed, spawn_key=(i, num, int(1e9 * delta)))
    )
    taken = np.tile(np.repeat([True, False], num), (audits, 1))
    drawn = draw_scores(law, rng, taken)
    observed, unobserved = drawn[:, :num], drawn[:, num:]
    settings = dict(law=law, delta=delta, num=num)
    nulls = (('exact', _DIM), ('empirical', None))
    for null, dim in nulls if law.is_gaussian else nulls[1:]:
      scale = 1.0 if dim is None else np.sqrt(dim)
      scores = Scores(observed / scale, unobserved / scale, dim)
      passed = np.asarray(parametric.gaussian_p_value(_spread(scores))) >= 0.01
      for bound in (*NO_BOUNDS, *FIXED):
        row = _of_bound(bound, scores, null, settings, scale)
        if row is not None:
          kept = passed if _tests_shape(row.method) else None
          rows.append(row if kept is None else row._replace(passed=kept.mean()))
    flipped = _by_coins(rng, (audits, 2 * num), law)
    for bound in estimators.FAIR_COINS:
      several = [bound(scores, delta=delta) for scores in flipped]
      bounds = np.array([estimate.epsilon for estimate in several])
      rows.append(_row(several[0], 'coins', bounds, **settings))
  return rows


def draw_scores(
  law: Law, rng: np.random.Generator, taken: Bool[np.ndarray, 'audits n']
) -> Float[np.ndarray, 'audits n']:
  """Draws the scores of audits.

  Args:
    law: of the scores.
    rng: source of the draws.
    taken: which canaries took part in each audit.
  """
  if law.share is None:
    shape = taken.shape
    return np.where(taken, law.moved(rng, shape), law.draw(rng, shape))
  log_odds = np.abs(law.share(rng, (len(taken), 1)))
  told = taken ^ (rng.random(taken.shape) >= special.expit(log_odds))
  # Distinct, in an order that says no more.
  return np.where(told, log_odds, -log_odds) + 1e-9 * rng.random(taken.shape)


def find_broken(row: Row) -> bool:
  """Whether a bound exceeded the truth more often than it says.

  Only where what it assumes holds: the shape of scores, independent canaries, or,
  for a credible bound, an average over truths that its prior draws. Chance alone
  would do this with a probability below 0.1 % in a case.
  """
  if row.stated is None or not row.holds or row.kind == 'credible bound':
    return False
  count = round(row.exceeded * row.audits)
  return bool(stats.binom.sf(count - 1, row.audits, row.stated) < 1e-3)


def format_markdown(rows: Sequence[Row]) -> str:
  """A table for each number of canaries and δ: exceeded share, median bound."""
  parts = []
  for num, delta in dict.fromkeys((r.num_canaries, r.delta) for r in rows):
    mine = [r for r in rows if (r.num_canaries, r.delta) == (num, delta)]
    parts.append(
      f'### {num:,} + {num:,} canaries, δ = {delta:g}, '
      f'{mine[0].audits:,} audits of each\n\n{_table(mine)}'
    )
  return '\n\n'.join(parts)


def _table(rows: Sequence[Row]) -> str:
  gaussian_only = all(row.law == 'Gaussian' for row in rows)

  def column(row: Row) -> str:
    truth = f'ε = {row.epsilon:.3g}'
    return truth if gaussian_only else f'{row.law}, {truth}'

  columns = list(dict.fromkeys(map(column, rows)))
  head = ['bound', 'null', 'assumes', 'may exceed', *columns]
  lines = [head, ['---'] * len(head)]
  for method, null in dict.fromkeys((r.method, r.null) for r in rows):
    cells = {column(r): r for r in rows if (r.method, r.null) == (method, null)}
    first = next(iter(cells.values()))
    lines.append(
      [
        method,
        null,
        _assumes(first),
        _promise(first),
        *(_cell(cells.get(name)) for name in columns),
      ]
    )
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def _assumes(row: Row) -> str:
  assumed = {
    'independence': row.assumes_independence,
    'a shape': row.assumes_shape,
  }
  return ', '.join(name for name, is_assumed in assumed.items() if is_assumed)


def _promise(row: Row) -> str:
  if row.stated is None:
    return 'no promise'
  level = f'{100 * row.stated:.0f} %'
  return f'{level} on average' if row.kind == 'credible bound' else level


def _cell(row: Row | None) -> str:
  if row is None:
    return ''
  text = f'{100 * row.exceeded:.1f} %, {row.median:.2f}'
  if row.passed is not None and row.law != 'Gaussian':
    text += f'; {100 * row.passed:.0f} % pass'
  return f'{text} **broken**' if find_broken(row) else text


def _of_bound(
  bound: Estimator,
  scores: Scores,
  null: str,
  settings: dict[str, Any],
  scale: float,
) -> Row | None:
  """How a bound does on audits; None if it is not for such scores."""
  keywords = getattr(bound, 'keywords', {})
  if null == 'exact' and keywords.get('interval') == 'katz':
    return None
  strategy = keywords.get('multiplicity')
  if isinstance(strategy, strategies.Explicit):
    given = strategies.Explicit(tuple(t / scale for t in strategy.thresholds))
    bound = functools.partial(bound, multiplicity=given)
  # A batch in which one audit is rejected loses its confidence, so the level that
  # was asked for is what is compared.
  estimate = bound(scores, delta=settings['delta'])
  return _row(estimate, null, np.asarray(estimate.epsilon), **settings)


def _spread(scores: Scores) -> Scores:
  """Scores that a test of shape takes: where all are equal it has no answer."""
  tiny = 1e-9 * np.arange(scores.observed.shape[-1])
  return Scores(scores.observed + tiny, scores.unobserved + tiny, scores.dim)


def _tests_shape(method: str) -> bool:
  return method.startswith('gaussian_lower_bound')


def _row(
  estimate: Estimate,
  null: str,
  bounds: Float[np.ndarray, ' audits'],
  *,
  law: Law,
  delta: float,
  num: int,
) -> Row:
  method = estimate.method
  for ending in ('_null_rejected', '_rejected'):
    method = method.removesuffix(ending)
  no_promise = ('eps_lo', 'clopper_pearson_uncorrected', 'jeffreys', 'katz')
  truth = law.epsilon(delta)
  credible = 'credible' in method
  assumes_shape = not estimate.is_shape_free
  assumes_independence = Assumption.INDEPENDENT in estimate.assumes
  # The trade-off curve of the coupled mechanism is Gaussian, its scores are not.
  has_gaussian_curve = (
    law.share is not None and Assumption.GAUSSIAN_SCORES not in estimate.assumes
  )
  return Row(
    method=method,
    law=law.name,
    null=null,
    kind='credible bound' if credible else 'confidence bound',
    assumes_shape=assumes_shape,
    assumes_independence=assumes_independence,
    holds=(not assumes_shape or law.is_gaussian or has_gaussian_curve)
    and (not assumes_independence or law.share is None),
    epsilon=truth,
    delta=delta,
    num_canaries=num,
    audits=len(bounds),
    stated=None if method.startswith(no_promise) else 0.05,
    # Rounding is no broken word.
    exceeded=float(np.mean(bounds > truth + 1e-9)),
    median=float(np.median(bounds)),
    passed=None,
  )


def _by_coins(
  rng: np.random.Generator, shape: tuple[int, int], law: Law
) -> list[Scores]:
  taken = rng.random(shape) < 0.5
  # Two at least of each kind, which coins give but once in 2^num.
  taken[:, :2], taken[:, -2:] = True, False
  return [
    Scores(scores[chosen], scores[~chosen], design='coin_flip')
    for scores, chosen in zip(draw_scores(law, rng, taken), taken)
  ]


def _integrated(
  density: Callable[[Float[np.ndarray, ' n']], Float[np.ndarray, ' n']],
  shift: float,
  delta: float,
) -> float:
  """ε between a density and the same moved by a shift, on a fine grid."""
  # Uneven, so that heavy tails are followed as far as δ needs.
  u = np.linspace(-12, 12, 200_001)
  x = np.sinh(u) + shift / 2
  step = np.gradient(x)
  return _hockey_stick(density(x) * step, density(x - shift) * step, delta)


def _hockey_stick(
  p: Float[np.ndarray, ' n'], q: Float[np.ndarray, ' n'], delta: float
) -> float:
  """ε at which both hockey-stick divergences of two masses are at most δ."""

  def excess(epsilon: float) -> float:
    grown = np.exp(epsilon)
    both = (np.maximum(a - grown * b, 0).sum() for a, b in ((p, q), (q, p)))
    return max(both) - delta

  if excess(0.0) <= 0:
    return 0.0
  return float(optimize.brentq(excess, 0.0, 100.0, xtol=1e-10))  # pyright: ignore
