"""Any classifier as a Task, given its logits or a Flax module."""

from collections.abc import Callable
from typing import Any

from flax import linen as nn
import jax.numpy as jnp
from jaxtyping import Float
import optax

from epe_jax.types import Array, Batch, Key, Params, Task


def classifier(
  init: Callable[[Key], Params],
  # Flax types the result of apply as a value or a pair of values.
  logits: Callable[[Params, Array, Key | None], Any],
  *,
  inputs: str = 'x',
  labels: str = 'y',
) -> Task:
  """Makes the task of a model that computes logits: cross-entropy and accuracy.

  Args:
    init: key -> params, float32 leaves.
    logits: (params, inputs [b, ...], key) -> [b, classes]. The key is for
      dropout and the like, and None in evaluation.
    inputs: name of the inputs in a batch.
    labels: name of the true classes in a batch, int32 [b] in [0, classes).

  >>> import jax
  >>> task = classifier(
  ...   lambda key: {'w': jnp.eye(3)}, lambda params, x, key: x @ params['w']
  ... )
  >>> batch = {'x': jnp.eye(3), 'y': jnp.array([0, 1, 1])}
  >>> task.metrics(task.init(jax.random.key(0)), batch)['accuracy'].tolist()
  [1.0, 1.0, 0.0]
  """

  def cross_entropy(
    scores: Float[Array, 'b classes'], batch: Batch
  ) -> Float[Array, ' b']:
    return optax.softmax_cross_entropy_with_integer_labels(
      scores, batch[labels]
    )

  def loss(params: Params, batch: Batch, key: Key) -> Float[Array, ' b']:
    return cross_entropy(logits(params, batch[inputs], key), batch)

  def metrics(params: Params, batch: Batch) -> dict[str, Float[Array, ' b']]:
    scores = logits(params, batch[inputs], None)
    hit = jnp.argmax(scores, axis=-1) == batch[labels]
    return {
      'loss': cross_entropy(scores, batch),
      'accuracy': hit.astype(jnp.float32),
    }

  return Task(init, loss, metrics)


def flax_classifier(
  module: nn.Module, input_shape: tuple[int, ...], *, inputs: str = 'pixels'
) -> Task:
  """Makes the task of a Flax module, with `classifier`.

  Args:
    module: (inputs [b, *input_shape], train: bool) -> logits [b, classes], with
      an rng stream 'dropout' in training.
    input_shape: shape of one example.
    inputs: name of the inputs in a batch.

  Returns:
    A task whose batches are {inputs: float32 [b, *input_shape], 'label': int32
    [b]}.
  """

  def init(key: Key) -> Params:
    x = jnp.zeros((1, *input_shape), jnp.float32)
    return module.init(key, x, train=False)['params']

  def logits(params: Params, x: Float[Array, 'b ...'], key: Key | None) -> Any:
    rngs = {} if key is None else {'dropout': key}
    train = key is not None
    return module.apply({'params': params}, x, train=train, rngs=rngs)

  return classifier(init, logits, inputs=inputs, labels='label')
