"""Table 1 from the law of observations alone, without a model."""

from typing import Any

import numpy as np

from epe_jax.dpsgd import estimates
from epe_jax.report import tables
from papers import item, reported
from papers.tight_auditing import accounted_run, simulated_steps

_REPORTED = reported.Reported('papers.tight_auditing')


def make_table1(settings: Any) -> item.Product:
  """The lower limits of a run by a correct implementation.

  Args:
    settings: epsilons, runs (name -> steps, sampling_probability), audits, delta
      and seed.
  """
  rng = np.random.default_rng(settings.seed)
  columns: dict[str, dict[tuple[str, float], str]] = {}
  for name, run in settings.runs.items():
    accounted = accounted_run.account_for_run(
      sampling_probability=run.sampling_probability,
      steps=run.steps,
      delta=settings.delta,
      title=run.title,
    )
    mechanism = estimates.make_step_mechanism()._replace(
      compose=accounted.compose
    )
    columns[name] = {}
    for epsilon in settings.epsilons:
      scores = simulated_steps.draw_observations(
        rng,
        (settings.audits, run.steps),
        noise_multiplier=accounted.calibrate(epsilon),
      )
      for key in estimates.ESTIMATORS:
        estimate = estimates.estimate_run(
          scores,
          key,
          mechanism=mechanism,
          delta=settings.delta,
          thresholds='same',
        )
        text = reported.format_spread(estimate.epsilon)
        paper = _REPORTED.find_row(f'table1_{key}', epsilon=epsilon)
        if paper is not None:
          text += f' ({paper[name]:.2f})'
        columns[name][key, epsilon] = text
  titles = {name: run.title for name, run in settings.runs.items()}
  body = [
    [
      estimates.ESTIMATORS[key].label,
      f'{epsilon:g}',
      *(columns[name][key, epsilon] for name in titles),
    ]
    for key in estimates.ESTIMATORS
    for epsilon in settings.epsilons
  ]
  sizes = '; '.join(
    f'{run.title}: {run.steps:,} steps, q = {run.sampling_probability:.4g}'
    for run in settings.runs.values()
  )
  table = tables.Table(
    'Lower limits of ε from observations of all steps, by their law',
    ['audit', 'analytic ε', *titles.values()],
    body,
    [
      'In brackets the figures of the paper, of trained models.',
      f'{sizes}. δ = {settings.delta:g}. Mean ± standard deviation of '
      f'{settings.audits} audits.',
      'No model is trained: with the canary in every step observations are '
      'N(0, σ²) and N(1, σ²), whatever the model. The noise is what dp_accounting '
      'gives for the analytic ε, interpolated between its values at 24 noises.',
      'Thresholds are chosen on the same observations, as in the paper: they are not bounds.',
    ],
  )
  return item.Product([table], {})
