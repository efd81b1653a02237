"""What audits of one training and of many find, and what they cost."""

from collections.abc import Sequence

import numpy as np

from epe_jax.epsilon.types import Scores
from epe_jax.papers import item
from epe_jax.papers.tight_auditing import estimator_table
from epe_jax.papers.tight_auditing.audit_costs import TimedAudit
from epe_jax.text import cells, tables


def make_costs(audits: Sequence[TimedAudit]) -> item.Product:
  """ε and seconds of each audit, and of many models at the cost of one training.

  Args:
    audits: of `train_costs`: gradient canaries first, many models last.
  """
  one_shot, many = audits[0], audits[-1]
  per_model = many.seconds / many.trainings
  # At least one of each kind, whatever it costs.
  pairs = max(1, int(one_shot.seconds / per_model / 2))
  pairs = min(pairs, many.trainings // 2)
  few = many._replace(
    name=f'{many.name}, at the cost of {one_shot.name}',
    trainings=2 * pairs,
    scores=Scores(many.scores.observed[:pairs], many.scores.unobserved[:pairs]),
    seconds=2 * pairs * per_model,
  )
  body = []
  for one in [*audits[:-1], few, many]:
    by_order, by_curve = (_estimate(one, key) for key in ('dp_cp', 'f_dp_cp'))
    body.append(
      [
        one.name,
        f'{one.trainings:,}',
        f'{one.scores.observed.size:,} + {one.scores.unobserved.size:,}',
        _separate(one.scores),
        _separate(one.noiseless),
        cells.format_number(by_order),
        cells.format_number(by_curve),
        f'{one.seconds:.3g}',
        cells.format_number(by_order / one.seconds),
        cells.format_number(by_curve / one.seconds),
      ]
    )
  table = tables.Table(
    f'Lower bounds (95 %) and their cost, analytic ε = {one_shot.analytic:g}, '
    f'δ = {one_shot.delta:g}',
    [
      'audit',
      'trainings',
      'scores',
      'separation',
      'separation, σ = 0',
      '(ε, δ)-DP (CP), band',
      'f-DP (CP), band',
      'seconds',
      '(ε, δ)-DP per second',
      'f-DP per second',
    ],
    body,
    [
      'Gradient canaries: they join batches by coins as examples do, and whoever '
      'sees the initial and the final model scores them, who does not know the '
      'coins. Data canaries: mislabelled examples, scored by the log-odds of their '
      'labels in the final model. Optimized ones begin as those, and ascend the '
      'separation in trainings without noise from the same initial model. All '
      'three take scores of one training to be independent.',
      'Separation: the difference of the mean scores, over the root mean square of '
      'both deviations; σ = 0: of the same canaries, by a training without noise.',
      'White-box game: the attacker sees all steps and has a gradient in each; what '
      'a step shows is composed to the run, also for (ε, δ)-DP.',
      'Many models: Algorithm 1 with one mislabelled example. Where the final model '
      'is scored, f-DP takes the curve of a training to be that of its steps on '
      'Poisson samples, by their privacy loss distribution.',
      'Seconds are of processors on a CPU and of the clock elsewhere, for '
      'optimizing, training and scoring, without compilation.',
      one_shot.source,
    ],
  )
  return item.Product([table], {})


def _separate(scores: Scores | None) -> str:
  """The separation of both groups; a dash where there is none."""
  if scores is None or scores.observed.size < 2:
    return '–'
  groups = scores.observed, scores.unobserved
  spread = np.sqrt(np.mean([np.var(x) for x in groups]))
  return cells.format_number((groups[0].mean() - groups[1].mean()) / spread)


def _estimate(one: TimedAudit, key: str) -> float:
  return estimator_table.estimate(
    one.scores, (key, 'band'), mechanism=one.mechanism, delta=one.delta
  )
