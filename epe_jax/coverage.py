"""Do bounds keep their word? How often each exceeds the truth, and by how far.

Scores are those of the Gaussian mechanism, whose ε is known: N(0, 1) for a
canary that took no part, N(1/σ, 1) for one that did.
"""

from collections.abc import Callable, Iterable, Sequence
import functools
from typing import Any, NamedTuple

import dp_accounting
import numpy as np
from scipy import stats

from epe_jax.epsilon import (
  lower_bound,
  one_run,
  parametric,
  strategies,
  threshold,
  tradeoff,
)
from epe_jax.epsilon.types import Estimate, Scores

_DIM = 10**8  # So large that a cosine is Gaussian.
_BOUND = lower_bound.lower_bound


class Row(NamedTuple):
  """How a bound did at one true ε."""

  method: str
  null: str  # 'exact', 'empirical', or 'coins' for audits by fair coins.
  epsilon: float  # The truth.
  delta: float
  num_canaries: int  # Observed, and as many unobserved.
  audits: int
  stated: float | None  # Share of audits that may exceed; None: no promise.
  exceeded: float  # Share of audits whose bound exceeds the truth.
  median: float  # Of the bounds.


FIXED: tuple[Callable[..., Estimate], ...] = (
  threshold.eps_lo,
  functools.partial(_BOUND, multiplicity=strategies.Uncorrected()),
  _BOUND,
  functools.partial(_BOUND, multiplicity=strategies.Bonferroni()),
  functools.partial(_BOUND, multiplicity=strategies.Split(seed=0)),
  functools.partial(_BOUND, multiplicity=strategies.MultiSplit(seed=0)),
  tradeoff.gdp,
  parametric.gaussian_lower_bound,
)
"""Bounds from fixed numbers of canaries; the first two promise nothing."""

COINS: tuple[Callable[..., Estimate], ...] = (
  one_run.one_run,
  one_run.one_run_gdp,
)
"""Bounds that need canaries included by fair coins."""


def study(
  seed: int,
  *,
  epsilons: Sequence[float],
  deltas: Sequence[float],
  nums: Sequence[int],
  audits: int,
  progress: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> list[Row]:
  """Simulates audits of Gaussian mechanisms of known ε with every bound.

  Args:
    seed: of the simulated scores.
    epsilons: true values, >= 0.
    deltas: each in (0, 1).
    nums: numbers of observed canaries, >= 8.
    audits: simulations of each case, >= 1.
    progress: wraps the list of cases, as `tqdm.tqdm` does.
  """
  rows = []
  cases = [(e, d, k) for k in nums for d in deltas for e in epsilons]
  for case in progress(cases):
    epsilon, delta, num = case
    rng = np.random.default_rng((seed, cases.index(case)))
    shift = (
      1 / dp_accounting.get_sigma_gaussian(epsilon, delta)
      if (epsilon > 0)
      else 0.0
    )
    fixed = rng.standard_normal((2, audits, num))
    fixed[0] += shift
    settings = dict(epsilon=epsilon, delta=delta, num=num)
    for null, dim in (('exact', _DIM), ('empirical', None)):
      scale = 1.0 if dim is None else np.sqrt(dim)
      scores = Scores(fixed[0] / scale, fixed[1] / scale, dim)
      for bound in FIXED:
        # A batch in which one audit is not Gaussian loses its confidence, so
        # the level that was asked for is what is compared.
        estimate = bound(scores, delta=delta)
        bounds = np.asarray(estimate.epsilon)
        rows.append(_row(estimate, null, bounds, **settings))
    flipped = [_by_coins(rng, num, shift) for _ in range(audits)]
    for bound in COINS:
      several = [bound(scores, delta=delta) for scores in flipped]
      bounds = np.array([estimate.epsilon for estimate in several])
      rows.append(_row(several[0], 'coins', bounds, **settings))
  return rows


def broken(row: Row) -> bool:
  """Whether a bound exceeded the truth more often than it says.

  Chance alone would do this with a probability below 0.1 % in a case.
  """
  if row.stated is None:
    return False
  count = round(row.exceeded * row.audits)
  return bool(stats.binom.sf(count - 1, row.audits, row.stated) < 1e-3)


def markdown(rows: Sequence[Row]) -> str:
  """A table for each number of canaries and δ: exceeded share, median bound."""
  parts = []
  groups = dict.fromkeys((r.num_canaries, r.delta) for r in rows)
  for num, delta in groups:
    mine = [r for r in rows if (r.num_canaries, r.delta) == (num, delta)]
    truths = sorted({r.epsilon for r in mine})
    head = ['bound', 'null', 'may exceed', *(f'ε = {e:g}' for e in truths)]
    lines = [head, ['---'] * len(head)]
    for method, null in dict.fromkeys((r.method, r.null) for r in mine):
      cells = {
        r.epsilon: r for r in mine if (r.method, r.null) == (method, null)
      }
      stated = next(iter(cells.values())).stated
      lines.append(
        [
          method,
          null,
          'no promise' if stated is None else f'{100 * stated:.0f} %',
          *(
            f'{100 * cells[e].exceeded:.1f} %, {cells[e].median:.2f}'
            + (' **broken**' if broken(cells[e]) else '')
            for e in truths
          ),
        ]
      )
    table = '\n'.join(f'| {" | ".join(line)} |' for line in lines)
    parts.append(
      f'### {num:,} + {num:,} canaries, δ = {delta:g}, '
      f'{mine[0].audits:,} audits of each\n\n{table}'
    )
  return '\n\n'.join(parts)


def _row(
  estimate: Estimate,
  null: str,
  bounds: np.ndarray,
  *,
  epsilon: float,
  delta: float,
  num: int,
) -> Row:
  method = estimate.method.removesuffix('_rejected')
  promised = method not in ('eps_lo', 'clopper_pearson_uncorrected')
  return Row(
    method=method,
    null=null,
    epsilon=epsilon,
    delta=delta,
    num_canaries=num,
    audits=len(bounds),
    stated=0.05 if promised else None,
    exceeded=float(np.mean(bounds > epsilon)),
    median=float(np.median(bounds)),
  )


def _by_coins(rng: np.random.Generator, num: int, shift: float) -> Scores:
  took_part = rng.random(2 * num) < 0.5
  scores = rng.standard_normal(2 * num) + shift * took_part
  return Scores(scores[took_part], scores[~took_part], design='coin_flip')
