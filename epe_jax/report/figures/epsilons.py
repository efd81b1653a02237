"""The ε of each attacker at each δ, and after each round."""

from collections.abc import Sequence
import math

from matplotlib import axes as mpl_axes
from matplotlib import figure
import numpy as np

from epe_jax.audit import attackers
from epe_jax.audit.results import AttackResult
from epe_jax.epsilon import known_shifts, tradeoff, two_gaussians
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import cells, leaks, sentences, words
from epe_jax.report.comparisons import over_reports
from epe_jax.report.figures import style
from epe_jax.watch.by_round import RoundEstimate
from epe_jax.watch.sequential import SequentialBounds


def draw_over_delta(result: RunResult, *, canaries: str) -> figure.Figure:
  """Draws ε at each δ, where the estimate is calibrated, with its scatter.

  The shading is the 90 % interval of the shift of the scores. Where the δ of the run
  is below those of the curves, the estimates at it stand alone: no canary was where
  they are read.
  """
  fig, (axes,) = style.make_panels(1, height=4.6)
  analytic, delta = leaks.find_analytic_epsilon(result), result.delta
  # No canary tells anything of outcomes that are rarer than one in all of them.
  deltas = np.geomspace(1 / max(result.num_observed, 3), 0.5, 30)
  is_beyond = bool(delta < deltas[0])
  lowest = delta / 3 if is_beyond else float(deltas[0])
  epsilons = []
  attacks = result.audit.attacks
  styles = style.assign_styles(attack.threat_model for attack in attacks)
  drawn = [
    (attack, attack.scores)
    for attack in attacks
    if attack.is_calibrated
    and attack.scores is not None
    and attack.scores.shift is not None
  ]
  for i, (attack, scores) in enumerate(drawn):
    marks = styles[attack.threat_model]
    line, low, high = known_shifts.compute_curve(scores, deltas)
    axes.fill_between(deltas, low, high, color=marks.color, alpha=0.25, lw=0)
    axes.plot(
      deltas,
      line,
      # The markers of attackers are at different points.
      markevery=(i, 8),
      label=words.spell_name(attack.threat_model),
      **marks.line_options,
    )
    epsilons += [*line, *high]
  if not math.isnan(analytic):
    # An infinite ε has a name in the legend, but no line.
    at, line = np.empty(0), np.empty(0)
    if math.isfinite(analytic):
      at = np.geomspace(min(deltas[0], delta / 3), 0.5, 30)
      if leaks.count_participations(result).is_gaussian:
        mu = tradeoff.mu_of_epsilon(analytic, delta)
        line = np.asarray(two_gaussians.epsilon_two_gaussians(0, 1, mu, 1, at))
      else:
        # All that is known: ε falls with δ.
        at = at[at >= delta]
        line = np.full(at.size, analytic)
    axes.plot(at, line, **style.style_analytic_line(analytic))
    epsilons += [*line]
  for attack, _ in drawn:
    marks = styles[attack.threat_model]
    epsilons += _draw_at_delta(axes, attack, analytic, is_beyond, marks)
  axes.axvline(delta, color='#999999', lw=1, ls=':')
  axes.annotate(
    f'δ = {cells.format_delta(delta)}',
    (delta, 1),
    (4, -4),
    xycoords=('data', 'axes fraction'),
    textcoords='offset points',
    va='top',
  )
  if is_beyond:
    axes.axvspan(lowest, float(deltas[0]), color='#EEEEEE', lw=0, zorder=0)
    axes.annotate(
      f'δ < {cells.format_delta(float(deltas[0]))}: rarer than canaries can show',
      (float(deltas[0]), 0),
      (-6, 6),
      xycoords=('data', 'axes fraction'),
      textcoords='offset points',
      ha='right',
    )
  axes.set(xscale='log', xlim=(lowest, deltas[-1]))
  axes.set(xlabel='δ', ylabel='ε, linear up to 1')
  style.set_epsilon_axis(axes, 'y', style.find_highest(epsilons))
  axes.set_title(f'{canaries}; shaded: 90 % interval', fontsize='medium')
  fig.suptitle(sentences.title_over_delta(result))
  style.draw_legend(fig, [axes], columns=3)
  return fig


