"""The entries of the leaderboard: estimators of this package and of others.

An entry of your own is in a file with a list `ENTRIES` of `Entry`:
`python -m benchmarks.bounds.leaderboard --add=FILE`.
"""

from collections.abc import Callable
import functools
import importlib.metadata
import pathlib
import runpy
from typing import NamedTuple

from jax_privacy import auditing
import numpy as np
import privacy_estimates

from benchmarks.bounds import exceedance
from benchmarks.bounds.score_sets import DELTA
from epe_jax.epsilon import lower_bounds, registry, threshold
from epe_jax.epsilon.types import Assumption, Scores

SIGNIFICANCE = 0.05
# Methods that take many seconds per set.
_SLOW = {('epsilon_one_run_fdp', 'multisplit')}


class Entry(NamedTuple):
  """One estimator.

  Attributes:
    name: of the estimator.
    origin: the package, with its version.
    estimate: scores -> ε at `score_sets.DELTA`; of a bound, with `SIGNIFICANCE`.
    is_bound: whether it may exceed the true ε in `SIGNIFICANCE` of audits at most.
    assumes: its assumptions on scores or mechanism, in words.
  """

  name: str
  origin: str
  estimate: Callable[[Scores], float]
  is_bound: bool
  assumes: str = ''


def list_entries(more: str | None = None) -> list[Entry]:
  """All entries: of this package, of others, and of a file."""
  entries = [*map(_enter_ours, _OURS), *_enter_jax_privacy()]
  entries += _enter_privacy_estimates()
  if more is not None:
    added = runpy.run_path(str(pathlib.Path(more))).get('ENTRIES')
    if not added:
      raise ValueError(f'{more} has no list ENTRIES; give it one of `Entry`.')
    entries += added
  return entries


_OURS: tuple[exceedance.Estimator, ...] = (
  *exceedance.NO_BOUNDS,
  *exceedance.FIXED,
  *exceedance.FAIR_COINS,
  registry.FITTED,
  registry.NULL_STD,
  registry.COUNTED,
)


def _enter_ours(estimator: exceedance.Estimator) -> Entry:
  # Its name and kind are those of its estimate, for scores that no test rejects.
  grid = np.linspace(-2, 2, 40)
  tried = estimator(Scores(grid + 1, grid, design='coin_flip'), delta=DELTA)
  assumed = {
    'independence': Assumption.INDEPENDENT in tried.assumes,
    'a shape': not tried.is_shape_free,
  }
  keywords = getattr(estimator, 'keywords', {})
  std = keywords.get('std')
  return Entry(
    tried.method if std is None else f'{tried.method}, std {std}',
    'epe_jax',
    lambda scores: float(estimator(scores, delta=DELTA).epsilon),
    is_bound=tried.kind == 'confidence_bound',
    assumes=', '.join(name for name, is_so in assumed.items() if is_so),
  )


def _enter_jax_privacy() -> list[Entry]:
  origin = f'jax-privacy {importlib.metadata.version("jax-privacy")}'
  named = {
    'all': auditing.Bonferroni(),
    'split': auditing.Split(seed=0),
    'multisplit': auditing.MultiSplit(seed=0),
  }

  def call(scores: Scores, method: str, *args, **settings) -> float:
    auditor = auditing.CanaryScoreAuditor(scores.observed, scores.unobserved)
    return float(np.max(getattr(auditor, method)(*args, **settings)))

  def enter(name, method, strategy, assumes):
    estimate = lambda scores: call(
      scores, method, SIGNIFICANCE, DELTA, threshold_strategy=strategy
    )
    return Entry(f'{method}, {name}', origin, estimate, True, assumes)

  methods = {
    'epsilon_clopper_pearson': 'independence',
    'epsilon_one_run': '',
    'epsilon_one_run_fdp': 'a shape',
  }
  made = [
    enter(name, method, strategy, assumes)
    for method, assumes in methods.items()
    for name, strategy in named.items()
    if (method, name) not in _SLOW
  ]
  gdp = lambda scores: call(scores, 'epsilon_from_gdp', SIGNIFICANCE, DELTA)
  raw = lambda scores: call(scores, 'epsilon_raw_counts', delta=DELTA)
  return [
    *made,
    Entry('epsilon_from_gdp', origin, gdp, True, 'independence, a shape'),
    Entry('epsilon_raw_counts', origin, raw, False, 'independence'),
  ]


def _enter_privacy_estimates() -> list[Entry]:
  """Its bounds from counts at one threshold, chosen on one half of the canaries.

  Its joint densities take seconds per set and are left out.
  """
  version = importlib.metadata.version('privacy-estimates')

  def estimate(scores: Scores, method: str) -> float:
    choose, rest = lower_bounds.Split(seed=0).partition(scores)
    pooled = np.concatenate([choose.observed, choose.unobserved])
    tpr = threshold.count_at_least(choose.observed, pooled)
    fpr = threshold.count_at_least(choose.unobserved, pooled)
    gain = tpr / choose.observed.size - fpr / choose.unobserved.size
    best = pooled[np.argmax(gain)]
    tp = int(np.sum(rest.observed >= best))
    fp = int(np.sum(rest.unobserved >= best))
    fn, tn = rest.observed.size - tp, rest.unobserved.size - fp
    counts = privacy_estimates.AttackResults(FN=fn, FP=fp, TN=tn, TP=tp)
    return float(
      privacy_estimates.compute_eps_lo(counts, DELTA, SIGNIFICANCE, method)
    )

  return [
    Entry(
      f'compute_eps_lo, {method}',
      f'privacy-estimates {version}',
      functools.partial(estimate, method=method),
      is_bound,
      'independence',
    )
    for method, is_bound in (('beta', True), ('jeffreys', False))
  ]
