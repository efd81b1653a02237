"""Audits of one training, of two and of many: what each costs, and what it finds."""

from collections.abc import Callable, Mapping
import functools
import os
import pathlib
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float
import numpy as np
import optax

from epe_jax import audit, canaries, io
from epe_jax.dpsgd import (
  black_box,
  dp_sgd,
  estimates,
  input_canaries,
  metagradient_canaries,
  poisson_batches,
  white_box,
)
from epe_jax.dpsgd.gradient_canaries import make_gradient_canary
from epe_jax.epsilon.types import Scores
from epe_jax.papers.tight_auditing import black_box_games, trained_games
from epe_jax.training import fedavg
from epe_jax.types import Array, Batch, Params


class TimedAudit(NamedTuple):
  """An audit and its cost.

  Attributes:
    name: what is audited, by whom.
    trainings: that it needs.
    scores: observed and unobserved ones.
    seconds: for training and scoring, without compilation: of processors on a CPU,
      of the clock elsewhere.
    mechanism: of an observation and of the run, for `estimates.estimate_run`.
    delta: δ.
    analytic: ε of the training, at which its noise was set.
    source: of the data, and the sizes of the training.
    noiseless: scores of the same canaries by a training without noise, where that
      was audited.
  """

  name: str
  trainings: int
  scores: Scores
  seconds: float
  mechanism: estimates.StepMechanism
  delta: float
  analytic: float
  source: str
  noiseless: Scores | None = None


def train_costs(
  settings: Any, folder: str | os.PathLike, data: Mapping[str, pathlib.Path]
) -> list[TimedAudit]:
  """Audits one workload in five ways.

  Args:
    settings: work (as for `load_workload`), epsilon, num_canaries, crafting (as for
      `craft_inputs`), num_models, chunk, delta and seed.
    folder: of the audits; one that is finished there is not repeated.
    data: path of each `--data`, by name.
  """
  common = dict(delta=settings.delta, seed=settings.seed)
  work = trained_games.load_workload(settings.work, data, **common)
  noise = work.accounted.calibrate(settings.epsilon)
  num, seed = settings.num_canaries, settings.seed
  rate = work.sampling_probability
  final = estimates.make_run_mechanism(
    sampling_probability=rate, steps=work.settings.steps
  )
  of_steps = estimates.make_step_mechanism()._replace(
    compose=work.accounted.compose
  )
  source = (
    f'{work.settings.title}: {work.settings.steps:,} steps, q = {rate:.4g}, '
    f'σ = {noise:.3f}; {num:,} canaries in one training. '
    f'Data: {work.data.source}.'
  )

  def make(
    name: str, run: Callable[[], tuple[Scores, float]], mechanism: Any = final
  ) -> TimedAudit:
    scores, seconds = _keep(
      pathlib.Path(folder, f'{name.replace(" ", "_")}.npz'), run
    )
    return TimedAudit(
      name,
      1,
      scores,
      seconds,
      mechanism,
      settings.delta,
      settings.epsilon,
      source,
    )

  one_shot = make(
    'gradient canaries', lambda: audit_gradients(work, noise, num, seed)
  )
  drawn = draw_mislabelled(work, num, seed)
  craft = functools.cache(
    lambda: craft_inputs(work, drawn, seed, settings.crafting)
  )

  def audit_crafted(noise: float) -> tuple[Scores, float]:
    crafted, crafting = craft()
    scores, seconds = audit_inputs(work, noise, crafted, seed)
    return scores, crafting + seconds

  def make_inputs(
    name: str, run: Callable[[float], tuple[Scores, float]]
  ) -> TimedAudit:
    noiseless = make(f'{name} without noise', lambda: run(0.0)).scores
    return make(name, lambda: run(noise))._replace(noiseless=noiseless)

  inputs = make_inputs(
    'data canaries', lambda noise: audit_inputs(work, noise, drawn, seed)
  )
  crafted = make_inputs('optimized data canaries', audit_crafted)
  game = make(
    'white-box game', lambda: play_timed_game(work, noise, seed), of_steps
  )
  models = make(
    'many models',
    lambda: audit_many_models(
      work,
      pathlib.Path(folder, 'models.npz'),
      noise,
      num_models=settings.num_models,
      chunk=settings.chunk,
      seed=seed,
    ),
  )._replace(trainings=2 * settings.num_models)
  # A game trains once, with two batches of gradients in each step.
  game = game._replace(trainings=2)
  return [one_shot, inputs, crafted, game, models]


