"""Audits of one training, of two and of many: their ε and what they cost."""

from collections.abc import Callable, Mapping, Sequence
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
from epe_jax.papers import item
from epe_jax.papers.tight_auditing import audits, white_box_games
from epe_jax.papers.tight_auditing import black_box as black_box_audits
from epe_jax.papers.tight_auditing.workloads import Workload, load_workload
from epe_jax.text import cells, tables
from epe_jax.training import fedavg
from epe_jax.types import Array, Batch, Params


class TimedAudit(NamedTuple):
  """An audit and its cost.

  Attributes:
    name: in the table.
    trainings: number of them.
    scores: with and without the canary.
    seconds: for training and scoring, without compilation: of processors on a CPU,
      of the clock elsewhere.
    mechanism: of a score and of the run, for `estimates.estimate_run`.
    delta: δ.
    analytic: ε of the training, at which its noise was set.
    source: of the data, and the sizes of the training.
    noiseless: scores of the same canaries after a training without noise; None if
      there was none.
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

  def estimate(self, estimator: str) -> float:
    """The lower bound of ε by one estimator."""
    choice = audits.Choice(estimator, 'band')
    return audits.estimate_epsilon(
      self.scores, choice, self.mechanism, self.delta
    )


def train_costs(
  settings: Any, folder: str | os.PathLike, data: Mapping[str, pathlib.Path]
) -> list[TimedAudit]:
  """Audits one workload in five ways.

  Args:
    settings: work (as for `load_workload`), epsilon, num_canaries, crafting (as for
      `craft_inputs`), num_models, chunk, delta and seed.
    folder: of the audits; what is finished there is not repeated.
    data: path of each data set, by name.
  """
  common = dict(delta=settings.delta, seed=settings.seed)
  work = load_workload(settings.work, data, **common)
  noise = work.accounted.calibrate(settings.epsilon)
  num, seed = settings.num_canaries, settings.seed
  rate = work.sampling_probability
  final = estimates.make_run_mechanism(
    sampling_probability=rate, steps=work.settings.steps
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
    'white-box game',
    lambda: play_timed_game(work, noise, seed),
    white_box_games.make_step_mechanism(work),
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
  # A game trains once, but each step has two batches of gradients.
  game = game._replace(trainings=2)
  return [one_shot, inputs, crafted, game, models]


def make_costs(timed: Sequence[TimedAudit]) -> item.Product:
  """ε and seconds of each audit, and of many models at the cost of one training.

  Args:
    timed: of `train_costs`: gradient canaries first, many models last.
  """
  one_shot, many = timed[0], timed[-1]
  per_model = many.seconds / many.trainings
  # At least one of each kind, even if it costs more.
  pairs = max(1, int(one_shot.seconds / per_model / 2))
  pairs = min(pairs, many.trainings // 2)
  few = many._replace(
    name=f'{many.name}, at the cost of {one_shot.name}',
    trainings=2 * pairs,
    scores=Scores(many.scores.observed[:pairs], many.scores.unobserved[:pairs]),
    seconds=2 * pairs * per_model,
  )
  body = []
  for one in [*timed[:-1], few, many]:
    by_order, by_curve = map(one.estimate, ('dp_cp', 'f_dp_cp'))
    body.append(
      [
        one.name,
        f'{one.trainings:,}',
        f'{one.scores.observed.size:,} + {one.scores.unobserved.size:,}',
        _separate(one.scores),
        _separate(one.noiseless),
        cells.format_number(by_order),
        cells.format_number(by_curve),
        f'{one.seconds:.3g}',
        cells.format_number(by_order / one.seconds),
        cells.format_number(by_curve / one.seconds),
      ]
    )
  table = tables.Table(
    f'Lower bounds (95 %) and their cost, analytic ε = {one_shot.analytic:g}, '
    f'δ = {one_shot.delta:g}',
    [
      'audit',
      'trainings',
      'scores',
      'separation',
      'separation, σ = 0',
      '(ε, δ)-DP (CP), band',
      'f-DP (CP), band',
      'seconds',
      '(ε, δ)-DP per second',
      'f-DP per second',
    ],
    body,
    [
      'Gradient canaries: they join batches at random as examples do, and an '
      'attacker who sees the initial and the final model, but not who joined, '
      'scores them. Data canaries: mislabelled examples, scored by the log-odds of their '
      'labels in the final model. Optimized ones begin as those, and ascend the '
      'separation in trainings without noise from the same initial model. All '
      'three take scores of one training to be independent.',
      'Separation: the difference of the mean scores, over the root mean square of '
      'both deviations; σ = 0: of the same canaries, by a training without noise.',
      'White-box game: the attacker sees all steps and has a gradient in each; what '
      'a step shows is composed to the run, also for (ε, δ)-DP.',
      'Many models: Algorithm 1 with one mislabelled example. Where the final model '
      'is scored, f-DP takes the curve of a training to be that of its steps on '
      'Poisson samples, by their privacy loss distribution.',
      'Seconds are of processors on a CPU and of the clock elsewhere, for '
      'optimizing, training and scoring, without compilation.',
      one_shot.source,
    ],
  )
  return item.Product([table], {})


def _separate(scores: Scores | None) -> str:
  """The separation of both groups; a dash if there is none."""
  if scores is None or scores.observed.size < 2:
    return '–'
  groups = scores.observed, scores.unobserved
  spread = np.sqrt(np.mean([np.var(x) for x in groups]))
  return cells.format_number((groups[0].mean() - groups[1].mean()) / spread)


def audit_gradients(
  work: Workload, noise: float, num: int, seed: int
) -> tuple[Scores, float]:
  """Audits one training by k canary gradients, each sampled like an example.

  An attacker who sees the initial and the final model scores them, and k unobserved
  ones, by their cosines with the change of the model.

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
  rng = np.random.default_rng((seed, 1))
  participation[:, :num] = rng.random((len(participation), num)) < rate
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


