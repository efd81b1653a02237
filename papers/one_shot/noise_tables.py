"""ε at each noise level: the StackOverflow and EMNIST tables of the paper."""

from collections.abc import Sequence

from epe_jax.audit import attackers
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.epsilon import known_shifts
from epe_jax.experiment import finished_runs
from epe_jax.report import cells, leaks, tables, words
from papers import grid, item, reported

_REPORTED = reported.Reported('papers.one_shot')

_PAPER = {
  'eps_lo_all': (attackers.MAXIMUM, 'eps_lo', 'ε_lo, all'),
  'eps_est_all': (attackers.MAXIMUM, 'two_gaussian_fitted', 'ε_est, all'),
  'eps_lo_final': (attackers.FINAL, 'eps_lo', 'ε_lo, final'),
  'eps_est_final': (attackers.FINAL, 'two_gaussian_fitted', 'ε_est, final'),
}


def make_tables(runs: Sequence[grid.Run], *, name: str) -> item.Product:
  """Makes a table with the columns of the paper, and one of calibrated estimates.

  Args:
    runs: of a grid of noise, with one participation of each canary.
    name: of the paper's table in reported.json.
  """
  calibrated = [_list_calibrated(run) for run in runs]
  sizes = grid.describe_runs(runs)
  return item.Product(
    [
      tables.Table(
        'As in the paper',
        ['noise', 'analytic ε', *(head for _, _, head in _PAPER.values())],
        [_list_as_printed(run, name) for run in runs],
        [
          *_REPORTED.explain_brackets(name),
          'all: the maximum over rounds; final: the cosine with the final '
          'model. ε_est fits two Gaussians; for a maximum it extrapolates. The '
          'paper calls ε_lo a lower bound, but it is not one.',
          *sizes,
        ],
      ),
      tables.Table(
        'Calibrated estimates',
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
          'The own-round attacker should measure it.',
          'The attacker who removes other updates should measure the '
          'analytic ε.',
          *sizes,
        ],
      ),
    ],
    {},
  )


def _list_as_printed(run: grid.Run, name: str) -> list[str]:
  """The line of a run with the columns of the paper."""
  paper = _REPORTED.find_row(name, noise=run.noise)
  analytic = leaks.find_analytic_epsilon(run.result)
  line = [f'{run.noise:g}', reported.add_reported(analytic, paper, 'analytic')]
  for column, (threat_model, method, _) in _PAPER.items():
    attack = run.result.audit.find(threat_model)
    estimate = attack and attack.find(method)
    value = estimate and float(estimate.epsilon)
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
