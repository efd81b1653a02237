"""All figures of a finished run, by the name of their file."""

from collections.abc import Mapping, Sequence
import math
from typing import Any

from matplotlib import figure
import numpy as np
from scipy import special

from epe_jax.audit import by_round, curves, sequential
from epe_jax.audit.record import Record
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import facts, sentences
from epe_jax.report.figures import (
  attackers,
  cosines,
  epsilons,
  style,
  tradeoff,
  training,
)
from epe_jax.text import cells

CAPTIONS = {
  'attackers.png': (
    'What each attacker learns: the estimate of ε with its 90 % interval, what the same '
    'estimator reports when nothing leaks, and lower bounds. The estimate and the '
    'pre-declared bound are to the right of each row. If no estimator is calibrated for '
    'an attacker, only the bound is meaningful: the likelihood is counted from '
    'canaries, and there are too few for a large ε.'
  ),
  'overview.png': (
    'What the final model reveals about who took part, and what the releases of all '
    'rounds reveal to an attacker who knows the rounds. The further apart, the more '
    'leaks.'
  ),
  'densities.png': (
    'Scores of the canaries that took part and of those that did not. The '
    'further apart, the more an attacker learns.'
  ),
  'tradeoff.png': (
    'How often each attacker is wrong about those that took no part (false '
    'positives) and about those that did (false negatives), at every threshold. '
    'The further down to the left, the more leaks. The mechanism of the run allows no '
    'such attacker below the dashed line; the dotted line is the expectation. The axes '
    'are normal quantiles, so a Gaussian mechanism is a straight line. With 95 % '
    'confidence some attack gets as low as the dash-dotted line.'
  ),
  'delta.png': (
    'ε at each δ, for calibrated estimates. The two describe one curve: a smaller δ '
    'covers more rare outcomes, at a larger ε. Curves end at one over the number of '
    'canaries that took part, because no canary shows rarer outcomes. Crosses are the '
    'analytic ε of each attacker at the δ of the run, if it is below that of the run.'
  ),
  'by_round.png': (
    'How much had leaked after each round about those that had taken part by '
    'then. What a round releases is there for good; in the model it fades as '
    'other updates are added. Bounds of colour hold at each round by itself, the '
    'black ones of the strongest attacker at all rounds at once.'
  ),
  'trace.png': (
    'What the attacker who sees every round sees of one canary that took part '
    'and of one that did not.'
  ),
  'accuracy.png': 'Test accuracy, loss and clip norm of the audited run.',
}
"""What each figure shows, in the order of a report."""

# Points of a curve over rounds: each costs as much as all other figures.
_NUM_ROUNDS = 6
_MARGINS: dict[str, dict[str, float]] = {
  'attackers.png': {'left': 2.1, 'right': 1.7}
}


def draw_run(
  result: RunResult,
  record: Record | None,
  history: Sequence[Mapping[str, Any]],
) -> dict[str, figure.Figure]:
  """Draws every figure that `CAPTIONS` names; without an audit, the training.

  Args:
    result: what result.json holds.
    record: what attackers saw; None of a run that was not audited.
    history: the lines of metrics.jsonl.

  Returns:
    File name -> figure.
  """
  figures = {'accuracy.png': training.draw_accuracy(history)}
  if record is not None:
    figures = _draw_audit(result, record) | figures
  for name, fig in figures.items():
    style.lay_out(fig, **_MARGINS.get(name, {}))
  return figures


def _draw_audit(result: RunResult, record: Record) -> dict[str, figure.Figure]:
  """Draws what attackers found."""
  audit, analytic = result.audit, facts.find_analytic_epsilon(result)
  finding = sentences.title_attackers(result)
  canaries = (
    f'{result.num_observed:,} canaries took part in '
    f'{cells.format_rounds(result.repetitions)}, {result.num_unobserved:,} did not'
  )
  scored = [attack for attack in audit.attacks if attack.scores is not None]
  participations = facts.count_participations(result)
  told = {
    a.threat_model: sentences.title_attack(a, participations)
    for a in audit.attacks
  }
  shown = [attack for attack in scored if attack.threat_model.is_in_overview]
  figures = {
    'attackers.png': attackers.draw_attackers(
      audit.attacks, analytic=analytic, canaries=canaries, finding=finding
    )
  }
  if shown:
    figures['overview.png'] = cosines.draw_densities(
      shown, findings=told, columns=2
    )
  return {
    **figures,
    'densities.png': cosines.draw_densities(scored),
    'tradeoff.png': _draw_tradeoff(result),
    'delta.png': _draw_over_delta(result, canaries),
    **_draw_rounds(record, analytic),
  }


def _draw_tradeoff(result: RunResult) -> figure.Figure:
  audit, analytic = result.audit, facts.find_analytic_epsilon(result)
  max_group = max(result.num_observed, result.num_unobserved)
  lowest = 0.5 / max_group
  # Evenly over normal quantiles, as the axes are.
  low, high = special.ndtri(1e-14), special.ndtri(1 - lowest)
  grid = special.ndtr(np.linspace(low, high, 240))
  return tradeoff.draw_tradeoff(
    audit,
    curves.compute_tradeoffs(audit, grid),
    grid,
    allowed={
      attack.threat_model: curves.compute_allowed_fnr(
        attack.analytic, analytic, result.delta, grid
      )
      for attack in audit.attacks
    },
    bounds={
      attack.threat_model: curves.compute_bound_fnr(
        attack.bounds[0] if attack.bounds else None, grid
      )
      for attack in audit.attacks
    },
    finding=sentences.title_tradeoff(result),
  )


def _draw_over_delta(result: RunResult, canaries: str) -> figure.Figure:
  analytic, delta = facts.find_analytic_epsilon(result), result.delta
  # Of rarer outcomes than one canary in all of them none tells anything.
  known = np.geomspace(1 / max(result.num_observed, 3), 0.5, 30)
  gaussian = None
  if not math.isnan(analytic):
    wide = np.geomspace(min(known[0], delta / 3), 0.5, 30)
    gaussian = (
      wide,
      curves.compute_gaussian_over_delta(analytic, delta, wide),
    )
  return epsilons.draw_over_delta(
    curves.compute_over_delta(result.audit.attacks, known),
    known,
    gaussian=gaussian,
    analytic=analytic,
    attacks=result.audit.attacks,
    canaries=canaries,
    finding=sentences.title_over_delta(result),
  )


def _draw_rounds(record: Record, analytic: float) -> dict[str, figure.Figure]:
  """Draws what needs the cosines of every round; nothing where they are missing."""
  if record.trace is None:
    return {}
  rounds = by_round.choose_rounds(record, num=_NUM_ROUNDS)
  estimates = by_round.evaluate_by_round(record, rounds=rounds.tolist())
  return {
    'by_round.png': epsilons.draw_over_rounds(
      estimates,
      sequential.bound_sequentially(record),
      analytic=analytic,
      finding=sentences.title_over_rounds(estimates),
    ),
    'trace.png': cosines.draw_trace(record, record.trace),
  }