def draw_over_rounds(
  estimates: Sequence[RoundEstimate],
  sequential: SequentialBounds | None,
  *,
  analytic: float,
  finding: str,
) -> figure.Figure:
  """Draws ε after each round, of canaries that had taken part by then."""
  fig, (left, right) = style.make_panels(2, columns=2, height=4.2)
  values = [float(row.estimate.epsilon) for row in estimates]
  values += [x for row in estimates for x in row.estimate.interval or ()]
  highest = style.find_highest([*values, analytic])
  for axes, is_bound in ((left, False), (right, True)):
    rows = over_reports.select_estimates(estimates, is_bound=is_bound)
    _draw_attackers(axes, rows)
  if sequential is not None:
    options = {'where': 'post', 'color': style.BLACK, 'lw': 1.2}
    for epsilons, line, label in (
      (sequential.epsilon_gdp, '-', 'all rounds at once, if f Gaussian'),
      (sequential.epsilon, ':', 'all rounds at once'),
    ):
      right.step(sequential.rounds, epsilons, line, label=label, **options)
  in_order = sorted(estimates, key=lambda row: row.round)
  first, last = in_order[0], in_order[-1]
  left.set_title('estimates, shaded: 90 % interval')
  right.set_title('lower bounds (95 % at each round)')
  for axes in (left, right):
    if not math.isnan(analytic):
      level = [analytic] * 2 if math.isfinite(analytic) else []
      across = [0, 1.02 * last.round][: len(level)]
      axes.plot(across, level, **style.style_analytic_line(analytic))
    axes.set_xlabel(
      f'round; {first.num_observed:,} to {last.num_observed:,} canaries had '
      f'taken part, {first.num_unobserved:,} held out'
    )
    axes.xaxis.set_major_locator(style.make_round_locator())
    axes.set_xlim(0, 1.02 * last.round)
    style.set_epsilon_axis(axes, 'y', highest)
  delta = cells.format_delta(estimates[0].estimate.delta)
  left.set_ylabel(f'ε at δ = {delta}, linear up to 1')
  fig.suptitle(finding)
  style.draw_legend(fig, [right, left])
  return fig


def _draw_at_delta(
  axes: mpl_axes.Axes,
  attack: AttackResult,
  analytic: float,
  is_beyond: bool,
  marks: style.Style,
) -> list[float]:
  """Draws the limit of an attacker at the δ of the run, and an estimate beyond."""
  first, limit, drawn = attack.first, attack.analytic, []
  if limit is not None and limit.epsilon < analytic:
    axes.plot(first.delta, limit.epsilon, 'x', color=marks.color, ms=9, mew=2)
    drawn.append(limit.epsilon)
  if is_beyond and math.isfinite(first.epsilon):
    if first.interval is not None:
      axes.plot([first.delta] * 2, first.interval, color=marks.color, lw=1.5)
    axes.plot(
      first.delta, first.epsilon, 'o', color=marks.color, mfc='white', ms=6
    )
    drawn.append(float(first.epsilon))
  return drawn


def _draw_attackers(axes: mpl_axes.Axes, rows: Sequence[RoundEstimate]) -> None:
  """Draws ε over rounds, a line for each attacker, with intervals."""
  styles = style.assign_styles(row.threat_model for row in rows)
  for threat_model in attackers.sort_by_strength(
    row.threat_model for row in rows
  ):
    of_attacker = [row for row in rows if row.threat_model == threat_model]
    marks = styles[threat_model]
    rounds = [row.round for row in of_attacker]
    epsilons = [float(row.estimate.epsilon) for row in of_attacker]
    axes.plot(
      rounds,
      epsilons,
      label=words.spell_name(threat_model),
      **marks.line_options,
    )
    intervals = [row.estimate.interval for row in of_attacker]
    if all(interval is not None for interval in intervals):
      low, high = np.array(intervals, np.float64).T
      axes.fill_between(rounds, low, high, color=marks.color, alpha=0.25, lw=0)
