"""Black-box audit of DP-SGD: Algorithm 1.

Models are trained with a canary example and without it, and an attacker who sees
the final model alone scores the canary by its log-odds. Models are trained in
chunks, each by one program, and scores are saved after each chunk.
"""

from collections.abc import Callable, Mapping
import json
import os
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int
import numpy as np

from epe_jax import io, progress
from epe_jax.dpsgd import dp_sgd, poisson_batches
from epe_jax.epsilon.types import Scores
from epe_jax.training import algorithms
from epe_jax.types import Array, Batch, Key, Params, Task, weighted

SCHEMA = 1
"""Version of the file of scores."""

_GROUPS = ('excluded', 'included')


class ModelKeys(NamedTuple):
  """The randomness of the training of m models, arrays [m] of keys.

  Attributes:
    init: of the initial parameters.
    batches: of the Poisson samples.
    training: of dropout, augmentation and the like.
    noise: of the privacy noise.
  """

  init: Key
  batches: Key
  training: Key
  noise: Key


ScoreModels = Callable[[ModelKeys, bool], Float[Array, ' m']]
"""(keys [m], whether the canary is in the data set) -> scores of m models [m].

A higher score means "the canary was in it". Models must depend on their keys
alone, so that they are independent.
"""


def run_black_box(
  score_models: ScoreModels,
  *,
  num_models: int,
  key: Key,
  chunk: int,
  path: str | os.PathLike | None = None,
  settings: Mapping[str, Any] | None = None,
) -> Scores:
  """Trains T models with the canary and T without it, and scores all of them.

  The randomness of a model depends on the key, its number and whether the canary
  is in, but not on the chunk.

  Args:
    score_models: trains and scores models; see `make_trainer`.
    num_models: T >= 1, of each kind.
    key: of all randomness.
    chunk: models that are trained by one call, >= 1.
    path: an .npz file that is written atomically after each chunk, and from which
      a later call resumes; None keeps nothing.
    settings: whatever else decides the scores, as JSON-like values. A file of other
      settings, another key or another T is an error.

  Returns:
    The scores: observed with the canary, unobserved without it, float64 [T].

  Raises:
    ValueError: the file is of another audit, or a score is not finite.

  References:
    Tight Auditing of Differentially Private Machine Learning, Algorithm 1 and
    section 6.4.
  """
  header = json.dumps(
    {
      'schema': SCHEMA,
      'num_models': num_models,
      'key': np.asarray(jax.random.key_data(key)).tolist(),
      'settings': dict(settings or {}),
    }
  )
  scores = {name: np.full(num_models, np.nan) for name in _GROUPS}
  if path is not None and pathlib.Path(path).exists():
    arrays = io.read_arrays(path)
    if str(arrays.get('header')) != header:
      raise ValueError(
        f'{path} is of another audit; give another path, or the settings and the '
        'key of that audit.'
      )
    scores = {name: arrays[name] for name in _GROUPS}
  with progress.bar(
    total=2 * num_models,
    initial=sum(int(np.isfinite(x).sum()) for x in scores.values()),
    desc='training models',
    unit=' models',
  ) as bar:
    for start in range(0, num_models, chunk):
      for included, name in enumerate(_GROUPS):
        rows = np.arange(start, min(start + chunk, num_models))
        rows = rows[np.isnan(scores[name][rows])]
        if not rows.size:
          continue
        keys = make_model_keys(key, jnp.asarray(rows), included=bool(included))
        found = np.asarray(score_models(keys, bool(included)), np.float64)
        _check_scores(found, rows, name)
        scores[name][rows] = found
        if path is not None:
          pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
          io.write_arrays(path, {**scores, 'header': header})
        bar.update(rows.size)
  return Scores(scores['included'], scores['excluded'])


def make_model_keys(
  key: Key, rows: Int[Array, ' m'], *, included: bool
) -> ModelKeys:
  """Makes the keys of the models of these numbers, arrays [m] of keys."""
  group = jax.random.fold_in(key, int(included))

  def split(row: Int[Array, '']) -> ModelKeys:
    return ModelKeys(*jax.random.split(jax.random.fold_in(group, row), 4))

  return jax.vmap(split)(rows)


