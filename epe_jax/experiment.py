"""One audited run, from a config to an ε."""

import collections
from collections.abc import Iterable, Iterator, Mapping
from concurrent import futures
import importlib.metadata
import os
import pathlib
import platform
import secrets
import shutil
import statistics
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

from epe_jax import (
  accounting,
  audit,
  build,
  canaries,
  checkpoint,
  chunks,
  config_fields,
  disk,
  dispatch,
  estimates,
  evaluation,
  fedavg,
  in_flight,
  metrics,
  model_releases,
  participation,
  results,
  sharding,
  spread,
)
from epe_jax._version import __version__
from epe_jax.data import cohort
from epe_jax.round_scalars import RoundScalars
from epe_jax.types import Key

T = TypeVar('T')

# What a run has in its workdir before its first round.
_OF_A_START = {'config.json', 'metrics.jsonl', 'noise_key', 'checkpoints'}


def run(config: build.Config, workdir: str | os.PathLike) -> dict[str, Any]:
  """Trains, audits and writes.

  A run that was killed continues from its newest checkpoint; a finished one is
  read back. In the workdir: config.json, metrics.jsonl, scores.npz and
  result.json. Without any canaries it is not audited: there is no scores.npz,
  no estimate and no analytic ε of canaries, None. All devices share the work;
  of several processes each has to call it, and the first one writes.

  Args:
    config: every field set, as the files in configs/ give it.
    workdir: a folder of its own for this run; made if missing.

  Returns:
    What result.json holds; in processes but the first, nothing.

  Raises:
    ValueError, FileNotFoundError: as `build`, or the workdir holds the run of
      another config.
    OSError: a disk is full or may not be written.
  """
  with disk.explained(workdir):
    return _run(config, workdir)


def _run(config: build.Config, workdir: str | os.PathLike) -> dict[str, Any]:
  """The one long function, read top to bottom."""
  config = config_fields.checked(config)
  mesh = sharding.mesh()
  scratch = None
  if not sharding.first():
    # What the others would write; it is thrown away.
    scratch = tempfile.TemporaryDirectory()
  workdir = pathlib.Path(scratch.name if scratch else workdir)
  claim(workdir, config)
  if sharding.from_first(int((workdir / 'result.json').exists())):
    if scratch:
      scratch.cleanup()
      return {}
    logging.info('%s is finished; reading its result.', workdir)
    return results.read_json(workdir / 'result.json')

  # 1. Every error of config or data comes here, before the first round.
  this = chunks.sized(config, build.build(config, mesh=mesh), mesh=mesh)
  took_part = this.who.canaries.sum(axis=0)
  analytic_clients = _analytic(config, this, this.who.most)
  analytic = None
  if this.observers:
    analytic = _analytic(config, this, int(took_part.max()))

  # 2. Write down what will be run.
  results.write_json(workdir / 'config.json', config.to_dict())

  # 3. Go on from the newest good checkpoint.
  saved = checkpoint.checkpoints(workdir / 'checkpoints')
  noise_key = sharding.replicated_key(
    mesh, _noise_key(config, workdir / 'noise_key')
  )
  # As one program, so that no array of the model's size is made on the way.
  init = jax.jit(this.algorithm.init)
  state = init(sharding.replicated(mesh, this.params))
  advance = jax.jit(
    dispatch.advance(this.algorithm),
    donate_argnums=0,
    out_shardings=sharding.layout(mesh, state),
  )
  start, state = saved.restore(state) or (0, state)
  log = workdir / 'metrics.jsonl'
  evaluate = evaluation.evaluator(this.task, mesh=mesh)
  if start == 0:
    log.unlink(missing_ok=True)
    held_out = evaluate(state.algorithm.params, this.test)
    metrics.append(log, {'round': 0, **held_out})
  else:
    metrics.rewind(log, start)
    logging.info('Continuing from round %d of %s.', start, workdir)

  # 4. Train, audited. Metrics come back while the next rounds are under way.
  training_key = sharding.replicated_key(mesh, build.key(config, 'training'))
  progress = tqdm.tqdm(
    total=config.rounds,
    initial=start,
    unit='round',
    desc=config.task,
    disable=scratch is not None,
  )
  under_way: collections.deque[dispatch.Sent] = collections.deque()
  free = time.perf_counter()
  with progress, futures.ThreadPoolExecutor(1, 'fetch') as fetching:
    for asked, (rounds, cohorts) in _timed(_cohorts(config, this, start, mesh)):
      begun = time.perf_counter()
      state, seen = advance(state, cohorts, training_key, noise_key)
      del cohorts
      coming = fetching.submit(dispatch.fetched, seen)
      under_way.append(dispatch.Sent(rounds, asked, begun, coming))
      done = rounds.stop
      last = done == config.rounds
      evaluates = last or done % config.evaluate_every == 0
      saves = last or done % config.checkpoint_every == 0
      held_out = {}
      if evaluates:
        held_out = evaluate(state.algorithm.params, this.test)
        progress.set_postfix(accuracy=f'{held_out["test_accuracy"]:.3f}')
      # Nothing of a round that diverged is ever saved.
      for sent in in_flight.due(under_way, drain=evaluates or saves):
        records, free = dispatch.landed(sent, free)
        for record in records:
          _check_finite(config, record)
          more = held_out if record['round'] == done else {}
          metrics.append(log, record | more)
          progress.update()
      if saves:
        saved.save(done, state)
      if evaluates or saves:
        free = time.perf_counter()
  saved.close()
  looked, rounds = _looks(this, state), sharding.on_host(state.rounds)
  if scratch:
    scratch.cleanup()
    return {}

  history = metrics.read(log)
  every_round = [record for record in history if 'seconds' in record]
  found, wide = estimates.Audit([], [], None), None
  if this.observers:
    # 5. Scores: all an estimator needs, without the model.
    kept = recorded(config, this, looked, rounds)
    results.write_scores(workdir / 'scores.npz', kept)

    # 6. Estimates, each beside its floor.
    found = estimates.evaluate(kept)
    wide = _spread(config, this, state, rounds.effective_dimension)
    if doubt := spread.warning(wide):
      logging.warning('%s', doubt)

  # 7. The result.
  seconds = [record['seconds'] for record in every_round]
  # The first cohort of a run cannot be made while another round runs.
  waited = sum(record['waited'] for record in every_round[1:])
  result = {
    'schema': results.SCHEMA,
    'task': config.task,
    'data': this.source,
    'config': config.to_dict(),
    'versions': versions(),
    'rounds': config.rounds,
    'dim': this.dim,
    'chunk': this.plan.chunk,
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
    'amplification': participation.amplification(
      config, num_clients=this.train.num_clients, delta=this.delta
    ),
    **found._asdict(),
    'effective_dimension': wide,
    'accuracy': history[-1]['test_accuracy'],
    'loss': history[-1]['test_loss'],
    'baseline_accuracy': this.baseline,
    'seconds_per_round': statistics.median(seconds),
    'seconds': sum(seconds),
    'waited_share': waited / (waited + sum(seconds)),
  }
  results.write_json(workdir / 'result.json', result)
  # The noise of a finished run is nobody's business.
  (workdir / 'noise_key').unlink(missing_ok=True)
  return result


