"""ε at each noise level: the StackOverflow and EMNIST tables of the paper."""

from collections.abc import Sequence
import functools

from epe_jax.audit import threat_models
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.experiment import finished_runs
from epe_jax.papers.one_shot import product, reported
from epe_jax.report import narrative, sweep_report, tables

_PAPER = {
  'eps_lo_all': (threat_models.MAXIMUM, 'eps_lo', 'ε_lo, all'),
  'eps_est_all': (threat_models.MAXIMUM, 'two_gaussian_fitted', 'ε_est, all'),
  'eps_lo_final': (threat_models.FINAL, 'eps_lo', 'ε_lo, final'),
  'eps_est_final': (threat_models.FINAL, 'two_gaussian_fitted', 'ε_est, final'),
}


def make_tables(runs: Sequence[product.Run], *, name: str) -> product.Product:
  """The columns of the paper, and beside them what is calibrated.

  Args:
    runs: those in which canaries took part once are shown.
    name: of the paper's table in reported.json.
  """
  once = [run for run in runs if run.repetitions == 1]
  calibrated = [_calibrated(run) for run in once]
  about = product.about(once)
  return product.Product(
    [
      tables.Table(
        'As the paper has it',
        ['noise', 'analytic ε', *(head for _, _, head in _PAPER.values())],
        [_as_printed(run, name) for run in once],
        [
          *reported.brackets(name),
          'all: the maximum over rounds; final: the cosine with the final model. '
          'ε_est fits two Gaussians, and on a maximum it extrapolates: see '
          'docs/estimates.md. ε_lo is called a lower bound by the paper and is '
          'none.',
          *about,
        ],
      ),
      tables.Table(
        'Calibrated estimates',
        [
          'noise',
          'accuracy',
          *map(
            _name,
            (threat_models.FINAL, threat_models.CHANGE, threat_models.OWN),
          ),
          'own round, from norms',
          _name(threat_models.RESIDUAL),
          'analytic ε',
        ],
        calibrated,
        [
          'Point estimates of the mixture of shifted Gaussians, with 90 % '
          'intervals.',
          *sweep_report.explain_rejected(c for row in calibrated for c in row),
          'From norms: the ε that follows from the norms of rounds alone, which '
          'the own-round reading should find.',
          'Who removes the updates of others should find the analytic ε.',
          *about,
        ],
      ),
    ],
    {},
  )


stackoverflow = functools.partial(make_tables, name='stackoverflow')
emnist = functools.partial(make_tables, name='emnist')
emnist_5x34 = functools.partial(make_tables, name='emnist_5x34')


def _as_printed(run: product.Run, name: str) -> list[str]:
  paper = reported.find_row(name, noise=run.noise)
  analytic = run.said.result['analytic_epsilon']
  cells = [f'{run.noise:g}', reported.add_reported(analytic, paper, 'analytic')]
  for column, (threat_model, method, _) in _PAPER.items():
    attack = run.said.result['audit'].find(threat_model)
    found = attack and attack.find(method)
    value = found and float(found.epsilon)
    cells.append(reported.add_reported(value, paper, column))
  return cells


def _calibrated(run: product.Run) -> list[str]:
  expected = finished_runs.expected_own_round(run.said)
  return [
    f'{run.noise:g}',
    f'{100 * run.said.result["accuracy"]:.1f} %',
    *(
      sweep_report.format_with_interval(
        finished_runs.estimate_first(run.said, threat_model)
      )
      for threat_model in (
        threat_models.FINAL,
        threat_models.CHANGE,
        threat_models.OWN,
      )
    ),
    '-' if expected is None else narrative.format_number(expected),
    sweep_report.format_with_interval(
      finished_runs.estimate_first(run.said, threat_models.RESIDUAL)
    ),
    narrative.format_number(run.said.result['analytic_epsilon']),
  ]


def _name(threat_model: ThreatModel) -> str:
  return f'ε, {threat_model.name}'
