"""How fast clients train the StackOverflow LSTM, against the textbook form.

  python benchmarks/next_word_round.py

Both forms have the same parameters and train the same clients, in turn, within
one process: `hk.dynamic_unroll` with optax's cross-entropy, and
`epe_jax.tasks.stackoverflow`. The floor is the time of the arithmetic at the
speed of a large matrix product on the same machine.
"""

import os
import time

from absl import app, flags
import floor
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import record

from epe_jax.audit import audited_algorithm
from epe_jax.tasks import stackoverflow
from epe_jax.training import clipping, fedavg
from epe_jax.types import Task, Weighted

_CLIENTS = flags.DEFINE_integer('clients', 5, 'Clients of a round.')
_SENTENCES = flags.DEFINE_integer('sentences', 64, 'Sentences of a client.')
_REPETITIONS = flags.DEFINE_integer('repetitions', 7, 'Rounds of each form.')
_OUT = flags.DEFINE_string(
  'out',
  str(record.FOLDER / 'next_word_round.json'),
  'File of the result.',
)
_WORDS, _BATCH, _MAX_WORDS = 10_000, 16, 20


def textbook() -> Task:
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


def flops_per_sentence(params) -> float:
  """Multiplications and additions of matrix products, forward and backward."""
  embedding = (_WORDS + 4) * 96
  weights = sum(x.size for x in jax.tree.leaves(params) if x.ndim == 2)
  return 6.0 * _MAX_WORDS * (weights - embedding)


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  rng = np.random.default_rng(0)
  steps = -(-_SENTENCES.value // _BATCH)
  shape = (_CLIENTS.value, 1, steps, _BATCH)
  words = rng.integers(1, _WORDS + 1, (*shape, _MAX_WORDS), np.int16)
  real = jnp.arange(steps * _BATCH).reshape(shape[2:]) < _SENTENCES.value
  cohort = fedavg.Cohort(
    {'words': jnp.asarray(words)},
    jnp.broadcast_to(real, shape),
    jnp.arange(_CLIENTS.value)[:, None],
  )
  params = stackoverflow.task().init(jax.random.key(0))
  rounds = {}
  for name, task in {
    'textbook': textbook(),
    'epe_jax': stackoverflow.task(),
  }.items():
    algorithm = audited_algorithm.unaudited(
      fedavg.dp_fedavg(
        task,
        client_opt=optax.sgd(1.0),
        server_opt=optax.sgd(0.56),
        clipping=clipping.fixed(0.1),
        noise_multiplier=0.0,
        expected_clients=float(_CLIENTS.value),
      )
    )
    rounds[name] = (jax.jit(algorithm.step), algorithm.init(params))
  seconds: dict[str, list[float]] = {name: [] for name in rounds}
  for repetition in range(_REPETITIONS.value + 1):
    for name, (step, state) in rounds.items():
      begun = time.perf_counter()
      jax.block_until_ready(
        step(state, cohort, jax.random.key(0), jax.random.key(1))
      )
      # The first round compiles.
      if repetition:
        seconds[name].append(time.perf_counter() - begun)
  best = {name: min(found) for name, found in seconds.items()}
  sentences = _CLIENTS.value * _SENTENCES.value
  flops = sentences * flops_per_sentence(params)
  result = {
    'clients': _CLIENTS.value,
    'sentences_per_client': _SENTENCES.value,
    'seconds': best,
    'seconds_median': {k: float(np.median(v)) for k, v in seconds.items()},
    'textbook_over_epe_jax': best['textbook'] / best['epe_jax'],
    'floor_seconds': flops / floor.matmul_flops_per_second(),
    'flops': flops,
    'load_before': os.getloadavg()[0],
  }
  record.write(_OUT.value, result, 'jax', 'dm-haiku')


if __name__ == '__main__':
  app.run(main)