def claim(workdir: pathlib.Path, config: build.Config) -> None:
  """Makes the workdir, or checks that the run in it is of this config.

  A run has begun with its first round; until then another config may have its
  place, as that which mends what made it fail.

  Raises:
    ValueError: it holds the run of another config, or something else.
  """
  workdir.mkdir(parents=True, exist_ok=True)
  path = workdir / 'config.json'
  if path.exists():
    before, now = _flat(results.read_json(path)), _flat(config.to_dict())
    differ = [
      f'{name} was {before.get(name)!r} and is {now.get(name)!r}'
      for name in sorted(before.keys() | now.keys())
      if before.get(name) != now.get(name)
    ]
    if differ and _failed_to_start(workdir):
      # Nothing of it is kept, and its config claims nothing.
      shutil.rmtree(workdir)
      workdir.mkdir()
    elif differ:
      raise ValueError(
        f'workdir={workdir} holds a run of another config: '
        f'{"; ".join(differ)}. Give another --workdir, or remove this one.'
      )
  elif any(workdir.iterdir()):
    raise ValueError(
      f'workdir={workdir} has files in it but no config.json, so it is no run '
      'of ours. Give an empty or a new folder.'
    )


def _failed_to_start(workdir: pathlib.Path) -> bool:
  """Whether all there is was written before the first round of a run."""
  log = workdir / 'metrics.jsonl'
  recorded = log.exists() and any(line['round'] for line in metrics.read(log))
  saved = any((workdir / 'checkpoints').glob('[0-9]*'))
  names = {path.name for path in workdir.iterdir()}
  return not recorded and not saved and names <= _OF_A_START


