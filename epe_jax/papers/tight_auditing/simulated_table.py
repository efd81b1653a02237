"""Table 1 from the law of observations alone, without a model."""

from typing import Any, NamedTuple

from jaxtyping import Float
import numpy as np
from scipy import interpolate
import tqdm

from epe_jax.audit import steps
from epe_jax.epsilon import families
from epe_jax.papers import product, reported
from epe_jax.papers.tight_auditing import observations
from epe_jax.text import tables

# Beyond these noise multipliers, of ε far above 100 and below 0.1, ε is extrapolated.
_NOISES, _NODES = (0.4, 30.0), 24
_REPORTED = reported.Reported('epe_jax.papers.tight_auditing')


def make_table1(settings: Any) -> product.Product:
  """The lower limits of a run that a right implementation must give.

  Args:
    settings: epsilons, runs (name -> steps, sampling_probability), audits, delta
      and seed.
  """
  rng = np.random.default_rng(settings.seed)
  columns: dict[str, dict[tuple[str, float], str]] = {}
  for name, run in settings.runs.items():
    accounted = _account(run, settings.delta)
    mechanism = steps.make_step_mechanism()._replace(
      compose=accounted.compose, is_composed=True
    )
    columns[name] = {}
    for epsilon in settings.epsilons:
      scores = observations.draw_observations(
        rng,
        (settings.audits, run.steps),
        noise_multiplier=accounted.calibrate(epsilon),
      )
      for key in steps.ESTIMATORS:
        estimate = steps.estimate_run(
          scores,
          key,
          mechanism=mechanism,
          delta=settings.delta,
          thresholds='same',
        )
        values = np.asarray(estimate.epsilon)
        text = f'{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}'
        paper = _REPORTED.find_row(f'table1_{key}', epsilon=epsilon)
        if paper is not None:
          text += f' ({paper[name]:.2f})'
        columns[name][key, epsilon] = text
  titles = {name: run.title for name, run in settings.runs.items()}
  body = [
    [
      steps.ESTIMATORS[key].label,
      f'{epsilon:g}',
      *(columns[name][key, epsilon] for name in titles),
    ]
    for key in steps.ESTIMATORS
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
      'Thresholds are chosen on the same observations, as in the paper: no bounds.',
    ],
  )
  return product.Product([table], {})


class _Run(NamedTuple):
  """ε of a run by its noise multiplier, from the PLDs of a few."""

  log_noise: Float[np.ndarray, 'm']
  log_epsilon: Float[np.ndarray, 'm']

  def compose(self, epsilon: float, delta: float) -> float:
    """ε of the run from that of a step with the canary in it."""
    if epsilon == 0 or np.isinf(epsilon):
      return epsilon
    noise = families.noise_of_epsilon(epsilon, delta)
    curve = interpolate.PchipInterpolator(self.log_noise, self.log_epsilon)
    return float(np.exp(curve(np.log(noise))))

  def calibrate(self, epsilon: float) -> float:
    """The noise multiplier at which the run has a given ε."""
    curve = interpolate.PchipInterpolator(
      self.log_epsilon[::-1], self.log_noise[::-1]
    )
    return float(np.exp(curve(np.log(epsilon))))


def _account(run: Any, delta: float) -> _Run:
  """Accounts for a run at several noise multipliers, by dp_accounting."""
  family = families.subsampled_gaussian_family(
    run.sampling_probability, steps=run.steps
  )
  noises = np.geomspace(*_NOISES, _NODES)
  epsilons = [
    family.epsilon(float(z), delta)
    for z in tqdm.tqdm(noises, desc=run.title, unit='noise')
  ]
  return _Run(np.log(noises), np.log(epsilons))
