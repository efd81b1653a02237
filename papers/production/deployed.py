"""The accounting of deployed models, from what their authors published."""

from typing import Any

import dp_accounting
import numpy as np

from epe_jax import accounting
from epe_jax.report import cells, tables
from epe_jax.training import correlated_noise
from papers import item, reported

_REPORTED = reported.Reported('papers.production')


def make_deployed(settings: Any) -> item.Product:
  """Makes the table of deployed models, which all run the tree of DP-FTRL.

  Args:
    settings: models, each with title, noise_multiplier, rounds, min_separation,
      max_participations and delta.
  """
  body = []
  for model in settings.models:
    tree = correlated_noise.tree(model['rounds']).strategy
    # As published, noise is in units of the clip norm, and not of what one round moves.
    tree = tree / tree.max()
    found = accounting.find_sensitivity(
      tree,
      accounting.ParticipationSchema(
        model['min_separation'], model['max_participations']
      ),
    )
    paper = _REPORTED.find_row(
      'deployed', noise=model['noise_multiplier'], rounds=model['rounds']
    )
    exact = accounting.epsilon_of_matrix_mechanism(
      model['noise_multiplier'], found.bound, delta=model['delta']
    )
    rho = (found.bound / model['noise_multiplier']) ** 2 / 2
    accountant = dp_accounting.rdp.RdpAccountant()
    accountant.compose(
      dp_accounting.GaussianDpEvent(model['noise_multiplier'] / found.bound)
    )
    body.append(
      [
        model['title'],
        f'{model["rounds"]:,}',
        f'{model["noise_multiplier"]:g}',
        f'{model["min_separation"]}, {model["max_participations"]}',
        ', '.join(str(t) for t in np.flatnonzero(found.pattern)),
        f'{found.bound**2:.4g}',
        reported.add_reported(rho, paper, 'zcdp'),
        reported.add_reported(
          accountant.get_epsilon(model['delta']), paper, 'epsilon'
        ),
        cells.format_number(exact.epsilon),
      ]
    )
  table = tables.Table(
    'Tree aggregation as it was deployed',
    [
      'model',
      'rounds',
      'noise',
      'separation, rounds',
      'worst rounds',
      'sensitivity²',
      'ρ of zCDP',
      'ε by Rényi DP',
      'exact ε',
    ],
    body,
    [
      *_REPORTED.explain_brackets('deployed'),
      'Worst rounds: no rounds that a device may take part in change the tree more.',
      'Exact: of the Gaussian mechanism with that sensitivity, at the same δ = '
      f'{cells.format_delta(settings.models[0]["delta"])}. Rényi DP gives a larger ε.',
    ],
  )
  return item.Product([table], {})


ITEM = item.from_settings(
  'A deployed keyboard model: its accounting',
  'Google AI blog, February 2022',
  'production_deployed',
  lambda scale: dict(
    models=(
      dict(
        title='Gboard, Spanish',
        noise_multiplier=7.0,
        rounds=2000,
        # 313 rounds lie between two of a device.
        min_separation=314,
        max_participations=6,
        delta=1e-10,
      ),
    )
  ),
  make_deployed,
)
