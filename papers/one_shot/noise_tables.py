"""ε at each noise level: the StackOverflow and EMNIST tables of the paper."""

from collections.abc import Sequence

from epe_jax import accounting
from epe_jax.audit import attackers
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.epsilon import known_shifts, paper_estimates, registry
from epe_jax.experiment import finished_runs
from epe_jax.report import cells, leaks, tables, words
from papers import grid, item, reported

_REPORTED = reported.Reported('papers.one_shot')

_PAPER = {
  'eps_lo_all': (attackers.MAXIMUM, paper_estimates.eps_lo, 'ε_lo, all'),
  'eps_est_all': (attackers.MAXIMUM, registry.FITTED, 'ε_est, all'),
  'eps_lo_final': (attackers.FINAL, paper_estimates.eps_lo, 'ε_lo, final'),
  'eps_est_final': (attackers.FINAL, registry.FITTED, 'ε_est, final'),
}


def make_tables(runs: Sequence[grid.Run], *, name: str) -> item.Product:
  """Makes tables with the columns of the paper, at each δ, and a calibrated one.

  Args:
    runs: of a grid of noise, with one participation of each canary.
    name: of the paper's table in reported.json.
  """
  calibrated = [_list_calibrated(run) for run in runs]
  sizes = grid.describe_runs(runs)
  head = ['noise', 'analytic ε', *(head for _, _, head in _PAPER.values())]
  own, paper = runs[0].result.delta, _REPORTED.find_delta(name)
  at_own = cells.format_delta(own)
  of_paper = []
  if paper is not None:
    of_paper = [
      tables.Table(
        f"As in the paper, at the paper's δ = {cells.format_delta(paper)}",
        head,
        [_list_as_printed(run, paper, name) for run in runs],
        [
          *_REPORTED.explain_brackets(name),
          "The paper's δ is that of the analytic ε that it prints.",
        ],
      )
    ]
  return item.Product(
    [
      *of_paper,
      tables.Table(
        f'As in the paper, at δ = {at_own}',
        head,
        [_list_as_printed(run, own) for run in runs],
        [
          'all: the maximum over rounds; final: the cosine with the final '
          'model. ε_est fits two Gaussians; for a maximum it extrapolates. The '
          'paper calls ε_lo a lower bound, but it is not one.',
          *sizes,
        ],
      ),
      tables.Table(
        f'Calibrated estimates, δ = {at_own}',
        [
          'noise',
          'accuracy',
          *map(
            _name_column,
            (attackers.FINAL, attackers.CHANGE, attackers.OWN),
          ),
          'every round, from norms',
          _name_column(attackers.RESIDUAL),
          'analytic ε',
        ],
        calibrated,
        [
          'Point estimates of the mixture of shifted Gaussians, with 90 % '
          'intervals.',
          *cells.explain_rejected(c for line in calibrated for c in line),
          'From norms: the ε that follows from the norms of rounds alone. '
          'The attacker of every round should measure it.',
          'The worst case should measure the analytic ε.',
          *sizes,
        ],
      ),
    ],
    {},
  )


def _list_as_printed(run: grid.Run, delta: float, name: str = '') -> list[str]:
  """The line of a run at one δ, with the columns of the paper and those of its table."""
  paper = _REPORTED.find_row(name, noise=run.noise)
  analytic = accounting.epsilon_of_releases(
    run.noise, delta=delta, participations=run.repetitions
  ).epsilon
  line = [f'{run.noise:g}', reported.add_reported(analytic, paper, 'analytic')]
  for column, (threat_model, estimator, _) in _PAPER.items():
    attack = run.result.audit.find(threat_model)
    value = None
    if attack is not None and attack.scores is not None:
      value = float(estimator(attack.scores, delta=delta).epsilon)
    line.append(reported.add_reported(value, paper, column))
  return line


def predict_own_round(run: finished_runs.FinishedRun) -> float | None:
  """Predicts the ε of the own-round attacker from norms alone.

  The shift of a canary is √d S / (m |ρ̄|): the other clients and canaries of
  the round are part of |ρ̄|, and so of the noise. None where the trace is not of
  aggregates.
  """
  if run.record is None:
    return None
  own = attackers.OWN.score(run.record)
  if own is None or not own.is_expected:
    return None
  shift = own.scores.shift
  assert shift is not None, 'it is expected'
  return float(known_shifts.epsilon_mixture(shift, run.record.delta))


def _list_calibrated(run: grid.Run) -> list[str]:
  """The line of a run with its calibrated estimates."""
  expected = predict_own_round(run)
  return [
    f'{run.noise:g}',
    cells.format_percent(run.result.accuracy),
    *(
      cells.format_with_interval(run.result.audit.find_first(threat_model))
      for threat_model in (
        attackers.FINAL,
        attackers.CHANGE,
        attackers.OWN,
      )
    ),
    '-' if expected is None else cells.format_number(expected),
    cells.format_with_interval(run.result.audit.find_first(attackers.RESIDUAL)),
    cells.format_number(leaks.find_analytic_epsilon(run.result)),
  ]


def _name_column(threat_model: ThreatModel) -> str:
  return f'ε, {words.spell_name(threat_model)}'
