"""Accuracy, loss and clip norm over the rounds of training."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import figure, ticker
import numpy as np

from epe_jax.report import cells
from epe_jax.report.figures import style


def draw_accuracy(metrics: Sequence[Mapping[str, Any]]) -> figure.Figure:
  """Draws test accuracy, loss and clip norm over the rounds of a run."""
  fig, (left, middle, right) = style.make_panels(3, height=3.6)
  rounds, values = _read_column(metrics, 'test_accuracy')
  left.plot(rounds, 100 * values, 'o-', color=style.BLUE, ms=4)
  # Small accuracies need an axis that ends below 100 %.
  top = min(100.0, max(1.0, 140 * float(np.nan_to_num(values).max(initial=0))))
  left.set(title='test accuracy', ylabel='%', ylim=(0, top))
  rounds, values = _read_column(metrics, 'loss')
  # Metrics of a run with fresh noise have no loss of clients.
  if values.size:
    middle.plot(
      rounds, values, color=style.GREEN, lw=1, label='clients, while training'
    )
  rounds, values = _read_column(metrics, 'test_loss')
  middle.plot(rounds, values, 'o-', color=style.BLUE, ms=4, label='test')
  # One client that diverges for a round must not hide all the others.
  middle.set(title='loss', ylabel='loss per example', yscale='log')
  middle.yaxis.set_major_formatter('{x:g}')
  middle.yaxis.set_minor_locator(ticker.LogLocator(subs=(2, 5)))
  middle.yaxis.set_minor_formatter('{x:g}')
  middle.legend(frameon=False)
  rounds, values = _read_column(metrics, 'clip_norm')
  right.plot(rounds, values, color=style.VERMILLION)
  right.set(title='clip norm S', ylabel='norm of an update')
  for axes in (left, middle, right):
    axes.set_xlabel('round')
    axes.xaxis.set_major_locator(style.make_round_locator())
    axes.grid(alpha=0.3)
  right.update_datalim([(0, 0)], updatex=False)
  right.autoscale_view()
  right.set_ylim(bottom=0)
  fig.suptitle(
    f'{_describe_accuracy(metrics)}\n{_format_range(metrics, "num_clients")} clients '
    f'and {_format_range(metrics, "num_canaries")} canaries in a round'
  )
  return fig


def _describe_accuracy(metrics: Sequence[Mapping[str, Any]]) -> str:
  """The last test accuracy, as a title."""
  rounds, values = _read_column(metrics, 'test_accuracy')
  if not len(values):
    return 'Test accuracy was not measured'
  accuracy = cells.format_percent(float(values[-1]))
  return f'Test accuracy {accuracy} after {rounds[-1]:,.0f} rounds'


def _read_column(
  metrics: Sequence[Mapping[str, Any]], name: str
) -> tuple[np.ndarray, np.ndarray]:
  """The rounds that have a value of this name, and their values."""
  rows = [(row['round'], float(row[name])) for row in metrics if name in row]
  pairs = np.array(rows, dtype=np.float64).reshape(-1, 2)
  return pairs[:, 0], pairs[:, 1]


def _format_range(metrics: Sequence[Mapping[str, Any]], name: str) -> str:
  """The least and the largest value of this name, as people read them."""
  _, values = _read_column(metrics, name)
  if not len(values):
    return 'unknown numbers of'
  low, high = f'{values.min():,.0f}', f'{values.max():,.0f}'
  return low if low == high else f'{low} to {high}'