def audit_gradients(
  work: trained_games.Workload, noise: float, num: int, seed: int
) -> tuple[Scores, float]:
  """k canary gradients in one training, each by the coins of an example.

  Whoever sees the initial and the final model scores them, and k others that take
  no part, by their cosines with the change of the model.

  Args:
    work: the model and its data.
    noise: σ.
    num: k.
    seed: of all randomness of the simulation.

  Returns:
    The scores, and seconds.
  """
  params = work.task.init(jax.random.key(seed))
  dim = sum(x.size for x in jax.tree.leaves(params))
  canary_set = canaries.hadamard(
    jax.random.fold_in(jax.random.key(seed), 1), 2 * num, dim
  )
  rate = work.sampling_probability
  participation = np.zeros((work.settings.steps, 2 * num), bool)
  coins = np.random.default_rng((seed, 1))
  participation[:, :num] = coins.random((len(participation), num)) < rate
  attackers = {'final': audit.final_model(canary_set)}
  algorithm = audit.audited(
    _make_algorithm(work, noise, expected=rate * num),
    canary_set,
    participation,
    attackers,
  )

  def step(state: Any, batch: Any, keys: Any) -> Any:
    return algorithm.step(state, batch, *keys)[0]

  state, seconds = _train(
    algorithm.init(params), step, work, work.data.train, seed
  )
  cosines, scoring = _time(
    lambda: audit.score_observers(state, attackers)['change']
  )
  return Scores(cosines[:num], cosines[num:]), seconds + scoring


def draw_mislabelled(
  work: trained_games.Workload, num: int, seed: int
) -> Batch:
  """2 k examples of the test with labels that are not theirs.

  Args:
    work: whose test examples they are.
    num: k.
    seed: of all randomness of the simulation.
  """
  canary = input_canaries.make_mislabelled_canary(
    work.task,
    input_canaries.Pool(
      work.data.test, work.data.inputs, work.data.num_classes
    ),
  )
  keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 2), 2 * num)
  return jax.vmap(lambda key: canary.init(key, None).example)(keys)


def audit_inputs(
  work: trained_games.Workload, noise: float, drawn: Batch, seed: int
) -> tuple[Scores, float]:
  """k canaries among the examples of one training.

  Whoever sees the final model scores them, and k others, by the log-odds of their
  labels.

  Args:
    work: the model and its data.
    noise: σ.
    drawn: 2 k canaries, of which the first k take part.
    seed: of all randomness of the simulation.
  """
  task, num = work.task, len(drawn['label']) // 2
  train = {
    name: np.concatenate([x, np.asarray(drawn[name][:num])])
    for name, x in work.data.train.items()
  }
  algorithm = _make_algorithm(
    work, noise, expected=work.sampling_probability * num
  )

  def step(state: Any, batch: Any, keys: Any) -> Any:
    return algorithm.step(state, batch, fedavg.no_canaries(), *keys)[0]

  score = jax.jit(functools.partial(_score_log_odds, work))
  start = algorithm.init(task.init(jax.random.key(seed)))
  state, seconds = _train(start, step, work, train, seed)
  log_odds, scoring = _time(lambda: score(state.params, drawn))
  return Scores(log_odds[:num], log_odds[num:]), seconds + scoring


def craft_inputs(
  work: trained_games.Workload, drawn: Batch, seed: int, crafting: Any
) -> tuple[Batch, float]:
  """Optimizes canaries for the final model of trainings without noise.

  They begin at the model that is audited, and have fewer steps, so much longer that
  all together may move the model as far.

  Args:
    work: the model and its data.
    drawn: canaries, arrays [2 k, ...].
    seed: of all randomness of the simulation.
    crafting: num_train (examples), num_steps (of a training), num_updates and
      step_size (of Adam, at first; it falls to 0).

  Returns:
    The canaries, and seconds.
  """
  settings, rate = work.settings, work.sampling_probability
  half = len(drawn['label']) // 2
  train = {k: x[: crafting.num_train] for k, x in work.data.train.items()}
  batch = rate * (len(train['label']) + half)
  longer = batch / (settings.expected_batch + rate * half)
  longer *= settings.steps / crafting.num_steps
  ends = []
  optimized = metagradient_canaries.optimize_canaries(
    work.task,
    drawn,
    train=train,
    inputs=work.data.inputs,
    params=work.task.init(jax.random.key(seed)),
    score=functools.partial(_score_log_odds, work),
    optimizer=optax.sgd(
      settings.learning_rate * longer, settings.momentum or None
    ),
    clip_norm=settings.clip_norm,
    noise_multiplier=0.0,
    num_steps=crafting.num_steps,
    expected_batch=batch,
    ascent=optax.adam(
      optax.cosine_decay_schedule(crafting.step_size, crafting.num_updates)
    ),
    num_updates=crafting.num_updates,
    key=jax.random.fold_in(jax.random.key(seed), 3),
    progress=lambda done, canaries: ends.append(
      jax.block_until_ready(canaries) and _read_clock()
    ),
  )
  # The first update compiles.
  seconds = (ends[-1] - ends[0]) / (len(ends) - 1) * len(ends)
  return optimized, seconds


