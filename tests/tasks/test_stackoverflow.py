"""Next words: what is read, what is to be predicted, and what counts."""

import functools

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epe_jax.tasks import stackoverflow

V = 20
OOV, BOS, EOS = V + 1, V + 2, V + 3
SMALL = dict(embedding_size=3, hidden_size=4)


@functools.cache
def small():
  task = stackoverflow.task(V, **SMALL)
  task = task._replace(loss=jax.jit(task.loss), metrics=jax.jit(task.metrics))
  return task, jax.jit(task.init)(jax.random.key(0))


@hk.without_apply_rng
@hk.transform
def textbook(words):
  """The model as Haiku's own modules spell it."""
  x = hk.Embed(V + 4, SMALL['embedding_size'])(words)
  core = hk.LSTM(SMALL['hidden_size'])
  state = core.initial_state(len(words))
  x, _ = hk.dynamic_unroll(core, x, state, time_major=False)
  x = hk.Linear(SMALL['embedding_size'])(x)
  return hk.Linear(V + 4)(x)


def by_hand(sentence, max_words):
  """REFERENCE: BOS first, EOS only if shorter, padding to max_words + 1."""
  words = [BOS, *sentence] + [EOS] * (len(sentence) < max_words)
  words += [0] * (max_words + 1 - len(words))
  return words[:-1], words[1:]


SENTENCES = [[5], [1, 20, OOV, 7], [3, 3, OOV], []]


def padded(max_words=4, dtype=np.int16):
  words = np.zeros((len(SENTENCES), max_words), dtype)
  for row, sentence in zip(words, SENTENCES):
    row[: len(sentence)] = sentence
  return jnp.asarray(words)


@pytest.mark.parametrize('max_words', [4, 6])
@pytest.mark.parametrize('dtype', [np.int16, np.int32])
def test_sentences_begin_with_bos_and_end_with_eos_if_there_is_room(
  max_words, dtype
):
  inputs, targets = stackoverflow.split_inputs_and_targets(
    padded(max_words, dtype), V
  )
  for i, sentence in enumerate(SENTENCES):
    read, predicted = by_hand(sentence, max_words)
    assert inputs[i].tolist() == read
    assert targets[i].tolist() == predicted


def test_the_paper_s_model_has_4_050_748_parameters():
  params = jax.eval_shape(stackoverflow.task().init, jax.random.key(0))
  leaves = jax.tree.leaves(params)
  assert sum(leaf.size for leaf in leaves) == 4_050_748
  assert all(leaf.dtype == jnp.float32 for leaf in leaves)


def test_parameters_have_the_names_and_shapes_of_haiku():
  _, params = small()
  words = jnp.zeros((1, 1), jnp.int32)
  expected = jax.eval_shape(textbook.init, jax.random.key(0), words)
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, expected)


@pytest.mark.integration
def test_parameters_start_as_in_keras():
  task = stackoverflow.task(1000, embedding_size=30, hidden_size=40)
  params = jax.jit(task.init)(jax.random.key(0))
  kernels = {
    (30, 160): params['lstm/linear']['w'][:30],
    (40, 30): params['linear']['w'],
    (30, 1004): params['linear_1']['w'],
  }
  for shape, x in kernels.items():
    span = np.sqrt(6 / sum(shape))
    assert x.shape == shape
    # The largest of n uniform numbers misses the end by 1/n on average.
    assert span * (1 - 20 / x.size) < np.abs(x).max() <= span
  embeddings = np.abs(params['embed']['embeddings'])
  assert 0.0499 < embeddings.max() <= 0.05
  recurrent = params['lstm/linear']['w'][30:]
  np.testing.assert_allclose(recurrent @ recurrent.T, np.eye(40), atol=1e-5)
  assert not any(layer['b'].any() for layer in params.values() if 'b' in layer)


def logits_and_targets(params):
  pairs = [by_hand(sentence, 4) for sentence in SENTENCES]
  inputs, targets = (np.array(x) for x in zip(*pairs))
  return np.asarray(jax.jit(textbook.apply)(params, inputs)), targets