def recorded(
  config: build.Config,
  this: build.Run,
  looked: Mapping[str, Float[np.ndarray, '...']],
  rounds: RoundScalars,
) -> results.Recorded:
  """What is kept of a run for estimators.

  Args:
    config: every field set.
    this: what was built of it.
    looked: the scores of its observers, by name.
    rounds: what is known of each round, in NumPy.
  """
  final, change = looked['final']
  trace, residual = looked['trace']
  momentum, weight = None, np.empty(0)
  if config.server.optimizer == 'sgd':
    momentum = float(config.server.momentum)
    weight = model_releases.weight(rounds, this.who.seats, momentum=momentum)
  return results.Recorded(
    final=final,
    change=change,
    trace=trace,
    residual=residual,
    rounds=rounds,
    momentum=momentum,
    weight=np.asarray(weight, np.float32),
    participation=this.who.canaries,
    seats=this.who.seats,
    design=this.who.design,
    sees=config.audit.sees,
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


def _check_finite(config: build.Config, record: Mapping[str, float]) -> None:
  if not np.isfinite(record['aggregate_norm']):
    raise FloatingPointError(
      f'round {record["round"] - 1}: the aggregate is not finite, training has '
      f'diverged. Lower client.learning_rate={config.client.learning_rate} or '
      f'server.learning_rate={config.server.learning_rate}.'
    )


def _analytic(
  config: build.Config, this: build.Run, participations: int
) -> accounting.Analytic:
  """ε of one who takes part so often."""
  found = accounting.releases(
    config.noise_multiplier, delta=this.delta, participations=participations
  )
  if config.divisor == 'expected':
    return found
  # The actual number of clients shows in what it divides.
  public = '; clients of a round counted in public'
  return found._replace(assumes=found.assumes + public)


def _looks(
  this: build.Run, state: audit.AuditState
) -> dict[str, Float[np.ndarray, '...']]:
  """What the observers saw in all rounds, by name."""
  return {
    name: np.asarray(
      sharding.on_host(
        jax.jit(observer.scores)(state.observers[name], state.algorithm.params)
      ),
      np.float32,
    )
    for name, observer in this.observers.items()
  }


def _spread(
  config: build.Config,
  this: build.Run,
  state: audit.AuditState,
  rounds: Float[np.ndarray, ' T'],
) -> dict[str, Any]:
  """On how many coordinates the mass lies of what was looked at."""
  start, _ = ravel_pytree(this.params)
  # By way of the host: the other processes have left by now.
  final, _ = ravel_pytree(sharding.on_host(state.algorithm.params))
  both = canaries.effective_dimension(jnp.stack([final, final - start]))
  family = config.canaries.family
  return spread.of_run(
    family,
    needed=canaries.least_dimension(family, this.dim),
    rounds=rounds.tolist(),
    final_model=float(both[0]),
    change=float(both[1]),
  )


def _noise_key(config: build.Config, path: pathlib.Path) -> Key:
  """The key of the privacy noise.

  In a simulation it follows from the seed. Otherwise it comes from the
  operating system and waits in a file for its owner's eyes only, until the run
  is finished: a run that continues has to repeat the noise of the rounds it
  repeats, for one round released under two noises would be worth two releases.
  """
  if config.simulation:
    return build.key(config, 'noise')
  if not path.exists() and sharding.first():
    draft = path.with_suffix('.draft')
    flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC
    with os.fdopen(os.open(draft, flags, 0o600), 'wb') as f:
      f.write(secrets.token_bytes(8))
    draft.replace(path)
  words = np.zeros(2, np.uint32)
  if sharding.first():
    words = np.frombuffer(path.read_bytes(), np.uint32)
  words = sharding.from_first(words)
  return jax.random.wrap_key_data(jnp.asarray(words), impl='threefry2x32')


def _cohorts(
  config: build.Config,
  this: build.Run,
  start: int,
  mesh: sharding.Mesh | None,
) -> Iterator[tuple[range, fedavg.Cohort]]:
  """Rounds to send as one, and their cohorts.

  The cohorts are made ahead by a thread and put on the devices.
  """
  spans = dispatch.spans(
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
      seed=config.seed,
      round=t,
      parts=sharding.own(mesh),
      of=sharding.count(mesh),
    )

  def make(first: int) -> fedavg.Cohort:
    made = cohort.stacked([gather(t) for t in rounds[first]])
    return sharding.assembled(mesh, made, axis=1)

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


def _flat(config: dict[str, Any], prefix: str = '') -> dict[str, Any]:
  flat = {}
  for name, value in config.items():
    if isinstance(value, dict):
      flat |= _flat(value, f'{prefix}{name}.')
    else:
      flat[prefix + name] = value
  return flat
