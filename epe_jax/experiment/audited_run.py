"""One audited run, from a config to an ε."""

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent import futures
import contextlib
import functools
import importlib.metadata
import os
import platform
import tempfile
import time
from typing import Any, TypeVar

from absl import logging
import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
from jaxtyping import Float
import numpy as np
import tqdm

from epe_jax import accounting, canaries, io
from epe_jax._version import __version__
from epe_jax.audit import effective_dimension, estimates, publication, wrapper
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.audit.record import Record, make_record, write_record
from epe_jax.audit.round_scalars import RoundScalars
from epe_jax.audit.threat_models import THREAT_MODELS
from epe_jax.data import cohort
from epe_jax.experiment import (
  build,
  checkpoint,
  chunk_size,
  config_fields,
  dispatch,
  evaluation,
  inputs,
  metrics,
  model_file,
  participation,
  randomness,
  result_file,
  workdirs,
)
from epe_jax.parallel import in_flight, sharding
from epe_jax.training import fedavg
from epe_jax.types import Params

T = TypeVar('T')


def run(
  config: build.Config,
  workdir: str | os.PathLike,
  *,
  observers: build.Observe | None = None,
  threat_models: Sequence[ThreatModel] = THREAT_MODELS,
) -> dict[str, Any]:
  """Trains, audits and writes.

  A run that was killed continues from its newest checkpoint; a finished one is
  read back. In the workdir, as `workdirs` has it: result.json and model.npz,
  which may be published, and what is for the auditor alone. Without any
  canaries it is not audited: there is no scores.npz, no estimate and no
  analytic ε of canaries, None. All devices share the work; of several processes
  each has to call it, and the first one writes.

  Args:
    config: every field set, as the files in configs/ give it.
    workdir: a folder of its own for this run; made if missing.
    observers: who else watches, name -> canaries -> `audit.Observer`. What they
      score is in the record; of a run that is no simulation it is for the auditor
      alone. A run that goes on needs the same ones.
    threat_models: the attackers that are estimated, from who knows least to who knows
      most: yours among those of `audit.THREAT_MODELS`.

  Returns:
    What result.json holds; in processes but the first, nothing.

  Raises:
    ValueError, FileNotFoundError: as `build`; the workdir holds the run of
      another config, another process has it, or what the run read or drew from
      when it began is not what there is now.
    OSError: a disk is full or may not be written.
  """
  with io.explain_disk_errors(workdir):
    config = config_fields.check_config(config)
    return _run(config, workdir, observers, threat_models)


def _run(
  config: build.Config,
  workdir: str | os.PathLike,
  observers: build.Observe | None,
  threat_models: Sequence[ThreatModel],
) -> dict[str, Any]:
  """The run of a checked config, with its workdir for itself."""
  scratch = None
  if not sharding.is_primary():
    # What the others would write; it is thrown away.
    scratch = tempfile.TemporaryDirectory()
  files, result = (
    workdirs.workdir_at(scratch.name if scratch else workdir),
    None,
  )
  workdirs.claim(files.folder, config)
  if not _is_finished(files):
    with workdirs.lock(files):
      # Another process may have been at it until now.
      workdirs.claim(files.folder, config)
      workdirs.clear_failed_start(files, config)
      if not _is_finished(files):
        result = _train(config, files, observers, threat_models)
  if scratch:
    scratch.cleanup()
    return {}
  # Noise and sampling of a run that has ended are nobody's business.
  workdirs.remove_secrets(files)
  if result is None:
    logging.info('%s is finished; reading its result.', files.folder)
    result = result_file.load_result(files.result)
  return result


def _is_finished(files: workdirs.Workdir) -> bool:
  return bool(sharding.broadcast_from_primary(int(files.result.exists())))