def score_log_odds(
  task: Task, params: Params, example: Batch, *, num_classes: int
) -> Float[Array, '']:
  """log(p / (1 - p)), where p is the probability of the label of an example.

  Computed from the losses -log p_j of all labels j as -log Σ_{j≠y} exp(l_y - l_j),
  which is as exact where p is nearly 1 as where it is nearly 0.

  Args:
    task: a classifier, whose loss in `metrics` is the cross-entropy.
    params: the model.
    example: arrays without the axis of examples; the class is in 'label'.
    num_classes: >= 2.

  References:
    Carlini et al. 2022, "Membership Inference Attacks From First Principles",
    section V.
  """
  label = example['label']
  all_labels = jnp.arange(num_classes, dtype=label.dtype)
  repeat = lambda x: jnp.broadcast_to(x, (num_classes, *x.shape))
  batch = {**jax.tree.map(repeat, example), 'label': all_labels}
  losses = weighted(task.metrics(params, batch)['loss']).total
  margins = losses[label] - losses
  others = jnp.where(all_labels == label, -jnp.inf, margins)
  return -jax.nn.logsumexp(others)


def make_trainer(
  task: Task,
  algorithm: algorithms.Algorithm,
  *,
  train: Batch,
  canary: Batch,
  num_steps: int,
  expected_batch: float,
  score: Callable[[Params], Float[Array, '']],
  multiple: int = 1,
) -> ScoreModels:
  """Trains models on Poisson batches of the data set, with or without a canary.

  The canary is one more example, sampled with the same probability as the others.
  The models of a chunk are trained by one program: side by side, or one after the
  other on a CPU. With a noise multiplier of 0 this audits clipping alone.

  Args:
    task: the model and its loss.
    algorithm: such as `dp_sgd.dpsgd(task, ...)`.
    train: arrays [n, ...], the data set D without the canary.
    canary: arrays without the axis of examples.
    num_steps: >= 1.
    expected_batch: m in (0, n]; every example is sampled with probability m / n.
    score: of the final model, such as `score_log_odds` of the canary.
    multiple: the padded size of a batch is a multiple of it, as of microbatches.

  Returns:
    A function for `run_black_box`. The score of a model with a batch that does not
    fit, an event of probability below 10^-12, is NaN.

  Raises:
    ValueError: a number is out of range.

  References:
    Tight Auditing of Differentially Private Machine Learning, section 6.4,
    Figures 11 and 12.
  """
  num = len(jax.tree.leaves(train)[0])
  rate = expected_batch / num
  size = poisson_batches.choose_padded_batch(
    num + 1, (num + 1) * rate, steps=num_steps, multiple=multiple
  )
  append = lambda x, y: np.concatenate([x, np.asarray(y)[None]])
  examples = jax.tree.map(append, train, canary)

  def train_and_score(
    keys: ModelKeys, included: Array, examples: Batch
  ) -> Float[Array, '']:
    def step(carry: tuple[Any, Array], t: Int[Array, '']):
      state, fits = carry
      fold = lambda key: jax.random.fold_in(key, t)
      taken = jax.random.uniform(fold(keys.batches), (num + 1,)) < rate
      taken = taken.at[num].set(taken[num] & included)
      (indices,) = jnp.nonzero(taken, size=size, fill_value=-1)
      state, _ = algorithm.step(
        state,
        dp_sgd.gather_batch(examples, indices),
        algorithms.no_canaries(),
        fold(keys.training),
        fold(keys.noise),
      )
      return (state, fits & (jnp.sum(taken) <= size)), None

    start = algorithm.init(task.init(keys.init)), jnp.array(True)
    (state, fits), _ = jax.lax.scan(step, start, jnp.arange(num_steps))
    return jnp.where(fits, score(state.params), jnp.nan)

  # The examples are an argument, so that they are not part of the program.
  @jax.jit
  def train_chunk(
    keys: ModelKeys, included: Array, examples: Batch
  ) -> Float[Array, ' m']:
    train = lambda keys: train_and_score(keys, included, examples)
    if jax.default_backend() == 'cpu':
      # There, many small matrix products are slower in a batch than in a loop.
      return jax.lax.map(train, keys)
    return jax.vmap(train)(keys)

  on_device = None

  def score_models(keys: ModelKeys, included: bool) -> Float[Array, ' m']:
    nonlocal on_device
    if on_device is None:
      on_device = jax.tree.map(jnp.asarray, examples)
    return train_chunk(keys, jnp.asarray(included), on_device)

  return score_models


def _check_scores(scores: np.ndarray, rows: np.ndarray, name: str) -> None:
  if not np.isfinite(scores).all():
    bad = rows[~np.isfinite(scores)]
    raise ValueError(
      f'models {bad.tolist()} with the canary {name} have scores that are not '
      'finite. Either training diverged, and needs a smaller learning rate, or '
      'a batch did not fit: use another key.'
    )
