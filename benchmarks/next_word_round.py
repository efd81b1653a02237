"""Training speed of the StackOverflow LSTM, compared with its textbook form.

  python benchmarks/next_word_round.py

Both forms have the same parameters and train the same clients, in turn within one
process: `hk.dynamic_unroll` with optax's cross-entropy, and
`epe_jax.tasks.stackoverflow`. The floor is the arithmetic at the speed of a large
matrix product on the same machine.
"""

from absl import flags
import haiku as hk
import harness
import jax
import jax.numpy as jnp
import numpy as np
import optax
from peers import works

from epe_jax.audit import audited_algorithm
from epe_jax.tasks import stackoverflow
from epe_jax.training import clipping, fedavg
from epe_jax.types import Task, Weighted

_CLIENTS = flags.DEFINE_integer('clients', 5, 'Clients of a round.')
_SENTENCES = flags.DEFINE_integer('sentences', 64, 'Sentences of a client.')
_REPETITIONS = flags.DEFINE_integer('repetitions', 7, 'Rounds of each form.')
_WORDS, _BATCH, _MAX_WORDS = 10_000, 16, 20


def make_textbook_task() -> Task:
  """The same model, as one would write it with Haiku."""

  @hk.without_apply_rng
  @hk.transform
  def model(words):
    x = hk.Embed(_WORDS + 4, 96)(words)
    core = hk.LSTM(670)
    state = core.initial_state(len(words))
    x, _ = hk.dynamic_unroll(core, x, state, time_major=False)
    x = hk.Linear(96)(x)
    return hk.Linear(_WORDS + 4)(x)

  def loss(params, batch, key):
    del key
    inputs, targets = stackoverflow.split_inputs_and_targets(
      batch['words'], _WORDS
    )
    each = optax.softmax_cross_entropy_with_integer_labels(
      model.apply(params, inputs), targets
    )
    real = targets > 0
    return Weighted(
      jnp.sum(jnp.where(real, each, 0), axis=1), 1.0 * jnp.sum(real, axis=1)
    )

  return stackoverflow.task()._replace(loss=loss)


def measure(quick: bool) -> dict:
  clients, sentences = (1, 2) if quick else (_CLIENTS.value, _SENTENCES.value)
  rng = np.random.default_rng(0)
  steps = -(-sentences // _BATCH)
  shape = (clients, 1, steps, _BATCH)
  words = rng.integers(1, _WORDS + 1, (*shape, _MAX_WORDS), np.int16)
  real = jnp.arange(steps * _BATCH).reshape(shape[2:]) < sentences
  cohort = fedavg.Cohort(
    {'words': jnp.asarray(words)},
    jnp.broadcast_to(real, shape),
    jnp.arange(clients)[:, None],
  )
  params = stackoverflow.task().init(jax.random.key(0))
  keys = jax.random.key(0), jax.random.key(1)

  def make_round(task: Task):
    algorithm = audited_algorithm.unaudited(
      fedavg.dp_fedavg(
        task,
        client_opt=optax.sgd(1.0),
        server_opt=optax.sgd(0.56),
        clipping=clipping.fixed(0.1),
        noise_multiplier=0.0,
        expected_clients=float(clients),
      )
    )
    step, state = jax.jit(algorithm.step), algorithm.init(params)
    return lambda: step(state, cohort, *keys)

  seconds = harness.time_in_turn(
    {
      'textbook': make_round(make_textbook_task()),
      'epe_jax': make_round(stackoverflow.task()),
    },
    1 if quick else _REPETITIONS.value,
  )
  flops = clients * sentences * works.lstm_flops()
  return {
    'clients': clients,
    'sentences_per_client': sentences,
    'seconds': harness.summarize(seconds),
    'seconds_median': harness.summarize(seconds, 'median'),
    'textbook_over_epe_jax': seconds['textbook'].best / seconds['epe_jax'].best,
    'floor_seconds': flops / harness.matmul_flops_per_second(),
    'flops': flops,
  }


if __name__ == '__main__':
  harness.run(measure, 'jax', 'dm-haiku')
