"""The scores of canaries: densities, and cosines round by round.

Cosines are drawn in units of 1/√d, the standard deviation of a cosine with an
independent direction.
"""

from collections.abc import Mapping, Sequence

from jaxtyping import Float
from matplotlib import axes as mpl_axes
from matplotlib import figure, ticker
import numpy as np
from scipy import stats

from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.audit.record import Record
from epe_jax.audit.results import AttackResult
from epe_jax.epsilon.types import NullLaw, Sphere
from epe_jax.report import words
from epe_jax.report.figures import style

# Up to this many scores each is drawn; more are a histogram.
_MAX_TICKS = 50


def draw_densities(
  attacks: Sequence[AttackResult],
  *,
  findings: Mapping[ThreatModel, str] | None = None,
  columns: int = 3,
  width: float = style.WIDE,
) -> figure.Figure:
  """Draws the densities of scores of canaries that took part and that were held out.

  A panel also has the exact law of a canary held out, if there is one: not for a
  maximum, nor for a sum over rounds.

  Args:
    attacks: each with its scores.
    findings: attacker -> its result, below its name.
  """
  is_narrow = width == style.NARROW
  height = 2.6 if width < style.WIDE else 3.6
  fig, all_axes = style.make_panels(
    len(attacks), columns=columns, height=height, width=width
  )
  for axes, attack in zip(all_axes, attacks):
    scores, scale = attack.scores, attack.scale
    assert scores is not None, 'every panel has scores'
    _draw_density(axes, scale * scores.observed, style.TOOK_PART, 'took part')
    _draw_density(axes, scale * scores.unobserved, style.NO_PART, 'held out')
    if scores.has_known_null:
      _draw_null_density(axes, scores.null)
    name = words.spell_name(attack.threat_model)
    finding = (findings or {}).get(attack.threat_model)
    title = f'{name}\n{finding}' if finding else name
    axes.set_title('' if is_narrow else title, fontsize='medium')
    axes.set_xlabel(words.describe_unit(attack.unit))
    axes.set_yticks([])
    # Log likelihood ratios have many digits.
    axes.xaxis.set_major_locator(ticker.MaxNLocator(6))
    axes.xaxis.set_major_formatter('{x:,g}')
    axes.spines['left'].set_visible(False)
    axes.set_ylim(bottom=0)
  for axes in all_axes[::columns]:
    axes.set_ylabel('density')
  style.draw_legend(fig, all_axes, columns=2 if is_narrow else 4)
  return fig


def draw_trace(
  record: Record, trace: Float[np.ndarray, 'T k'], *, typical: int
) -> figure.Figure:
  """Draws the cosines of one observed and one unobserved canary by round.

  The band of ±2 holds 95 % of the cosines of a canary that took no part, the line
  above is the expectation for a canary of that round.

  Args:
    typical: the observed canary, as `leaks.find_typical_canary` finds it.
  """
  canaries = [typical, *np.flatnonzero(~record.observed)[:1]]
  fig, all_axes = style.make_panels(len(canaries), columns=2)
  low, high = np.inf, -np.inf
  for axes, canary in zip(all_axes, canaries):
    _draw_canary(axes, record, trace[:, canary], int(canary))
    bottom, top = axes.get_ylim()
    low, high = min(low, bottom), max(high, top)
  for axes in all_axes:
    axes.set_ylim(low, high)
  # How far it stands out in a round of its own.
  own = np.sqrt(record.dim) * trace[record.included[:, typical], typical]
  fig.suptitle(
    f'In a round of its own a typical canary scores {own.mean():.1f}; others are '
    'within ±2 in 95 % of rounds'
  )
  all_axes[0].set_ylabel(f'cosine, in units of 1/√d, d = {record.dim:,}')
  style.draw_legend(fig, all_axes)
  return fig


def _draw_density(
  axes: mpl_axes.Axes,
  values: Float[np.ndarray, ' n'],
  color: str,
  label: str,
) -> None:
  """Draws a kernel density estimate, over a histogram or over every score."""
  if not len(values):
    return
  label = f'{label}: n = {len(values):,}'
  if len(values) <= _MAX_TICKS:
    axes.plot(values, np.zeros(len(values)), '|', color=color, ms=18, mew=1.5)
  else:
    density, edges = np.histogram(values, 'auto', density=True)
    axes.stairs(density, edges, fill=True, color=color, alpha=0.25)
  if np.ptp(values) == 0:
    # All scores are one point, which has no density but has a place.
    axes.axvline(values[0], color=color, label=label)
    return
  kernel = stats.gaussian_kde(values)
  margin = 3 * np.sqrt(kernel.covariance[0, 0])
  grid = np.linspace(values.min() - margin, values.max() + margin, 200)
  axes.plot(grid, kernel(grid), color=color, lw=2, label=label)


def _draw_null_density(axes: mpl_axes.Axes, null: NullLaw) -> None:
  """Draws the exact law of a cosine with a vector that is unrelated."""
  one = np.sqrt(null.dim) if isinstance(null, Sphere) else np.inf
  # Up to four standard deviations, but inside [-1, 1], where cosines are.
  edge, label = min(4.0, 0.999 * one), 'exact, held out'
  grid = np.linspace(-edge, edge, 400)
  density = stats.norm.pdf(grid)
  if isinstance(null, Sphere):
    b = (null.dim - 1) / 2
    density = stats.beta.pdf(grid, b, b, loc=-one, scale=2 * one)
  line = {'color': style.BLACK, 'ls': '--', 'lw': 1.5}
  axes.plot(grid, density, label=label, **line)


def _draw_canary(
  axes: mpl_axes.Axes,
  record: Record,
  values: Float[np.ndarray, ' T'],
  canary: int,
) -> None:
  """Draws the cosines of a canary, and marks the rounds it took part in."""
  scale = np.sqrt(record.dim)
  cosines = scale * values
  rounds = np.arange(1, len(cosines) + 1)
  included = record.included[:, canary]
  observed = bool(record.observed[canary])
  color = style.TOOK_PART if observed else style.NO_PART
  axes.axhspan(
    -2, 2, color=style.GREY, lw=0, label='±2: 95 % of those of other rounds'
  )
  if record.expected is not None:
    line = {'color': style.BLACK, 'ls': ':', 'lw': 1.5}
    label = 'expected in its round'
    axes.plot(rounds, scale * record.expected, label=label, **line)
  marker = '.' if len(rounds) <= 300 else ','
  axes.plot(rounds, cosines, marker, color=color, ms=5)
  axes.vlines(rounds, 0, cosines, color=color, lw=0.6, alpha=0.6)
  mark = {'color': style.BLACK, 'mfc': 'none', 'ms': 10, 'mew': 2}
  label = 'a round it took part in'
  axes.plot(rounds[included], cosines[included], 'D', label=label, **mark)
  if observed:
    group = f'the median of {record.observed.sum():,} that took part'
  else:
    group = f'one of {np.sum(~record.observed):,} held out'
  axes.set_title(f'canary {canary}: {group}')
  axes.set_xlabel('round')
  axes.xaxis.set_major_locator(style.make_round_locator())
