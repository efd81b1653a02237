"""What a finished audit looks like: three figures, drawn without pyplot.

Cosines are drawn in units of 1/√d, the standard deviation of a cosine with a
direction that took no part. The colours are Okabe and Ito's, told apart in
every common kind of colour blindness.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxtyping import Bool, Float
from matplotlib import axes as mpl_axes
from matplotlib import figure, ticker
import numpy as np
from scipy import stats

from epe_jax import readings, results
from epe_jax.epsilon import null

BLUE, VERMILLION = '#0072B2', '#D55E00'
_OBSERVED, _UNOBSERVED, _NULL = VERMILLION, BLUE, '#000000'
_SECOND, _BAND = '#009E73', '#E0E0E0'
# Up to here every score is drawn, above it a histogram is.
_FEW = 50


class Pair(NamedTuple):
  """One reading of the observed canaries and of the unobserved ones."""

  observed: Float[np.ndarray, ' n1']
  unobserved: Float[np.ndarray, ' n0']


def own_rounds(recorded: results.Recorded) -> Pair:
  """Cosines of all canaries in rounds of their own, lent to those with none.

  Unobserved canary j is read in the rounds of observed canary j mod n1, so that
  the two groups differ in nothing but in having taken part.

  Args:
    recorded: what a run kept; at least one canary is observed.

  Returns:
    The cosines, summed over the n rounds of a canary and divided by √n.
  """
  own = readings.own_round(
    recorded.trace, readings.lent(recorded.participation)
  )
  return Pair(own[recorded.observed], own[~recorded.observed])


def densities(recorded: results.Recorded) -> figure.Figure:
  """How far the canaries that took part stand out, for three attackers.

  The exact law of an unobserved canary is drawn where there is one: for the
  final model, and for a single round, but neither for a maximum nor for a sum
  over rounds, whose law depends on how the rounds correlate.

  Args:
    recorded: what a run kept; at least one canary is observed.

  Returns:
    Three panels: final model, own round, maximum over rounds.
  """
  scale = np.sqrt(recorded.dim)
  rounds = len(recorded.trace)
  once = bool(np.all(recorded.participation.sum(axis=0) <= 1))
  panels = (
    ('final model', _split(recorded.final, recorded.observed), True),
    ('own round' if once else 'own rounds', own_rounds(recorded), once),
    (
      f'maximum over {rounds:,} round{"s" if rounds > 1 else ""}',
      _split(readings.maximum(recorded.trace), recorded.observed),
      rounds == 1,
    ),
  )
  fig = figure.Figure(figsize=(12, 4.2), layout='constrained')
  all_axes = fig.subplots(1, 3)
  for axes, (title, pair, exact) in zip(all_axes, panels):
    axes.set_title(title)
    _density(axes, scale * pair.observed, _OBSERVED, 'took part')
    _density(axes, scale * pair.unobserved, _UNOBSERVED, 'took no part')
    if exact:
      _null_density(axes, recorded.dim)
    axes.set(xlabel='cosine, in units of 1/√d', ylabel='density')
    axes.set_ylim(bottom=0)
    axes.spines[['top', 'right']].set_visible(False)
  handles, labels = all_axes[0].get_legend_handles_labels()
  fig.legend(
    handles, labels, loc='outside lower center', ncols=3, frameon=False
  )
  return fig


def trace(recorded: results.Recorded) -> figure.Figure:
  """The cosines of one observed canary, and of one unobserved, round by round.

  The observed canary is the median one by its own rounds, a typical one. The
  band of ±2 holds 95 % of the cosines of a canary that took no part.

  Args:
    recorded: what a run kept; at least one canary is observed.

  Returns:
    A panel for each of the two; only the first if no canary is unobserved.
  """
  own = own_rounds(recorded).observed
  typical = np.argsort(own, kind='stable')[(len(own) - 1) // 2]
  chosen = [np.flatnonzero(recorded.observed)[typical]]
  chosen.extend(np.flatnonzero(~recorded.observed)[:1])
  fig = figure.Figure(figsize=(12, 4), layout='constrained')
  all_axes = fig.subplots(1, len(chosen), sharey=True, squeeze=False)[0]
  for axes, canary in zip(all_axes, chosen):
    _canary(axes, recorded, int(canary))
  all_axes[0].set_ylabel(f'cosine, in units of 1/√d, d = {recorded.dim:,}')
  handles, labels = all_axes[0].get_legend_handles_labels()
  fig.legend(
    handles, labels, loc='outside lower center', ncols=3, frameon=False
  )
  return fig


def accuracy(metrics: Sequence[Mapping[str, Any]]) -> figure.Figure:
  """Test accuracy, loss and clip norm over the rounds of a run.

  Args:
    metrics: the lines of metrics.jsonl.

  Returns:
    Three panels.
  """
  fig = figure.Figure(figsize=(12, 3.8), layout='constrained')
  left, middle, right = fig.subplots(1, 3)
  rounds, values = _column(metrics, 'test_accuracy')
  left.plot(rounds, 100 * values, 'o-', color=_UNOBSERVED, ms=4)
  left.set(title='test accuracy', ylabel='%', ylim=(0, 100))
  rounds, values = _column(metrics, 'loss')
  middle.plot(
    rounds, values, color=_SECOND, lw=1, label='clients, while training'
  )
  rounds, values = _column(metrics, 'test_loss')
  middle.plot(rounds, values, 'o-', color=_UNOBSERVED, ms=4, label='test')
  # One client that diverges for a round must not hide all the others.
  middle.set(title='loss', ylabel='loss per example', yscale='log')
  middle.yaxis.set_major_formatter('{x:g}')
  middle.yaxis.set_minor_locator(ticker.LogLocator(subs=(2, 5)))
  middle.yaxis.set_minor_formatter('{x:g}')
  middle.legend(frameon=False)
  rounds, values = _column(metrics, 'clip_norm')
  right.plot(rounds, values, color=_OBSERVED)
  right.set(title='clip norm S', ylabel='norm of an update')
  for axes in (left, middle, right):
    axes.set_xlabel('round')
    axes.xaxis.set_major_locator(_whole())
    axes.spines[['top', 'right']].set_visible(False)
    axes.grid(alpha=0.3)
  right.update_datalim([(0, 0)], updatex=False)
  right.autoscale_view()
  right.set_ylim(bottom=0)
  fig.suptitle(
    f'{_range(metrics, "clients")} clients and '
    f'{_range(metrics, "canaries")} canaries in a round',
    fontsize='medium',
  )
  return fig


def _split(
  scores: Float[np.ndarray, ' k'], observed: Bool[np.ndarray, ' k']
) -> Pair:
  return Pair(scores[observed], scores[~observed])


def _density(
  axes: mpl_axes.Axes,
  values: Float[np.ndarray, ' n'],
  color: str,
  label: str,
) -> None:
  """A kernel density estimate, over a histogram or over every score."""
  if not len(values):
    return
  label = f'{label}: n = {len(values):,}'
  if len(values) <= _FEW:
    axes.plot(values, np.zeros(len(values)), '|', color=color, ms=18, mew=1.5)
  else:
    axes.hist(values, 'auto', density=True, color=color, alpha=0.25)
  if np.ptp(values) == 0:
    # All scores are one point, which has no density but has a place.
    axes.axvline(values[0], color=color, label=label)
    return
  kernel = stats.gaussian_kde(values)
  margin = 3 * np.sqrt(kernel.covariance[0, 0])
  grid = np.linspace(values.min() - margin, values.max() + margin, 400)
  axes.plot(grid, kernel(grid), color=color, lw=2, label=label)


def _null_density(axes: mpl_axes.Axes, dim: int) -> None:
  # Up to four standard deviations, but inside [-1, 1], where cosines are.
  edge = min(4.0, 0.999 * np.sqrt(dim))
  grid = np.linspace(-edge, edge, 400)
  density = null.CosineNull(dim).pdf(grid / np.sqrt(dim)) / np.sqrt(dim)
  label = f'exact law for taking no part, d = {dim:,}'
  axes.plot(grid, density, color=_NULL, ls='--', lw=1.5, label=label)


def _canary(
  axes: mpl_axes.Axes, recorded: results.Recorded, canary: int
) -> None:
  cosines = np.sqrt(recorded.dim) * recorded.trace[:, canary]
  rounds = np.arange(1, len(cosines) + 1)
  own = recorded.participation[:, canary]
  color = _OBSERVED if recorded.observed[canary] else _UNOBSERVED
  axes.axhspan(
    -2, 2, color=_BAND, lw=0, label='±2: 95 % of canaries that took no part'
  )
  style = '.-' if len(rounds) <= 300 else '-'
  axes.plot(
    rounds, cosines, style, color=color, lw=0.9, ms=4, label='one round'
  )
  axes.plot(
    rounds[own],
    cosines[own],
    'D',
    color=_NULL,
    mfc='none',
    ms=9,
    mew=1.8,
    ls='none',
    label='a round it took part in',
  )
  if recorded.observed[canary]:
    group = f'median of {recorded.observed.sum():,} that took part'
  else:
    group = f'first of {np.sum(~recorded.observed):,} that took no part'
  axes.set_title(f'canary {canary}: {group}')
  axes.set_xlabel('round')
  axes.xaxis.set_major_locator(_whole())
  axes.spines[['top', 'right']].set_visible(False)


def _whole() -> ticker.Locator:
  return ticker.MaxNLocator(integer=True, steps=[1, 2, 5, 10])


def _column(
  metrics: Sequence[Mapping[str, Any]], name: str
) -> tuple[np.ndarray, np.ndarray]:
  """Rounds that have this number, and the number."""
  rows = [(row['round'], float(row[name])) for row in metrics if name in row]
  pairs = np.array(rows, dtype=np.float64).reshape(-1, 2)
  return pairs[:, 0], pairs[:, 1]


def _range(metrics: Sequence[Mapping[str, Any]], name: str) -> str:
  _, values = _column(metrics, name)
  if not len(values):
    return 'unknown numbers of'
  low, high = f'{values.min():,.0f}', f'{values.max():,.0f}'
  return low if low == high else f'{low} to {high}'
