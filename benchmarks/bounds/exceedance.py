"""How often each bound exceeds the truth, and the median bound.

Audits of mechanisms with known ε are simulated: of pairs of laws (`laws`), and of whole
runs, whose canaries share vectors, rounds and noise (`run_audits`).
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import hashlib
from typing import Any, Literal, NamedTuple

from jaxtyping import Float
import numpy as np

from benchmarks import study
from benchmarks.bounds import laws, run_audits
from benchmarks.bounds.laws import Audits
from epe_jax.dpsgd import credible, uncorrected
from epe_jax.epsilon import (
  gaussian_bound,
  known_shifts,
  lower_bounds,
  one_run_bounds,
  paper_estimates,
  tradeoff,
)
from epe_jax.epsilon.types import (
  Assumption,
  Estimate,
  NullLaw,
  Scores,
  Sphere,
  Unknown,
)

_SPLIT = lower_bounds.Split(seed=0)
_BOUND = lower_bounds.lower_bound
Estimator = Callable[..., Estimate]


class Case(NamedTuple):
  """Simulated audits of one mechanism.

  Attributes:
    kind: of a Gaussian mechanism, of a coupled one, of another law, or of runs.
    what: its ε; the name of a law of `laws.others`; or the directions of canaries
      and the dimension of runs, as 'sphere 1000'.
    num: observed canaries, and as many unobserved, >= 8.
    delta: in (0, 1).
    audits: simulations, >= 1.
    seed: of the simulated scores.
  """

  kind: Literal['Gaussian', 'coupled', 'other', 'runs']
  what: str
  num: int
  delta: float
  audits: int
  seed: int


class Row(NamedTuple):
  """The results of a bound at one true ε."""

  method: str
  title: str  # Of the table.
  law: str
  null: str  # 'exact', 'empirical', or 'coins' for audits by fair coins.
  kind: str  # As `Estimate.kind`, if no audit rejected anything.
  assumes_shape: bool  # Of scores or mechanism.
  assumes_independence: bool  # Of the scores of canaries.
  holds: bool  # Whether what it assumes is so.
  epsilon: float  # The truth.
  audits: int
  stated: float | None  # Share of audits that may exceed; None: no guarantee.
  exceeded: float  # Share of audits whose bound exceeds the truth.
  beyond: float | None  # Share that exceeds the ε of scores, if less.
  median: float  # Of the bounds.
  passed: float | None  # Share of audits whose scores pass for Gaussian.


NO_BOUNDS: tuple[Estimator, ...] = (
  paper_estimates.eps_lo,
  functools.partial(_BOUND, multiplicity=uncorrected.Uncorrected()),
)
"""Numbers that are mistaken for bounds but guarantee nothing."""

FAIR_COINS: tuple[Estimator, ...] = (
  one_run_bounds.one_run,
  one_run_bounds.one_run_gdp,
  one_run_bounds.one_run_independent,
  functools.partial(
    one_run_bounds.one_run_independent,
    family=tradeoff.gaussian_family(),
  ),
)
"""Bounds for canaries that independent coins with probability 1/2 include."""

FIXED: tuple[Estimator, ...] = (
  _BOUND,
  functools.partial(_BOUND, multiplicity=lower_bounds.Bonferroni()),
  functools.partial(_BOUND, multiplicity=_SPLIT),
  functools.partial(_BOUND, multiplicity=lower_bounds.Explicit((1.0, 2.0))),
  functools.partial(uncorrected.katz_estimate, multiplicity=_SPLIT),
  lower_bounds.gdp_bound,
  functools.partial(
    lower_bounds.gdp_bound, multiplicity=lower_bounds.Bonferroni()
  ),
  functools.partial(lower_bounds.gdp_bound, multiplicity=_SPLIT),
  functools.partial(
    lower_bounds.family_bound,
    family=tradeoff.gaussian_family()._replace(name='family'),
    multiplicity=_SPLIT,
  ),
  gaussian_bound.gaussian_lower_bound,
  functools.partial(gaussian_bound.gaussian_lower_bound, std='common'),
  functools.partial(credible.epsilon_credible, multiplicity=_SPLIT),
  functools.partial(credible.gdp_credible, multiplicity=_SPLIT),
)
"""Bounds for fixed numbers of canaries."""


def run_study(cases: Sequence[Case], **settings: Any) -> list[list[Row]]:
  """The rows of each case; settings are those of `study.run_simulations`."""
  simulations = []
  for case in cases:
    name = '_'.join(map(str, case)).replace(' ', '_').replace(',', '')
    measure = functools.partial(measure_case, case)
    simulations.append(study.Simulation(name, Row, measure))
  return study.run_simulations(simulations, **settings)


def measure_case(case: Case) -> list[Row]:
  """Simulates the audits of a case and counts, for every bound."""
  key = hashlib.sha256(repr(case[:4]).encode()).digest()[:8]
  rng = np.random.default_rng([case.seed, int.from_bytes(key, 'big')])
  if case.kind == 'runs':
    directions, dim = case.what.split()
    several = run_audits.simulate(
      rng, directions, int(dim), case.num, delta=case.delta, audits=case.audits
    )
  else:
    law = _find_law(case)
    several = [laws.simulate(rng, law, case.num, case.delta, case.audits)]
  return [row for audits in several for row in measure(audits)]


def measure(audits: Audits) -> list[Row]:
  """How every bound does on audits of one mechanism."""
  rows = []
  kinds: dict[str, NullLaw] = {'empirical': Unknown()}
  if audits.null != Unknown():
    kinds = {'exact': audits.null, **kinds}
  # The test of shape needs some variance.
  tiny = 1e-9 * np.arange(audits.fixed.observed.shape[-1])
  passed = gaussian_bound.gaussian_p_value(
    Scores(audits.fixed.observed + tiny, audits.fixed.unobserved + tiny)
  )
  share = float(np.mean(np.asarray(passed) >= 0.01))
  for null, law in kinds.items():
    scale = np.sqrt(law.dim) if isinstance(law, Sphere) else 1.0
    observed, unobserved = audits.fixed.observed, audits.fixed.unobserved
    scores = Scores(observed / scale, unobserved / scale, law)
    for bound in (*NO_BOUNDS, *FIXED):
      row = _of_bound(bound, scores, null, audits, scale)
      if row is not None:
        tests_shape = row.method.startswith('gaussian_lower_bound')
        rows.append(row._replace(passed=share) if tests_shape else row)
  if audits.shifted:
    null = 'empirical' if not audits.shifted[0].has_known_null else 'exact'
    bound = known_shifts.location_mixture_bound
    rows.append(_of_each(bound, audits.shifted, null, audits))
  for bound in FAIR_COINS:
    rows.append(_of_each(bound, audits.by_coins, 'coins', audits))
  return rows


def find_broken(row: Row) -> bool:
  """Whether a bound exceeded the truth more often than stated, beyond chance.

  Only where its assumptions hold: the shape of scores, independent canaries, or,
  for a credible bound, an average over truths that its prior draws.
  """
  if row.stated is None or not row.holds or row.kind == 'credible_bound':
    return False
  count = round(row.exceeded * row.audits)
  return study.fails_too_often(count, row.audits, row.stated)


def list_records(section: str, rows: Sequence[Row]) -> list[dict[str, str]]:
  """The rows as cells of a data file, whose first column is a part of the study."""

  def percent(share: float | None, digits: int = 1) -> str:
    return '' if share is None else f'{100 * share:.{digits}f}'

  records = []
  for row in rows:
    stated = (
      'no guarantee' if row.stated is None else f'{100 * row.stated:.0f} %'
    )
    record = {
      'study': section,
      'table': row.title,
      'law': row.law,
      'epsilon': f'{row.epsilon:.3g}',
      'bound': row.method,
      'null': row.null,
      'assumes': ', '.join(
        ['independence'] * row.assumes_independence
        + ['a shape'] * row.assumes_shape
      ),
      'may_exceed': stated + ' on average' * (row.kind == 'credible_bound'),
      'exceeded_percent': percent(row.exceeded),
      'median': f'{row.median:.2f}',
      'exceeded_scores_percent': percent(row.beyond),
      'gaussian_percent': percent(row.passed if row.law else None, 0),
      'broken': 'yes' if find_broken(row) else '',
    }
    records.append(record)
  return records


def _find_law(case: Case) -> laws.Law:
  if case.kind == 'other':
    return next(law for law in laws.others() if law.name == case.what)
  make = laws.gaussian if case.kind == 'Gaussian' else laws.coupled
  return make(float(case.what), case.delta)


def _of_bound(
  bound: Estimator, scores: Scores, null: str, audits: Audits, scale: float
) -> Row | None:
  """The results of a bound; None if it does not apply to such scores."""
  keywords = getattr(bound, 'keywords', {})
  function = getattr(bound, 'func', bound)
  if null == 'exact' and function is uncorrected.katz_estimate:
    return None
  strategy = keywords.get('multiplicity')
  if isinstance(strategy, lower_bounds.Explicit):
    given = lower_bounds.Explicit(tuple(t / scale for t in strategy.thresholds))
    bound = functools.partial(bound, multiplicity=given)
  # If one audit of a batch is rejected, the batch loses its confidence, so the
  # requested level is compared.
  kept = np.full(len(scores.observed), True)
  if function is gaussian_bound.gaussian_lower_bound:
    # It needs groups whose scores are not all equal.
    groups = [scores.observed, *[scores.unobserved] * (null != 'exact')]
    kept = np.all([np.ptp(group, axis=-1) > 0 for group in groups], axis=0)
  some = dataclasses.replace(
    scores, observed=scores.observed[kept], unobserved=scores.unobserved[kept]
  )
  estimate = bound(some, delta=audits.delta)
  # An audit that the estimator refuses has no bound.
  epsilons = np.zeros(len(kept))
  epsilons[kept] = estimate.epsilon
  row = _row(estimate, null, epsilons, audits)
  if keywords.get('std') == 'common':
    return row._replace(method=f'{row.method}_common_std')
  return row


def _of_each(
  bound: Estimator, scores: Sequence[Scores], null: str, audits: Audits
) -> Row:
  several = [bound(one, delta=audits.delta) for one in scores]
  epsilons = np.array([estimate.epsilon for estimate in several])
  return _row(several[0], null, epsilons, audits)


def _row(
  estimate: Estimate,
  null: str,
  bounds: Float[np.ndarray, ' audits'],
  audits: Audits,
) -> Row:
  method = estimate.method
  for ending in ('_null_rejected', '_rejected'):
    method = method.removesuffix(ending)
  no_promise = ('eps_lo', 'clopper_pearson_uncorrected', 'katz')
  assumes_shape = not estimate.is_shape_free
  assumes_independence = Assumption.INDEPENDENT in estimate.assumes
  has_shape = audits.has_gaussian_scores or (
    audits.has_gaussian_curve
    and Assumption.GAUSSIAN_SCORES not in estimate.assumes
  )
  # Rounding does not count.
  beyond = None
  if audits.epsilon_of_scores is not None:
    beyond = float(np.mean(bounds > audits.epsilon_of_scores + 1e-9))
  return Row(
    method=method,
    title=audits.title,
    law=audits.law,
    null=null,
    kind='credible_bound' if 'credible' in method else 'confidence_bound',
    assumes_shape=assumes_shape,
    assumes_independence=assumes_independence,
    holds=(not assumes_shape or has_shape)
    and (not assumes_independence or not audits.is_coupled),
    epsilon=audits.epsilon,
    audits=len(bounds),
    stated=None if method.startswith(no_promise) else 0.05,
    exceeded=float(np.mean(bounds > audits.epsilon + 1e-9)),
    beyond=beyond,
    median=float(np.median(bounds)),
    passed=None,
  )