def _train(
  config: build.Config,
  files: workdirs.Workdir,
  observers: build.Observe | None,
  threat_models: Sequence[ThreatModel],
) -> dict[str, Any]:
  """The one long function, read top to bottom; gives what result.json holds."""
  mesh = sharding.mesh()

  # 1. Every error of config or data comes here, before the first round.
  secret = _secret(config, files)
  this = build.build(config, secret=secret, mesh=mesh, observers=observers)
  this = chunk_size.with_chunk_size(config, this, mesh=mesh)
  took_part = this.who.canaries.sum(axis=0)
  analytic_clients = _analytic(config, this, this.who.most)
  analytic = None
  if this.observers:
    analytic = _analytic(config, this, int(took_part.max()))
  amplification = participation.describe_amplification(
    config, num_clients=this.train.num_clients, delta=this.delta
  )

  # 2. Write down what will be run, the config last: training begins with it.
  if sharding.is_primary():
    _fix_inputs(config, files, this, secret)

  # 3. Go on from the newest good checkpoint.
  saved = checkpoint.checkpoints(files.checkpoints)
  # As one program, so that no array of the model's size is made on the way.
  init = jax.jit(this.algorithm.init)
  state = init(sharding.replicate(mesh, this.params))
  advance = jax.jit(
    dispatch.make_advance(this.algorithm),
    donate_argnums=0,
    out_shardings=sharding.step_shardings(mesh, state),
  )
  flush = jax.jit(
    functools.partial(wrapper.flush, observers=this.observers),
    donate_argnums=0,
    out_shardings=sharding.current_shardings(mesh, state),
  )
  # How long each round took, and how long it waited.
  times = np.zeros((2, config.rounds), np.float32)
  kept = (wrapper.drop_buffers(state), times)
  start, (kept, times) = saved.restore(kept) or (0, kept)
  state = wrapper.restore_buffers(kept, state)
  del kept
  log = files.metrics
  evaluate = evaluation.evaluator(this.task, mesh=mesh)
  if start == 0:
    log.unlink(missing_ok=True)
    held_out = evaluate(state.algorithm.params, this.test)
    metrics.append_line(log, {'round': 0, **held_out})
  else:
    metrics.rewind_to(log, start)
    logging.info('Continuing from round %d of %s.', start, files.folder)

  # 4. Train, audited. Metrics come back while the next rounds are under way.
  training_key, noise_key = (
    sharding.replicate_key(mesh, key)
    for key in (this.randomness.training, this.randomness.noise)
  )
  progress = tqdm.tqdm(
    total=config.rounds,
    initial=start,
    unit='round',
    desc=config.task,
    disable=not sharding.is_primary(),
  )
  under_way: collections.deque[dispatch.Dispatched] = collections.deque()
  free, held_out = time.perf_counter(), {}
  with (
    progress,
    futures.ThreadPoolExecutor(1, 'fetch') as fetching,
    contextlib.ExitStack() as after,
  ):
    # However training ends, what is being written is finished.
    after.callback(saved.close)
    for asked, (rounds, cohorts) in _timed(_cohorts(config, this, start, mesh)):
      begun = time.perf_counter()
      state, seen = advance(state, cohorts, training_key, noise_key)
      del cohorts
      coming = fetching.submit(dispatch.fetch_metrics, seen)
      under_way.append(dispatch.Dispatched(rounds, asked, begun, coming))
      done = rounds.stop
      last = done == config.rounds
      evaluates = last or done % config.evaluate_every == 0
      saves = last or done % config.checkpoint_every == 0
      held_out = {}
      if evaluates:
        held_out = evaluate(state.algorithm.params, this.test)
        progress.set_postfix(accuracy=f'{held_out["test_accuracy"]:.3f}')
      # Nothing of a round that diverged is ever saved.
      for sent in in_flight.pop_due(under_way, drain=evaluates or saves):
        records, free = dispatch.collect(sent, free)
        for line in records:
          _check_finite(config, line)
          times[:, line['round'] - 1] = line['seconds'], line['waited']
          more = held_out if line['round'] == done else {}
          metrics.append_line(log, line | more)
          progress.update()
      if saves:
        # Vectors of rounds are scored, and never written.
        state = flush(state)
        saved.save(done, (wrapper.drop_buffers(state), times))
      if evaluates or saves:
        free = time.perf_counter()
  # Nothing if the last checkpoint was all that there was to go on from.
  held_out = held_out or evaluate(state.algorithm.params, this.test)
  score = jax.jit(
    functools.partial(wrapper.score_observers, observers=this.observers)
  )
  scores = sharding.copy_to_host(score(state))
  rounds = sharding.copy_to_host(state.rounds)
  params = sharding.copy_to_host(state.algorithm.params)
  if not sharding.is_primary():
    return {}

  found, wide = estimates.Audit(()), None
  if this.observers:
    # 5. Scores: all an estimator needs, without the model.
    whole = record_run(config, this, scores, rounds)
    write_record(files.scores, whole)

    # 6. Estimates, each beside its floor; of a model that will be released those
    # that may be too.
    shown = whole if config.simulation else publication.redact_record(whole)
    found = estimates.evaluate(shown, threat_models=threat_models)
    wide = _summarize_dimension(
      config, this, params, rounds.effective_dimension
    )
    if doubt := effective_dimension.warn_if_low(wide):
      logging.warning('%s', doubt)

  # 7. The model and the result, by which the run has ended.
  model_file.write_params(files.model, params)
  result = {
    'task': config.task,
    'data': this.source,
    'config': config.to_dict(),
    'versions': versions(),
    'rounds': config.rounds,
    'dim': this.dim,
    'delta': this.delta,
    'num_observed': int(np.count_nonzero(took_part)),
    'num_unobserved': int(np.count_nonzero(took_part == 0)),
    'repetitions': config.canaries.repetitions,
    'noise_multiplier': config.noise_multiplier,
    'noise': 'reproducible simulation' if config.simulation else 'fresh',
    'analytic_epsilon': analytic and analytic.epsilon,
    'analytic_assumes': analytic and analytic.assumes,
    'clients_analytic_epsilon': analytic_clients.epsilon,
    'clients_analytic_assumes': analytic_clients.assumes,
    'amplification': amplification,
    'audit': found,
    'effective_dimension': wide,
    'accuracy': held_out['test_accuracy'],
    'loss': held_out['test_loss'],
    'baseline_accuracy': this.baseline,
  }
  if config.simulation:
    # They tell how many clients came, and how many examples these have.
    result |= _summarize_timing(this, *times)
  result_file.write_result(files.result, result)
  return result


