"""Training of many models by one program, for the black-box audit of DP-SGD."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int
import numpy as np

from epe_jax.dpsgd import poisson_batches
from epe_jax.dpsgd.black_box import ModelKeys, ScoreModels
from epe_jax.training import fedavg
from epe_jax.types import Array, Batch, Params, Task, weighted


def score_log_odds(
  task: Task,
  params: Params,
  example: Batch,
  *,
  num_classes: int,
  labels: str = 'label',
) -> Float[Array, '']:
  """log(p / (1 - p)), where p is the probability of the label of an example.

  In log space, and from the losses -log p_j of all labels j: it is -log Σ_{j≠y}
  exp(l_y - l_j), which is as exact where p is nearly 1 as where it is nearly 0.

  Args:
    task: a classifier, whose loss in `metrics` is the cross-entropy.
    params: the model.
    example: arrays without the axis of examples.
    num_classes: >= 2.
    labels: name of the class in the example.

  Reference: Carlini et al. 2022, "Membership Inference Attacks From First
  Principles", section V.
  """
  all_labels = jnp.arange(num_classes, dtype=example[labels].dtype)
  repeat = lambda x: jnp.broadcast_to(x, (num_classes, *x.shape))
  batch = {**jax.tree.map(repeat, example), labels: all_labels}
  losses = weighted(task.metrics(params, batch)['loss']).total
  margins = losses[example[labels]] - losses
  others = jnp.where(all_labels == example[labels], -jnp.inf, margins)
  return -jax.nn.logsumexp(others)


def make_trainer(
  task: Task,
  algorithm: fedavg.Algorithm,
  *,
  train: Batch,
  canary: Batch,
  num_steps: int,
  expected_batch: float,
  gather: Callable[[Batch, Int[Array, ' b']], Any],
  score: Callable[[Params], Float[Array, '']],
  multiple: int = 1,
) -> ScoreModels:
  """Trains models by Poisson batches of the data set, with or without a canary.

  The canary is one more example, drawn with the probability of any other. All
  models of a chunk are trained by one program: side by side, or one after the
  other on a CPU. Without noise, `algorithm` with a
  noise multiplier of 0, this is the audit of clipping alone.

  Args:
    task: the model and its loss.
    algorithm: such as `dpsgd.dpsgd(task, ...)`.
    train: arrays [n, ...], the data set D without the canary.
    canary: arrays without the axis of examples.
    num_steps: >= 1.
    expected_batch: m in (0, n]; every example is in a batch with the probability
      m / n.
    gather: (examples, indices [b], of which -1 is padding) -> what a step of the
      algorithm takes, as `dpsgd.gather_batch` does.
    score: of the final model, such as `score_log_odds` of the canary.
    multiple: of which the padded size of a batch is one, as of microbatches.

  Returns:
    A function for `black_box.run_black_box`. The score of a model of which a batch does
    not fit, an event of probability below 10^-12, is NaN.

  Raises:
    ValueError: a number is out of range.

  Reference: Tight Auditing of Differentially Private Machine Learning, section
  6.4, Figures 11 and 12.
  """
  num = len(jax.tree.leaves(train)[0])
  if not 0 < expected_batch <= num:
    raise ValueError(f'expected_batch={expected_batch} is not in (0, {num}].')
  if num_steps < 1:
    raise ValueError(f'num_steps={num_steps}; give 1 or more.')
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
        gather(examples, indices),
        fedavg.no_canaries(),
        fold(keys.training),
        fold(keys.noise),
      )
      return (state, fits & (jnp.sum(taken) <= size)), None

    start = algorithm.init(task.init(keys.init)), jnp.array(True)
    (state, fits), _ = jax.lax.scan(step, start, jnp.arange(num_steps))
    return jnp.where(fits, score(state.params), jnp.nan)

  def train_chunk(
    keys: ModelKeys, included: Array, examples: Batch
  ) -> Float[Array, ' m']:
    train = lambda keys: train_and_score(keys, included, examples)
    if jax.default_backend() == 'cpu':
      # Products of many small matrices are slower than one after the other.
      return jax.lax.map(train, keys)
    return jax.vmap(train)(keys)

  # The examples are an argument, so that they are not part of the program.
  run = jax.jit(train_chunk)
  on_device = None

  def score_models(keys: ModelKeys, included: bool) -> Float[Array, ' m']:
    nonlocal on_device
    if on_device is None:
      on_device = jax.tree.map(jnp.asarray, examples)
    return run(keys, jnp.asarray(included), on_device)

  return score_models
