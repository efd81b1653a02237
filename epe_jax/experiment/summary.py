"""Summaries of a finished run: its sizes, noise, estimates, accuracy and times."""

from collections.abc import Mapping, Sequence
import dataclasses
import datetime
import importlib.metadata
import platform

import jax
from jax.flatten_util import ravel_pytree
from jaxtyping import Float
import numpy as np

from epe_jax import __version__, canaries, io
from epe_jax.audit import effective_dimensions, results
from epe_jax.audit.effective_dimensions import EffectiveDimensions
from epe_jax.experiment.client_rounds import Shifts
from epe_jax.experiment.run_result import RunResult
from epe_jax.experiment.setup import build
from epe_jax.experiment.setup.analytic import PrivacyAnalysis
from epe_jax.experiment.setup.config import Config
from epe_jax.types import Array, Params
from epe_jax.watch.by_round import Rounds
from epe_jax.watch.sequential import ClaimTest


def summarize_run(
  config: Config,
  setup: build.Setup,
  *,
  privacy: PrivacyAnalysis,
  audit: results.Audit,
  claim: ClaimTest | None,
  dimension: EffectiveDimensions | None,
  evaluation: Mapping[str, float],
  times: Float[np.ndarray, '2 T'],
  arithmetic: Sequence[str],
  model_sha256: str,
  record_sha256: str | None,
  clients_shifts: Shifts | None,
  leaks_by_round: Rounds | None,
  argv: Sequence[str] | None,
) -> RunResult:
  """Summarizes a finished run; `times` are seconds of rounds, and of waiting."""
  rounds_of_canary = setup.participants.canaries.sum(axis=0)
  of_canary, of_client = privacy.canaries, privacy.clients
  result = RunResult(
    task=config.task,
    # Results may be published, and paths tell of the machine.
    data=io.hide_paths(setup.source),
    config=io.hide_paths(config.to_dict()),
    argv=argv and io.hide_paths(argv),
    versions=collect_versions(),
    rounds=config.rounds,
    dim=setup.dim,
    delta=setup.delta,
    num_observed=int(np.count_nonzero(rounds_of_canary)),
    num_unobserved=int(np.count_nonzero(rounds_of_canary == 0)),
    participations=int(rounds_of_canary.max(initial=0)),
    noise_multiplier=config.noise_multiplier,
    noise='reproducible_simulation' if config.simulation else 'fresh',
    analytic_epsilon=of_canary and of_canary.epsilon,
    analytic_assumes=of_canary and of_canary.assumes,
    clients_participations=setup.participants.max_rounds,
    clients_analytic_epsilon=of_client.epsilon,
    clients_analytic_assumes=of_client.assumes,
    amplification=privacy.amplification,
    clients_shifts=clients_shifts,
    leaks_by_round=leaks_by_round,
    audit=audit,
    claim=claim,
    effective_dimension=dimension,
    accuracy=evaluation['test_accuracy'],
    loss=evaluation['test_loss'],
    baseline_accuracy=setup.baseline,
    # The day alone: how long a run took depends on who took part.
    date=datetime.datetime.now(datetime.UTC).date().isoformat(),
    arithmetic=arithmetic,
    model_sha256=model_sha256,
    record_sha256=record_sha256,
  )
  if config.simulation:
    times_of_run = _summarize_times(setup, *times)
    result = dataclasses.replace(result, **times_of_run)
  return result


def summarize_dimension(
  config: Config,
  setup: build.Setup,
  params: Params,
  rounds: Float[np.ndarray, ' T'],
) -> EffectiveDimensions:
  """Summarizes the effective dimension of aggregates of rounds and of the model."""
  # As one program: its operations one by one would each be compiled.
  final, change = jax.jit(_measure_model)(setup.params, params)
  family = config.canaries.family
  return effective_dimensions.summarize(
    family,
    threshold=canaries.min_effective_dimension(family, setup.dim),
    rounds=rounds.tolist(),
    final_model=float(final),
    change=float(change),
  )


def _measure_model(
  start: Params, end: Params
) -> tuple[Float[Array, ''], Float[Array, '']]:
  """Effective dimensions of a final model, and of its change."""
  initial, final = ravel_pytree(start)[0], ravel_pytree(end)[0]
  return (
    canaries.effective_dimension(final),
    canaries.effective_dimension(final - initial),
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


def _summarize_times(
  setup: build.Setup,
  seconds: Float[np.ndarray, ' T'],
  waited: Float[np.ndarray, ' T'],
) -> dict[str, float]:
  total = float(seconds.sum())
  # The first cohort of a run cannot be made while another round runs.
  idle = float(waited[1:].sum())
  return {
    'chunk': setup.plan.chunk,
    'seconds_per_round': float(np.median(seconds)),
    'seconds': total,
    'waited_share': idle / (idle + total),
  }