def play_timed_game(
  work: trained_games.Workload, noise: float, seed: int
) -> tuple[Scores, float]:
  """The white-box game with a Dirac canary.

  Args:
    As for `audit_gradients`.
  """
  settings, ends = work.settings, []
  every = max(1, settings.steps // 4)
  seen = white_box.run_white_box(
    work.task,
    work.data.train,
    make_gradient_canary('dirac', norm=settings.clip_norm),
    white_box.WhiteBoxSettings(
      steps=settings.steps,
      expected_batch=settings.expected_batch,
      clip_norm=settings.clip_norm,
      noise_multiplier=noise,
      microbatch=settings.microbatch,
      save_every=every,
    ),
    white_box.derive_game_keys(seed),
    optimizer=work.make_optimizer(),
    params=work.task.init(jax.random.key(seed)),
    batch_seed=seed,
    progress=lambda done, params: ends.append(
      (done, jax.block_until_ready(params) and _read_clock())
    ),
  )
  # The first steps compile.
  (first, begun), *_, (last, ended) = ends
  seconds = (ended - begun) / (last - first) * settings.steps
  return seen.select(), seconds


def audit_many_models(
  work: trained_games.Workload,
  path: str | os.PathLike,
  noise: float,
  *,
  num_models: int,
  chunk: int,
  seed: int,
) -> tuple[Scores, float]:
  """T models with a mislabelled example and T without it.

  Args:
    work: the model and its data.
    path: of the scores of the models, an .npz file.
    noise: σ.
    num_models: T.
    chunk: models that are trained by one call.
    seed: of all randomness of the simulation.
  """
  canary = black_box_games.make_canary_example(work, 'mislabelled', seed)
  trainer = black_box_games.make_trainer(
    work,
    canary,
    clip_norm=work.settings.clip_norm,
    noise_multiplier=noise,
  )
  key = jax.random.key(seed)
  scores = black_box.run_black_box(
    trainer,
    num_models=num_models,
    key=key,
    chunk=chunk,
    path=path,
    settings={'work': work.settings.to_dict(), 'noise_multiplier': noise},
  )
  keys = black_box.make_model_keys(key, jnp.arange(chunk), included=True)
  _, seconds = _time(lambda: trainer(keys, True))
  return scores, seconds / chunk * 2 * num_models


def _score_log_odds(
  work: trained_games.Workload, params: Params, examples: Batch
) -> Float[Array, ' k']:
  """The log-odds of the labels of examples, one after the other."""
  return jax.lax.map(
    lambda example: black_box.score_log_odds(
      work.task, params, example, num_classes=work.data.num_classes
    ),
    examples,
  )


def _make_algorithm(
  work: trained_games.Workload, noise: float, *, expected: float
) -> fedavg.Algorithm:
  """DP-SGD, whose batches have so many canaries besides."""
  settings = work.settings
  return dp_sgd.dpsgd(
    work.task,
    optimizer=work.make_optimizer(),
    clip_norm=settings.clip_norm,
    noise_multiplier=noise,
    expected_batch=settings.expected_batch + expected,
    microbatch=settings.microbatch,
  )


def _train(
  state: Any,
  step: Callable[[Any, dp_sgd.ExampleBatch, Any], Any],
  work: trained_games.Workload,
  train: Batch,
  seed: int,
) -> tuple[Any, float]:
  """The last state, and seconds of all steps."""
  settings, num = work.settings, len(train['label'])
  batches = poisson_batches.draw_poisson_batches(
    seed,
    'batches',
    num_examples=num,
    expected_batch=work.sampling_probability * num,
    steps=settings.steps,
    microbatch=settings.microbatch,
  )
  examples = jax.device_put(train)
  training, privacy = jax.random.split(jax.random.key(seed))

  @jax.jit
  def advance(state: Any, indices: Array, t: Array) -> Any:
    keys = [jax.random.fold_in(key, t) for key in (training, privacy)]
    return step(state, dp_sgd.gather_batch(examples, indices), keys)

  # The first step compiles.
  state = jax.block_until_ready(advance(state, batches[0], jnp.int32(0)))
  begun = _read_clock()
  for t in range(1, settings.steps):
    state = advance(state, batches[t], jnp.int32(t))
  state = jax.block_until_ready(state)
  seconds = (_read_clock() - begun) / (settings.steps - 1)
  return state, seconds * settings.steps


def _read_clock() -> float:
  """Seconds of processors; of the clock where others than they compute."""
  if jax.default_backend() == 'cpu':
    return time.process_time()
  return time.perf_counter()


def _time(call: Callable[[], Any]) -> tuple[np.ndarray, float]:
  """What a function returns, and seconds of its second call."""
  jax.block_until_ready(call())
  begun = _read_clock()
  result = jax.block_until_ready(call())
  return np.asarray(result, np.float64), _read_clock() - begun


def _keep(
  path: pathlib.Path, run: Callable[[], tuple[Scores, float]]
) -> tuple[Scores, float]:
  """What `run` returns, from the file if it is there."""
  if not path.exists():
    scores, seconds = run()
    path.parent.mkdir(parents=True, exist_ok=True)
    io.write_arrays(
      path,
      {
        'observed': scores.observed,
        'unobserved': scores.unobserved,
        'seconds': seconds,
      },
    )
  arrays = io.read_arrays(path)
  scores = Scores(arrays['observed'], arrays['unobserved'])
  return scores, float(arrays['seconds'])
