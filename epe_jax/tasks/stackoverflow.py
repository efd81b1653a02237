"""StackOverflow next words: the paper's LSTM, 4,050,748 parameters."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int
import optax

from epe_jax import extras
from epe_jax.tasks import kernels
from epe_jax.types import Array, Batch, Key, Params, Task, Weighted

# At the top, so that a missing package is reported before data are imported.
with extras.explain_missing():
  import haiku as hk


def task(
  vocabulary_size: int = 10_000,
  *,
  embedding_size: int = 96,
  hidden_size: int = 670,
) -> Task:
  """Predicts each word of a sentence, and its end, from the words before.

  Embedding -> LSTM -> Dense embedding_size -> Dense V + 4, not tied, with the
  parameter names of hk.Embed, hk.LSTM and hk.Linear. Initialization is that of Keras,
  as in the paper's model: embeddings uniform in (-0.05, 0.05), recurrent weights
  orthogonal, other weights Glorot uniform, biases 0 except the forget gate's 1, which
  hk.LSTM adds in the cell.

  Loss and metrics are sums over the targets of a sentence, weighted by their number, so
  that means are over words. Predictions are the likeliest of all V + 4 ids, so
  predicting padding, OOV, BOS or EOS for another target is wrong.

    accuracy: over the targets in the vocabulary, neither OOV nor EOS, as in the
      literature.
    accuracy_with_oov_eos: over all targets.

  Args:
    vocabulary_size: V >= 1, the number of words with an id of their own.
    embedding_size: width of the embedding and of the last hidden layer.
    hidden_size: width of the LSTM.

  Returns:
    A task whose batches are {'words': int16 or int32 [b, max_words]}: ids
    1..V, OOV V + 1, then 0 for padding. The task prepends BOS V + 2, and appends
    EOS V + 3 to a sentence of fewer than max_words.

  References:
    Reddi et al. 2020, "Adaptive Federated Optimization"; used by One-shot Empirical
    Privacy Estimation, section 5.1.
  """
  model = _build_model(vocabulary_size + 4, embedding_size, hidden_size)

  def init(key: Key) -> Params:
    return model.init(key, jnp.zeros((1, 1), jnp.int32))

  def loss(params: Params, batch: Batch, key: Key) -> Weighted:
    del key  # No dropout.
    inputs, targets = split_inputs_and_targets(batch['words'], vocabulary_size)
    x, w, b = model.apply(params, inputs)
    rows = x.reshape(-1, embedding_size)
    losses = kernels.cross_entropy(rows, w, b, targets.reshape(-1))
    return _sum_over(targets > 0, losses.reshape(targets.shape))

  def metrics(params: Params, batch: Batch) -> dict[str, Weighted]:
    inputs, targets = split_inputs_and_targets(batch['words'], vocabulary_size)
    x, w, b = model.apply(params, inputs)
    logits = x @ w + b
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    hits = jnp.argmax(logits, axis=-1) == targets
    in_vocabulary = (targets > 0) & (targets <= vocabulary_size)
    return {
      'loss': _sum_over(targets > 0, losses),
      'accuracy': _sum_over(in_vocabulary, hits),
      'accuracy_with_oov_eos': _sum_over(targets > 0, hits),
    }

  return Task(init, loss, metrics)


def split_inputs_and_targets(
  words: Int[Array, 'b max_words'], vocabulary_size: int
) -> tuple[Int[Array, 'b max_words'], Int[Array, 'b max_words']]:
  """Splits sentences into the inputs and the targets of each step.

  >>> words = jnp.array([[5, 6, 0], [7, 8, 9]])
  >>> inputs, targets = split_inputs_and_targets(words, 100)
  >>> inputs.tolist(), targets.tolist()
  ([[102, 5, 6], [102, 7, 8]], [[5, 6, 103], [7, 8, 9]])
  """
  words = words.astype(jnp.int32)
  length = jnp.sum(words > 0, axis=1, keepdims=True)
  # Past the last column if the sentence has max_words, so that it has no EOS.
  end = jnp.arange(words.shape[1]) == length
  targets = jnp.where(end, vocabulary_size + 3, words)
  begin = jnp.full((words.shape[0], 1), vocabulary_size + 2, jnp.int32)
  return jnp.concatenate([begin, targets[:, :-1]], axis=1), targets


def _build_model(num_ids: int, embedding_size: int, hidden_size: int) -> Any:
  """Ids [b, t] -> x [b, t, e], and w and b of the logits x w + b.

  The last product is left to the loss, which fuses it with its gradient.
  """
  glorot = hk.initializers.VarianceScaling(1.0, 'fan_avg', 'uniform')
  uniform = hk.initializers.RandomUniform(-0.05, 0.05)

  def init_gates(
    shape: Sequence[int], dtype: Any
  ) -> Float[Array, 'rows columns']:
    columns = shape[1]
    recurrent = _draw_orthonormal_rows(hk.next_rng_key(), hidden_size, columns)
    return jnp.concatenate(
      [glorot((embedding_size, columns), dtype), recurrent]
    )

  @hk.without_apply_rng
  @hk.transform
  def model(words: Int[Array, 'b t']) -> tuple[Array, Array, Array]:
    x = hk.Embed(num_ids, embedding_size, w_init=uniform)(words)
    # The rows of inputs first, and the columns of the gates i, g, f and o.
    with hk.name_scope('lstm/linear'):
      shape = embedding_size + hidden_size, 4 * hidden_size
      w = hk.get_parameter('w', shape, jnp.float32, init=init_gates)
      b = hk.get_parameter('b', shape[1:], jnp.float32, init=jnp.zeros)
    x = kernels.lstm(x, w, b)
    x = hk.Linear(embedding_size, w_init=glorot)(x)
    with hk.name_scope('linear_1'):
      shape = embedding_size, num_ids
      w = hk.get_parameter('w', shape, jnp.float32, init=glorot)
      b = hk.get_parameter('b', (num_ids,), jnp.float32, init=jnp.zeros)
    return x, w, b

  return model


def _draw_orthonormal_rows(
  key: Key, rows: int, columns: int
) -> Float[Array, 'rows columns']:
  """Draws orthonormal rows, fewer than columns, uniformly among all of them.

  They follow from the Cholesky factor of the Gram matrix. This is as exact as QR,
  because a Gaussian matrix with 4 times as many columns as rows is well conditioned,
  and it does not slow down tenfold when other processes use the cores, as LAPACK's QR
  does.
  """
  x = jax.random.normal(key, (rows, columns), jnp.float32)
  lower = jnp.linalg.cholesky(x @ x.T)
  return jax.scipy.linalg.solve_triangular(lower, x, lower=True)


def _sum_over(counts: Bool[Array, 'b t'], values: Array) -> Weighted:
  """Sums the values of each sentence over the counted targets."""
  return Weighted(
    jnp.sum(jnp.where(counts, values, 0), axis=1, dtype=jnp.float32),
    jnp.sum(counts, axis=1, dtype=jnp.float32),
  )
