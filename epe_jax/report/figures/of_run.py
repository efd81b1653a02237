"""All figures of a finished run, by the name of their file."""

from collections.abc import Mapping, Sequence
import math
from typing import Any

from matplotlib import figure

from epe_jax.audit import over_rounds
from epe_jax.audit.record import Record
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
    'The further down to the left, the more leaks.'
  ),
  'delta.png': (
    'ε at each δ, where the estimate is calibrated. The two describe one curve: '
    'a smaller δ allows for fewer rare outcomes, at a larger ε.'
  ),
  'by_round.png': (
    'How much had leaked after each round about those that had taken part by '
    'then. What a round releases is there for good; in the model it fades as '
    'other updates are added.'
  ),
  'trace.png': (
    'What the attacker who sees every round sees of one canary that took part '
    'and of one that did not.'
  ),
  'accuracy.png': 'Test accuracy, loss and clip norm of the audited run.',
}
"""What each figure shows, in the order of a report."""


def draw_run(
  result: Mapping[str, Any],
  record: Record | None,
  history: Sequence[Mapping[str, Any]],
) -> dict[str, figure.Figure]:
  """Every figure that `CAPTIONS` names; without an audit, how it trained.

  Args:
    result: what result.json holds.
    record: what attackers saw; None of a run that was not audited.
    history: the lines of metrics.jsonl.

  Returns:
    File name -> figure.
  """
  trained = {'accuracy.png': training.draw_accuracy(history)}
  if record is None:
    return trained
  delta, analytic = float(result['delta']), _analytic(result)
  leaked = over_rounds.evaluate_by_round(record)
  canaries = (
    f'{result["num_observed"]:,} canaries took part, '
    f'{result["num_unobserved"]:,} did not'
  )
  return {
    'bars.png': epsilons.draw_bars(
      result['estimates'],
      result['readings'],
      analytic=analytic,
      canaries=canaries,
    ),
    'densities.png': cosines.draw_densities(record),
    'tradeoff.png': tradeoff.draw_tradeoff(
      record, analytic=analytic, delta=delta
    ),
    'delta.png': epsilons.draw_over_delta(
      record, analytic=analytic, delta=delta
    ),
    'by_round.png': epsilons.draw_over_rounds(leaked, analytic=analytic),
    'trace.png': cosines.draw_trace(record),
    **trained,
  }


def _analytic(result: Mapping[str, Any]) -> float:
  """ε of a canary, nan where no tight analysis is known."""
  value = result['analytic_epsilon']
  return math.nan if value is None else float(value)
