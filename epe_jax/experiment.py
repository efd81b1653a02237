"""One audited run, from a config to an ε."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import importlib.metadata
import os
import pathlib
import platform
import secrets
import statistics
import time
from typing import Any, TypeVar

from absl import logging
import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
from jaxtyping import Bool, Float
import numpy as np
import tqdm

from epe_jax import (
  accounting,
  audit,
  build,
  canaries,
  checkpoint,
  estimates,
  fedavg,
  metrics,
  participation,
  results,
  spread,
)
from epe_jax._version import __version__
from epe_jax.data import cohort, federated
from epe_jax.types import Array, Batch, Key, Params, Task, weighted

T = TypeVar('T')


def run(config: build.Config, workdir: str | os.PathLike) -> dict[str, Any]:
  """Trains, audits and writes: the one long function, read top to bottom.

  A run that was killed continues from its newest checkpoint; a finished one is
  read back. In the workdir: config.json, metrics.jsonl, scores.npz and
  result.json. Without any canaries it is not audited: there is no scores.npz,
  no estimate and no analytic ε of canaries, None.

  Args:
    config: every field set, as the files in configs/ give it.
    workdir: a folder of its own for this run; made if missing.

  Returns:
    What result.json holds.

  Raises:
    ValueError, FileNotFoundError: as `build`, or the workdir holds the run of
      another config.
  """
  workdir = pathlib.Path(workdir)
  claim(workdir, config)
  if (workdir / 'result.json').exists():
    logging.info('%s is finished; reading its result.', workdir)
    return results.read_json(workdir / 'result.json')

  # 1. Every error of config or data comes here, before the first round.
  this = build.build(config)
  took_part = this.who.canaries.sum(axis=0)
  analytic_clients = _analytic(config, this, this.who.most)
  analytic = None
  if this.observers:
    analytic = _analytic(config, this, int(took_part.max()))

  # 2. Write down what will be run.
  results.write_json(workdir / 'config.json', config.to_dict())

  # 3. Go on from the newest good checkpoint.
  saved = checkpoint.checkpoints(workdir / 'checkpoints')
  noise_key = _noise_key(config, workdir / 'noise_key')
  state = this.algorithm.init(this.params)
  step = jax.jit(this.algorithm.step, donate_argnums=0)
  start, state = saved.restore(state) or (0, state)
  log = workdir / 'metrics.jsonl'
  evaluate = evaluator(this.task)
  if start == 0:
    log.unlink(missing_ok=True)
    held_out = evaluate(state.algorithm.params, this.test)
    metrics.append(log, {'round': 0, **held_out})
  else:
    metrics.rewind(log, start)
    logging.info('Continuing from round %d of %s.', start, workdir)

  # 4. Train, audited.
  training_key = build.key(config, 'training')
  progress = tqdm.tqdm(
    total=config.rounds, initial=start, unit='round', desc=config.task
  )
  with progress:
    for waited, (t, batch) in _timed(_cohorts(config, this, start)):
      begun = time.perf_counter()
      state, info = step(
        state,
        batch,
        jax.random.fold_in(training_key, t),
        jax.random.fold_in(noise_key, t),
      )
      record = {name: float(x) for name, x in info.metrics.items()}
      record['seconds'] = time.perf_counter() - begun
      record['waited'] = waited
      if not np.isfinite(record['aggregate_norm']):
        raise FloatingPointError(
          f'round {t}: the aggregate is not finite, training has diverged. '
          f'Lower client.learning_rate={config.client.learning_rate} or '
          f'server.learning_rate={config.server.learning_rate}.'
        )
      done = t + 1
      if done % config.evaluate_every == 0 or done == config.rounds:
        held_out = evaluate(state.algorithm.params, this.test)
        progress.set_postfix(accuracy=f'{held_out["test_accuracy"]:.3f}')
        record |= held_out
      metrics.append(log, {'round': done, **record})
      if done % config.checkpoint_every == 0 or done == config.rounds:
        saved.save(done, state)
      progress.update()
  saved.close()

  history = metrics.read(log)
  every_round = [record for record in history if 'seconds' in record]
  rows, wide = [], None
  if this.observers:
    # 5. Scores: all an estimator needs, without the model.
    expected = [record['canary_cosine'] for record in every_round]
    kept = recorded(config, this, _looks(this, state), expected)
    results.write_scores(workdir / 'scores.npz', kept)

    # 6. Estimates, each beside its floor.
    rows = estimates.of_run(kept)
    wide = _spread(config, this, state, every_round)
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
    'estimates': rows,
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
    if differ:
      raise ValueError(
        f'workdir={workdir} holds a run of another config: '
        f'{"; ".join(differ)}. Give another --workdir, or remove this one.'
      )
  elif any(workdir.iterdir()):
    raise ValueError(
      f'workdir={workdir} has files in it but no config.json, so it is no run '
      'of ours. Give an empty or a new folder.'
    )


def evaluator(
  task: Task, *, batch_size: int = 64
) -> Callable[[Params, federated.FederatedData], dict[str, float]]:
  """(params, data) -> 'test_' + name -> mean of a metric over all examples."""

  @jax.jit
  def sums(params: Params, batch: Batch, mask: Bool[Array, ' b']):
    values = {k: weighted(x) for k, x in task.metrics(params, batch).items()}
    return jax.tree.map(lambda x: jnp.sum(jnp.where(mask, x, 0)), values)

  def evaluate(
    params: Params, data: federated.FederatedData
  ) -> dict[str, float]:
    totals: dict[str, np.ndarray] = {}
    for batch, mask in cohort.eval_batches(data, batch_size=batch_size):
      for name, x in jax.device_get(sums(params, batch, mask)).items():
        # Over all batches in float64: float32 stops counting at 2^24.
        totals[name] = totals.get(name, 0) + np.array(x, np.float64)
    return {
      f'test_{k}': float(total / weight) if weight > 0 else 0.0
      for k, (total, weight) in totals.items()
    }

  return evaluate


def recorded(
  config: build.Config,
  this: build.Run,
  looked: Mapping[str, Float[np.ndarray, '...']],
  expected: Sequence[float],
) -> results.Recorded:
  """What is kept of a run for estimators.

  Args:
    config: every field set.
    this: what was built of it.
    looked: the scores of its observers, by name.
    expected: the metric canary_cosine of each round.
  """
  final, change = looked['final']
  trace, residual = looked['trace']
  # After the server optimizer it is not known what a canary is left with.
  known = expected if config.audit.sees == 'aggregate' else []
  return results.Recorded(
    final=final,
    change=change,
    trace=trace,
    residual=residual,
    expected=np.array(known, np.float32),
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
      jax.jit(observer.scores)(state.observers[name], state.algorithm.params),
      np.float32,
    )
    for name, observer in this.observers.items()
  }


def _spread(
  config: build.Config,
  this: build.Run,
  state: audit.AuditState,
  rounds: Sequence[Mapping[str, float]],
) -> dict[str, Any]:
  """On how many coordinates the mass lies of what was looked at."""
  start, _ = ravel_pytree(this.params)
  final, _ = ravel_pytree(state.algorithm.params)
  both = canaries.effective_dimension(jnp.stack([final, final - start]))
  family = config.canaries.family
  return spread.of_run(
    family,
    needed=canaries.least_dimension(family, this.dim),
    rounds=[record['effective_dimension'] for record in rounds],
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
  if not path.exists():
    draft = path.with_suffix('.draft')
    flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC
    with os.fdopen(os.open(draft, flags, 0o600), 'wb') as f:
      f.write(secrets.token_bytes(8))
    draft.replace(path)
  words = np.frombuffer(path.read_bytes(), np.uint32)
  return jax.random.wrap_key_data(jnp.asarray(words), impl='threefry2x32')


def _cohorts(
  config: build.Config, this: build.Run, start: int
) -> Iterator[tuple[int, fedavg.Cohort]]:
  """Rounds and their cohorts, made ahead by a thread and put on the device."""

  def make(t: int) -> fedavg.Cohort:
    return jax.device_put(
      cohort.gather(
        this.train, this.who.clients(t), this.plan, seed=config.seed, round=t
      )
    )

  return cohort.prefetch(make, range(start, config.rounds))


def _timed(items: Iterable[T]) -> Iterator[tuple[float, T]]:
  """Items, each with the seconds that were spent waiting for it."""
  asked = time.perf_counter()
  for item in items:
    yield time.perf_counter() - asked, item
    asked = time.perf_counter()


def _flat(config: dict[str, Any], prefix: str = '') -> dict[str, Any]:
  flat = {}
  for name, value in config.items():
    if isinstance(value, dict):
      flat |= _flat(value, f'{prefix}{name}.')
    else:
      flat[prefix + name] = value
  return flat
