"""What canaries cost: accuracy with them and without, at each noise level."""

from collections.abc import Mapping, Sequence

from matplotlib import figure

from epe_jax.experiment import sweep
from epe_jax.papers import item, reported
from epe_jax.papers.one_shot import grid
from epe_jax.report.figures import style
from epe_jax.text import tables

_REPORTED = reported.Reported('epe_jax.papers.one_shot')


def equalize_steps(points: Sequence[sweep.Point]) -> None:
  """Lets runs without canaries take no larger steps than those with them.

  A sum is divided by the clients and canaries that are expected in a round, so that
  an equal server rate takes smaller steps with canaries.

  Args:
    points: runs with canaries in each of `repetitions` periods, or without. Their
      server rates are changed.
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
  pairs = {
    run.noise: tuple(
      other.result.accuracy
      for is_audited in (False, True)
      for other in runs
      if other.noise == run.noise and other.is_audited == is_audited
    )
    for run in runs
  }
  body = []
  for noise, (without, with_canaries) in pairs.items():
    paper = _REPORTED.find_row(name, noise=noise) or {}
    body.append(
      [
        f'{noise:g}',
        _format_accuracy(without, paper.get('without')),
        _format_accuracy(with_canaries, paper.get('with')),
        f'{100 * (with_canaries - without):+.2f}',
      ]
    )
  table = tables.Table(
    'Accuracy without canaries and with',
    ['noise', 'without', 'with', 'difference in points'],
    body,
    [
      *_REPORTED.explain_brackets(name),
      'One run each, with the same seed. Another seed also changes the '
      'accuracy.',
      'Without canaries the server rate is smaller by their share of a round, so '
      'that both take equal steps.',
      *grid.describe_runs(runs),
    ],
  )
  return item.Product([table], {'accuracy': _draw_utility(pairs)})


def _format_accuracy(share: float, paper: float | None) -> str:
  """An accuracy, followed by the paper's in brackets if it has one."""
  text = f'{100 * share:.2f} %'
  return text if paper is None else f'{text} ({100 * paper:.1f} %)'


def _draw_utility(pairs: Mapping[float, tuple[float, ...]]) -> figure.Figure:
  """Draws two points for each noise level, which should coincide.

  Args:
    pairs: noise multiplier -> accuracy without and with canaries, in [0, 1].
  """
  fig, (axes,) = style.make_panels(1, height=4.0)
  styles = (
    ('without canaries', style.BLUE, 'o', 11),
    ('with', style.TOOK_PART, 'D', 6),
  )
  for i, (label, color, marker, size) in enumerate(styles):
    axes.plot(
      range(len(pairs)),
      [100 * pair[i] for pair in pairs.values()],
      marker,
      color=color,
      mfc='white' if i == 0 else color,
      mew=2,
      ms=size,
      label=label,
    )
  axes.set_xticks(range(len(pairs)), [f'{noise:g}' for noise in pairs])
  axes.set_xlim(-0.5, len(pairs) - 0.5)
  highest = 100 * max(max(pair) for pair in pairs.values())
  axes.set_ylim(0, 1.15 * highest or 1)
  axes.set(xlabel='noise multiplier z', ylabel='test accuracy, %')
  style.draw_legend(fig, [axes])
  return fig
