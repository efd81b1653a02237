"""What a finished run tells of its settings, its model and its times."""

import datetime
import importlib.metadata
import platform
from typing import Any

import jax
from jax.flatten_util import ravel_pytree
from jaxtyping import Float
import numpy as np

from epe_jax import __version__, canaries, io
from epe_jax.audit import effective_dimensions
from epe_jax.audit.effective_dimensions import EffectiveDimensions
from epe_jax.experiment.setup import build
from epe_jax.experiment.setup.analytic import PrivacyAnalysis
from epe_jax.experiment.setup.config import Config
from epe_jax.types import Array, Params


def describe_run(
  config: Config, setup: build.Setup, privacy: PrivacyAnalysis
) -> dict[str, Any]:
  """The fields of a `RunResult` that are known before the first round."""
  rounds_of_canary = setup.participants.canaries.sum(axis=0)
  of_canary, of_client = privacy.canaries, privacy.clients
  return {
    'task': config.task,
    # Results may be published, and paths tell of the machine.
    'data': io.hide_paths(setup.source),
    'config': io.hide_paths(config.to_dict()),
    'versions': collect_versions(),
    'rounds': config.rounds,
    'dim': setup.dim,
    'delta': setup.delta,
    'num_observed': int(np.count_nonzero(rounds_of_canary)),
    'num_unobserved': int(np.count_nonzero(rounds_of_canary == 0)),
    'participations': int(rounds_of_canary.max(initial=0)),
    'noise_multiplier': config.noise_multiplier,
    'noise': 'reproducible_simulation' if config.simulation else 'fresh',
    'analytic_epsilon': of_canary and of_canary.epsilon,
    'analytic_assumes': of_canary and of_canary.assumes,
    'clients_participations': setup.participants.max_rounds,
    'clients_analytic_epsilon': of_client.epsilon,
    'clients_analytic_assumes': of_client.assumes,
    'amplification': privacy.amplification,
    'baseline_accuracy': setup.baseline,
    # The day alone: how long a run took depends on who took part.
    'date': datetime.datetime.now(datetime.UTC).date().isoformat(),
  }


def describe_times(
  setup: build.Setup,
  seconds: Float[np.ndarray, ' T'],
  waited: Float[np.ndarray, ' T'],
) -> dict[str, Any]:
  """The fields of a `RunResult` that tell how long rounds took, and waited."""
  total = float(seconds.sum())
  # The first cohort of a run cannot be made while another round runs.
  idle = float(waited[1:].sum())
  return {
    'chunk': setup.plan.chunk,
    'seconds_per_round': float(np.median(seconds)),
    'seconds': total,
    'waited_share': idle / (idle + total),
  }


def summarize_dimension(
  config: Config,
  setup: build.Setup,
  params: Params,
  rounds: Float[np.ndarray, ' T'],
) -> EffectiveDimensions:
  """Summarizes the effective dimension of aggregates of rounds and of the model."""

  # As one program: its operations one by one would each be compiled.
  @jax.jit
  def measure_model(
    start: Params, end: Params
  ) -> tuple[Float[Array, ''], Float[Array, '']]:
    initial, final = ravel_pytree(start)[0], ravel_pytree(end)[0]
    return (
      canaries.effective_dimension(final),
      canaries.effective_dimension(final - initial),
    )

  final, change = measure_model(setup.params, params)
  family = config.canaries.family
  return effective_dimensions.summarize(
    family,
    threshold=canaries.min_effective_dimension(family, setup.dim),
    rounds=rounds.tolist(),
    final_model=float(final),
    change=float(change),
  )


def collect_versions() -> dict[str, str]:
  """Collects the versions of what decides the numbers, and names the device."""
  packages = ('jax', 'jaxlib', 'flax', 'optax', 'numpy', 'scipy')
  device = jax.devices()[0]
  return {
    'epe_jax': __version__,
    'python': platform.python_version(),
    **{name: importlib.metadata.version(name) for name in packages},
    'device': f'{jax.device_count()} x {device.device_kind}',
  }