def record_run(
  config: build.Config,
  this: build.Run,
  cosines: Mapping[str, Float[np.ndarray, '... k']],
  rounds: RoundScalars,
) -> Record:
  """What is kept of a run for estimators.

  Args:
    config: every field set.
    this: what was built of it.
    cosines: what its observers scored, by name.
    rounds: what is known of each round, in NumPy.
  """
  is_sgd = config.server.optimizer == 'sgd'
  return make_record(
    cosines,
    rounds,
    included=this.who.canaries,
    assigned=this.who.assigned,
    design=this.who.design,
    momentum=float(config.server.momentum) if is_sgd else None,
    dim=this.dim,
    delta=this.delta,
  )


def versions() -> dict[str, str]:
  """Versions of what decides the numbers, and the device."""
  packages = ('jax', 'jaxlib', 'flax', 'optax', 'numpy', 'scipy')
  device = jax.devices()[0]
  return {
    'epe_jax': __version__,
    'python': platform.python_version(),
    **{name: importlib.metadata.version(name) for name in packages},
    'device': f'{jax.device_count()} x {device.device_kind}',
  }


def _check_finite(config: build.Config, line: Mapping[str, float]) -> None:
  if not np.isfinite(line['aggregate_norm']):
    raise FloatingPointError(
      f'round {line["round"] - 1}: the aggregate is not finite, training has '
      f'diverged. Lower client.learning_rate={config.client.learning_rate} or '
      f'server.learning_rate={config.server.learning_rate}.'
    )


def _analytic(
  config: build.Config, this: build.Run, participations: int
) -> accounting.Analytic:
  """ε of one who takes part so often."""
  found = accounting.epsilon_of_releases(
    config.noise_multiplier, delta=this.delta, participations=participations
  )
  if config.divisor == 'expected':
    return found
  # The actual number of clients shows in what it divides.
  public = '; clients of a round counted in public'
  return found._replace(assumes=found.assumes + public)


