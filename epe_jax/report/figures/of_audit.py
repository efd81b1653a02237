"""All figures of a finished run, and of scores, by the name of their file."""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any

from matplotlib import figure

from epe_jax.accounting import Analytic
from epe_jax.audit.record import Record
from epe_jax.audit.results import Audit
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import cells, curves, leaks, sentences
from epe_jax.report.figures import (
  attackers,
  cosines,
  epsilons,
  style,
  tradeoff,
  training,
)

CAPTIONS = {
  'summary.png': 'Estimates with 90 % intervals; grey: floor, when nothing leaks.',
  'attackers.png': (
    'Every attacker: ε with its 90 % interval, what the estimator reports when nothing '
    'leaks, and lower bounds; without a calibrated estimate only the bound means '
    'anything.'
  ),
  'overview.png': (
    'Scores of canaries by the last model and by every round: the further the two groups '
    'are apart, the more an attacker learns.'
  ),
  'densities.png': (
    'Scores of the canaries that took part and of those held out: the further apart, the '
    'more an attacker learns.'
  ),
  'tradeoff.png': (
    'False negatives over false positives of each attacker: the further down to the '
    'left, the more leaks. The mechanism allows nothing below the dashed line, the '
    'dotted one is expected, and with 95 % confidence some attack gets as low as the '
    'dash-dotted one.'
  ),
  'delta.png': (
    'ε at each δ, of calibrated estimates, down to one over the number of canaries that '
    'took part; crosses: the limits of attackers, where they are below that of the run.'
  ),
  'by_round.png': (
    'How much had leaked after each round about those that had taken part by then; '
    'coloured bounds hold per round, black ones of the strongest attacker at all rounds '
    'at once.'
  ),
  'trace.png': (
    'What the attacker who sees every round sees of one canary that took part, and of '
    'one held out, if any.'
  ),
  'accuracy.png': 'Test accuracy, loss and clip norm of the run.',
}
"""What each figure shows, in the order of a report."""

SCORE_CAPTIONS = {
  'densities.png': (
    'Scores of those that took part, and of those held out: the further apart, the more '
    'leaks.'
  ),
  'attackers.png': (
    'ε, what the same estimator reports when nothing leaks, and lower bounds; an '
    'estimate that a test of the scores speaks against is small and grey.'
  ),
  'tradeoff.png': (
    'False negatives over false positives: the further down to the left, the more '
    'leaks. With 95 % confidence some attack gets as low as the dash-dotted line.'
  ),
}
"""What each figure of scores shows, likewise."""


def draw_run(
  result: RunResult,
  record: Record | None,
  history: Sequence[Mapping[str, Any]],
) -> dict[str, figure.Figure]:
  """Draws every figure that `CAPTIONS` names; without an audit, the training."""
  trained = {'accuracy.png': training.draw_accuracy(history)}
  return trained if record is None else _draw_audit(result, record) | trained


def draw_scores(audit: Audit) -> dict[str, figure.Figure]:
  """Draws every figure that `SCORE_CAPTIONS` names."""
  (attack,) = audit.attacks
  found = audit.headline
  assert found is not None, 'scores have a bound'
  finding = f'ε ≥ {cells.format_epsilon(attack.bounds[0])} (95 %)'
  # Shown as an estimate where the headline shows it.
  shown = dataclasses.replace(attack, is_calibrated=found.point is not None)
  return {
    'densities.png': cosines.draw_densities(
      audit.attacks, columns=1, width=style.NARROW
    ),
    'attackers.png': attackers.draw_attackers(
      [shown],
      analytic=math.nan,
      canaries=f'{attack.num_observed:,} canaries took part, '
      f'{attack.num_unobserved:,} held out',
      finding=finding,
    ),
    'tradeoff.png': tradeoff.draw_tradeoff(
      audit, curves.compute_tradeoffs(audit), finding=finding
    ),
  }


def _draw_audit(result: RunResult, record: Record) -> dict[str, figure.Figure]:
  """Draws what attackers found; of rounds, where their cosines are not missing."""
  audit, analytic = result.audit, leaks.find_analytic_epsilon(result)
  participations = leaks.count_participations(result)
  canaries = (
    f'{result.num_observed:,} canaries took part in '
    f'{sentences.count_rounds_of_canary(participations)}, '
    f'{result.num_unobserved:,} held out'
  )
  scored = [attack for attack in audit.attacks if attack.scores is not None]
  figures = {
    'summary.png': attackers.draw_leaks(
      leaks.find_leaks(result), delta=result.delta
    ),
    'attackers.png': attackers.draw_attackers(
      audit.attacks,
      analytic=analytic,
      canaries=canaries,
      finding=sentences.title_attackers(result),
    ),
  }
  if shown := [x for x in scored if x.threat_model.is_in_overview]:
    findings = {
      x.threat_model: sentences.title_attack(x, participations) for x in shown
    }
    figures['overview.png'] = cosines.draw_densities(
      shown, findings=findings, columns=2, width=style.MEDIUM
    )
  figures |= {
    'densities.png': cosines.draw_densities(scored),
    'tradeoff.png': tradeoff.draw_tradeoff(
      audit,
      curves.compute_tradeoffs(
        audit,
        analytic=None
        if math.isnan(analytic)
        else Analytic(analytic, (), is_gaussian=participations.is_gaussian),
      ),
      finding=sentences.title_tradeoff(result),
    ),
    'delta.png': epsilons.draw_over_delta(result, canaries=canaries),
  }
  rounds = result.leaks_by_round
  if rounds is not None and rounds.each_round:
    figures['by_round.png'] = epsilons.draw_over_rounds(
      rounds.each_round,
      rounds.all_rounds,
      analytic=analytic,
      finding=sentences.title_over_rounds(rounds.each_round),
    )
  if record.trace is not None:
    figures['trace.png'] = cosines.draw_trace(
      record,
      record.trace,
      typical=leaks.find_typical_canary(record, record.trace),
    )
  return figures
