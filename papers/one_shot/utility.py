"""What canaries cost: accuracy with them and without, at each noise level."""

from collections.abc import Callable, Mapping, Sequence
import statistics
from typing import Any

from matplotlib import figure

from epe_jax.experiment.sweeps import sweep_points
from epe_jax.report import tables
from epe_jax.report.figures import style
from papers import grid, item, reported

_REPORTED = reported.Reported('papers.one_shot')
# Evaluations whose mean is the steadier accuracy of a run.
_LAST = 3


def equalize_steps(points: Sequence[sweep_points.Point]) -> None:
  """Lets runs without canaries take no larger steps than those with them.

  A sum is divided by the clients and canaries that are expected in a round, so that
  an equal server rate takes smaller steps with canaries. Server rates are changed.
  """
  divisors = [
    c.clients_per_round
    + c.canaries.observed * c.canaries.repetitions / c.rounds
    for c in (point.config for point in points)
  ]
  for point, divisor in zip(points, divisors):
    point.config.server.learning_rate *= divisor / max(divisors)


def make_utility(runs: Sequence[grid.Run], *, name: str) -> item.Product:
  """Makes the table and figure of runs that differ in their canaries alone.

  Args:
    runs: for each noise level one without canaries and one with.
    name: of the paper's table in reported.json.
  """
  pairs = _pair_up(runs, lambda run: run.result.accuracy)
  means = _pair_up(runs, average_last_accuracies)
  body = []
  for noise, (without, with_canaries) in pairs.items():
    paper = _REPORTED.find_row(name, noise=noise) or {}
    body.append(
      [
        f'{noise:g}',
        _format_accuracy(without, paper.get('without')),
        _format_accuracy(with_canaries, paper.get('with')),
        _format_difference(without, with_canaries),
        *map(_format_accuracy, means[noise]),
        _format_difference(*means[noise]),
      ]
    )
  table = tables.Table(
    'Accuracy without canaries and with',
    [
      'noise',
      'without',
      'with',
      'difference in points',
      *(f'{x}, last {_LAST}' for x in ('without', 'with', 'difference')),
    ],
    body,
    [
      *_REPORTED.explain_brackets(name),
      'One run each, with the same seed. Another seed also changes the '
      'accuracy.',
      f'Last {_LAST}: the mean of that many evaluations at the end, as large steps let '
      'the accuracy of a single one swing.',
      'Without canaries the server rate is smaller by their share of a round, so '
      'that both take equal steps.',
      *grid.describe_runs(runs),
    ],
  )
  return item.Product([table], {'accuracy': _draw_utility(pairs)})


def average_last_accuracies(run: grid.Run) -> float:
  """The mean accuracy of the last evaluations of a run, in [0, 1].

  Reddi et al. 2020, "Adaptive Federated Optimization", compare such means.
  """
  accuracies = [
    line['test_accuracy']
    for line in run.history
    if line['round'] and 'test_accuracy' in line
  ]
  return statistics.fmean(accuracies[-_LAST:])


def _pair_up(
  runs: Sequence[grid.Run], measure: Callable[[grid.Run], float]
) -> dict[float, tuple[float, ...]]:
  """Noise multiplier -> a measure of the run without canaries and of that with."""
  return {
    run.noise: tuple(
      measure(other)
      for is_audited in (False, True)
      for other in runs
      if other.noise == run.noise and other.is_audited == is_audited
    )
    for run in runs
  }


def _format_difference(without: float, with_canaries: float) -> str:
  return f'{100 * (with_canaries - without):+.2f}'


def _format_accuracy(share: float, paper: float | None = None) -> str:
  """An accuracy, followed by the paper's in brackets if it has one."""
  text = f'{100 * share:.2f} %'
  return text if paper is None else f'{text} ({100 * paper:.1f} %)'


def _draw_utility(pairs: Mapping[float, tuple[float, ...]]) -> figure.Figure:
  """Draws two points for each noise level, which should coincide."""
  fig, (axes,) = style.make_panels(1, height=4.0)
  styles: dict[str, dict[str, Any]] = {
    'without canaries': dict(marker='o', color=style.BLUE, mfc='white', ms=11),
    'with': dict(marker='D', color=style.TOOK_PART, ms=6),
  }
  for i, (label, options) in enumerate(styles.items()):
    values = [100 * pair[i] for pair in pairs.values()]
    axes.plot(range(len(pairs)), values, ls='', mew=2, label=label, **options)
  axes.set_xticks(range(len(pairs)), [f'{noise:g}' for noise in pairs])
  axes.set_xlim(-0.5, len(pairs) - 0.5)
  highest = 100 * max(max(pair) for pair in pairs.values())
  axes.set_ylim(0, 1.15 * highest or 1)
  axes.set(xlabel='noise multiplier z', ylabel='test accuracy, %')
  style.draw_legend(fig, [axes])
  return fig