def test_the_loss_of_a_sentence_is_the_sum_over_its_words_without_padding():
  task, params = small()
  loss = task.loss(params, {'words': padded()}, jax.random.key(0))
  logits, targets = logits_and_targets(params)
  surprise = np.log(np.exp(logits).sum(axis=-1)) - np.take_along_axis(
    logits, targets[..., None], axis=-1
  ).squeeze(-1)
  for i, sentence in enumerate(SENTENCES):
    n = min(len(sentence) + 1, 4)
    assert float(loss.weight[i]) == n
    np.testing.assert_allclose(loss.total[i], surprise[i, :n].sum(), rtol=1e-5)


def test_gradients_are_those_of_haiku():
  task, params = small()
  _, targets = logits_and_targets(params)

  def plain(params):
    inputs = np.array([by_hand(s, 4)[0] for s in SENTENCES])
    logs = jax.nn.log_softmax(textbook.apply(params, inputs))
    picked = jnp.take_along_axis(logs, targets[..., None], axis=-1)[..., 0]
    return -jnp.sum(jnp.where(targets > 0, picked, 0))

  def ours(params):
    return task.loss(params, {'words': padded()}, jax.random.key(0)).total.sum()

  expected, found = jax.jit(jax.grad(plain))(params), jax.grad(ours)(params)
  for a, b in zip(
    jax.tree.leaves(found), jax.tree.leaves(expected), strict=True
  ):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def answering(answer):
  """Parameters with which the model always says `answer`."""
  _, params = small()
  params = jax.tree.map(jnp.zeros_like, params)
  params['linear_1']['b'] = params['linear_1']['b'].at[answer].set(1)
  return params


@pytest.mark.parametrize(
  ('answer', 'hits', 'all_hits'),
  [
    (3, [0, 0, 2, 0], [0, 0, 2, 0]),
    (OOV, [0, 0, 0, 0], [0, 1, 1, 0]),
    (EOS, [0, 0, 0, 0], [1, 0, 1, 1]),
    (0, [0, 0, 0, 0], [0, 0, 0, 0]),
    (BOS, [0, 0, 0, 0], [0, 0, 0, 0]),
  ],
)
def test_accuracy_leaves_out_oov_eos_and_padding(answer, hits, all_hits):
  task, _ = small()
  metrics = task.metrics(answering(answer), {'words': padded()})
  accuracy, everything = metrics['accuracy'], metrics['accuracy_with_oov_eos']
  assert accuracy.weight.tolist() == [1, 3, 2, 0]
  assert everything.weight.tolist() == [2, 4, 4, 1]
  assert accuracy.total.tolist() == hits
  assert everything.total.tolist() == all_hits
  np.testing.assert_array_equal(
    metrics['loss'].total,
    task.loss(answering(answer), {'words': padded()}, jax.random.key(0)).total,
  )


@pytest.mark.integration
def test_vmapped_over_clients_it_is_the_loop_over_them():
  task, params = small()
  clients = jnp.stack([padded(), padded()[::-1], padded()])

  @jax.jit
  def value_and_grad(params, words):
    return jax.value_and_grad(
      lambda p: task.loss(p, {'words': words}, jax.random.key(0)).total.sum()
    )(params)

  many = [jax.tree.map(lambda x, s=s: x * s, params) for s in (1.0, 2.0, 0.5)]
  stacked = jax.tree.map(lambda *x: jnp.stack(x), *many)
  together = jax.vmap(value_and_grad)(stacked, clients)
  for i, client in enumerate(many):
    expected = value_and_grad(client, clients[i])
    for a, b in zip(
      jax.tree.leaves(together), jax.tree.leaves(expected), strict=True
    ):
      np.testing.assert_allclose(a[i], b, rtol=1e-5, atol=1e-6)


@pytest.mark.integration
def test_a_few_steps_fit_a_few_sentences():
  task = stackoverflow.task(V, embedding_size=8, hidden_size=16)
  params = jax.jit(task.init)(jax.random.key(0))
  batch = {'words': padded()}

  @jax.jit
  def step(params):
    def mean(p):
      loss = task.loss(p, batch, jax.random.key(0))
      return loss.total.sum() / loss.weight.sum()

    loss, grads = jax.value_and_grad(mean)(params)
    return jax.tree.map(lambda p, g: p - 1.0 * g, params, grads), loss

  first = None
  for _ in range(100):
    params, loss = step(params)
    first = first or float(loss)
  assert float(loss) < first / 4
