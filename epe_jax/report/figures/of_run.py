"""All figures of a finished run, by the name of their file."""

from collections.abc import Mapping, Sequence
import math
from typing import Any

from matplotlib import figure
import numpy as np

from epe_jax.audit import curves, over_rounds, sequential, threat_models
from epe_jax.audit.record import Record
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import facts
from epe_jax.report.figures import cosines, epsilons, tradeoff, training

CAPTIONS = {
  'bars.png': (
    'What each attacker is found to learn: the estimate of ε, what the same '
    'estimator reports when nothing leaks, and lower bounds. Hatched bars are of '
    'attackers for whose scores no estimator is calibrated: the likelihood is '
    'counted from canaries, of which there are too few for a large ε.'
  ),
  'densities.png': (
    'Scores of the canaries that took part and of those that did not. The '
    'further apart, the more an attacker learns.'
  ),
  'tradeoff.png': (
    'How often each attacker is wrong about those that took no part (false '
    'positives) and about those that did (false negatives), at every threshold. '
    'The further down to the left, the more leaks. By the mechanism of the run '
    'nobody of that kind gets below the dashed line; the dotted one is what to '
    'expect.'
  ),
  'delta.png': (
    'ε at each δ, where the estimate is calibrated. The two describe one curve: '
    'a smaller δ allows for fewer rare outcomes, at a larger ε. Crosses are the '
    'analytic ε of each attacker at the δ of the run, where it is below that of the run.'
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
  of_training = {'accuracy.png': training.draw_accuracy(history)}
  if record is None:
    return of_training
  audit, analytic = result.audit, facts.find_analytic_epsilon(result)
  delta = result.delta
  canaries = (
    f'{result.num_observed:,} canaries took part, '
    f'{result.num_unobserved:,} did not'
  )
  all_scores = [
    attack_scores
    for attack_scores in threat_models.score_all(record)
    if audit.find(attack_scores.threat_model) is not None
  ]
  deltas = np.geomspace(min(1e-10, delta / 10), 0.5, 60)
  max_group = max(result.num_observed, result.num_unobserved)
  grid = np.geomspace(0.5 / max_group, 1, 200)[:-1]
  over_delta = None
  if not math.isnan(analytic):
    over_delta = curves.compute_gaussian_over_delta(analytic, delta, deltas)
  return {
    'bars.png': epsilons.draw_bars(
      audit.attacks, analytic=analytic, canaries=canaries
    ),
    'densities.png': cosines.draw_densities(all_scores),
    'tradeoff.png': tradeoff.draw_tradeoff(
      audit,
      [
        curves.compute_tradeoff(attack_scores, grid)
        for attack_scores in all_scores
      ],
      grid,
      allowed={
        attack.threat_model: curves.compute_allowed_fnr(
          attack.analytic, analytic, delta, grid
        )
        for attack in audit.attacks
      },
    ),
    'delta.png': epsilons.draw_over_delta(
      curves.compute_over_delta(all_scores, deltas),
      deltas,
      gaussian=over_delta,
      analytic=analytic,
      own={attack.threat_model: attack.analytic for attack in audit.attacks},
      delta=delta,
      canaries=canaries,
    ),
    **_draw_rounds(record, analytic),
    **of_training,
  }


def _draw_rounds(record: Record, analytic: float) -> dict[str, figure.Figure]:
  """Draws what needs the cosines of every round; nothing where they are missing."""
  if record.trace is None:
    return {}
  estimates = over_rounds.evaluate_by_round(record)
  return {
    'by_round.png': epsilons.draw_over_rounds(
      estimates, sequential.bound_sequentially(record), analytic=analytic
    ),
    'trace.png': cosines.draw_trace(record, record.trace),
  }