def _summarize_timing(
  this: build.Run,
  seconds: Float[np.ndarray, ' T'],
  waited: Float[np.ndarray, ' T'],
) -> dict[str, float]:
  """What the machine made of the run."""
  total = float(seconds.sum())
  # The first cohort of a run cannot be made while another round runs.
  idle = float(waited[1:].sum())
  return {
    'chunk': this.plan.chunk,
    'seconds_per_round': float(np.median(seconds)),
    'seconds': total,
    'waited_share': idle / (idle + total),
  }


def _summarize_dimension(
  config: build.Config,
  this: build.Run,
  params: Params,
  rounds: Float[np.ndarray, ' T'],
) -> dict[str, Any]:
  """On how many coordinates the mass lies of what was scored."""
  start, _ = ravel_pytree(this.params)
  final, _ = ravel_pytree(params)
  both = canaries.effective_dimension(jnp.stack([final, final - start]))
  family = config.canaries.family
  return effective_dimension.summarize(
    family,
    needed=canaries.min_effective_dimension(family, this.dim),
    rounds=rounds.tolist(),
    final_model=float(both[0]),
    change=float(both[1]),
  )


def _secret(config: build.Config, files: workdirs.Workdir) -> bytes | None:
  """What noise and sampling follow from; None in a simulation.

  A run that goes on has to repeat the rounds it repeats: one that is released
  under two noises would be worth two releases. So the first process keeps it, for
  its owner's eyes only, until the run is finished.
  """
  if config.simulation:
    return None
  words = np.zeros(randomness.SECRET_BYTES // 4, np.uint32)
  if sharding.is_primary():
    if files.secret.exists():
      secret = files.secret.read_bytes()
      randomness.check_secret(secret, str(files.secret))
    elif not files.config.exists():
      secret = randomness.draw_secret()
    else:
      raise ValueError(
        f'{files.secret} is missing, from which the noise of this run follows. '
        'With other noise the rounds that it has made would be released twice. '
        'Restore it, or begin anew in another --workdir and publish nothing of '
        'this one.'
      )
    words = np.frombuffer(secret, np.uint32)
  return sharding.broadcast_from_primary(words).tobytes()


def _fix_inputs(
  config: build.Config,
  files: workdirs.Workdir,
  this: build.Run,
  secret: bytes | None,
) -> None:
  """Writes what a run begins with, or checks that it goes on with the same."""
  now = inputs.compute_digests(config, this.train, this.test)
  if files.config.exists():
    inputs.check_digests(files.inputs, now)
    return
  if secret is not None:
    io.write_atomically(files.secret, lambda f: f.write(secret), private=True)
  io.write_json(files.inputs, now, private=True)
  io.write_json(files.config, config.to_dict())


def _cohorts(
  config: build.Config,
  this: build.Run,
  start: int,
  mesh: sharding.Mesh | None,
) -> Iterator[tuple[range, fedavg.Cohort]]:
  """Rounds to send as one, and their cohorts.

  The cohorts are made ahead by a thread and put on the devices.
  """
  spans = dispatch.dispatch_groups(
    start,
    config.rounds,
    most=config.rounds_per_dispatch,
    every=(config.evaluate_every, config.checkpoint_every),
  )
  rounds = {span.start: span for span in spans}

  def gather(t: int) -> fedavg.Cohort:
    return cohort.gather(
      this.train,
      this.who.clients(t),
      this.plan,
      seed=this.randomness.order,
      round=t,
      parts=sharding.local_devices_of(mesh),
      of=sharding.num_devices(mesh),
    )

  def make(first: int) -> fedavg.Cohort:
    made = cohort.stack_rounds([gather(t) for t in rounds[first]])
    return sharding.assemble_global(mesh, made, axis=1)

  # By map, because a local name would keep a cohort while the next round runs.
  return map(
    lambda made: (rounds[made[0]], made[1]), cohort.prefetch(make, rounds)
  )


def _timed(items: Iterable[T]) -> Iterator[tuple[float, T]]:
  """Items, each with the time when it was asked for."""
  items = iter(items)
  while True:
    asked = time.perf_counter()
    try:
      # No local name, as above.
      yield asked, next(items)
    except StopIteration:
      return
