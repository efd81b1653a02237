"""Accuracy with canaries and without."""

from collections.abc import Mapping

from matplotlib import figure

from epe_jax.report.figures import style


def draw_utility(pairs: Mapping[float, tuple[float, ...]]) -> figure.Figure:
  """Draws two points for each noise level, which should lie upon each other.

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