def draw_mislabelled(work: Workload, num: int, seed: int) -> Batch:
  """Draws 2 k test examples with wrong labels.

  Args:
    work: its test examples are used.
    num: k.
    seed: of all randomness of the simulation.
  """
  data = work.data
  canary = input_canaries.make_mislabelled_canary(
    work.task, input_canaries.Pool(data.test, data.inputs, data.num_classes)
  )
  keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 2), 2 * num)
  return jax.vmap(lambda key: canary.init(key, None).example)(keys)


def audit_inputs(
  work: Workload, noise: float, drawn: Batch, seed: int
) -> tuple[Scores, float]:
  """Audits one training by k canaries among its examples.

  An attacker who sees the final model scores them, and k others, by the log-odds of
  their labels.

  Args:
    work: the model and its data.
    noise: σ.
    drawn: 2 k canaries; the first k are included.
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
  work: Workload, drawn: Batch, seed: int, crafting: Any
) -> tuple[Batch, float]:
  """Optimizes canaries for the final model of trainings without noise.

  These trainings begin at the model that is audited and have fewer steps, which are
  longer in proportion.

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
  work: Workload, noise: float, seed: int
) -> tuple[Scores, float]:
  """The white-box game with a Dirac canary.

  Args:
    As for `audit_gradients`.
  """
  settings, ends = work.settings, []
  every = max(1, settings.steps // 4)
  game = white_box.run_white_box(
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
  return game.select(), seconds


def audit_many_models(
  work: Workload,
  path: str | os.PathLike,
  noise: float,
  *,
  num_models: int,
  chunk: int,
  seed: int,
) -> tuple[Scores, float]:
  """Audits T models with a mislabelled example and T without it.

  Args:
    work: the model and its data.
    path: of the scores of the models, an .npz file.
    noise: σ.
    num_models: T.
    chunk: models that are trained by one call.
    seed: of all randomness of the simulation.
  """
  canary = black_box_audits.make_canary_example(work, 'mislabelled', seed)
  trainer = black_box_audits.make_trainer(
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
  work: Workload, params: Params, examples: Batch
) -> Float[Array, ' k']:
  """The log-odds of the labels of examples, one after the other."""
  return jax.lax.map(
    lambda example: black_box.score_log_odds(
      work.task, params, example, num_classes=work.data.num_classes
    ),
    examples,
  )


def _make_algorithm(
  work: Workload, noise: float, *, expected: float
) -> fedavg.Algorithm:
  """DP-SGD with so many expected canaries in a batch, besides the examples."""
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
  work: Workload,
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
  """Seconds of processors on a CPU, of the clock elsewhere."""
  if jax.default_backend() == 'cpu':
    return time.process_time()
  return time.perf_counter()


def _time(call: Callable[[], Any]) -> tuple[np.ndarray, float]:
  """The result of a function, and seconds of its second call."""
  jax.block_until_ready(call())
  begun = _read_clock()
  result = jax.block_until_ready(call())
  return np.asarray(result, np.float64), _read_clock() - begun


def _keep(
  path: pathlib.Path, run: Callable[[], tuple[Scores, float]]
) -> tuple[Scores, float]:
  """The result of `run`, from the file if it exists."""
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
