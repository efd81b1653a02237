"""What correlated noise adds to a round of the StackOverflow LSTM.

  python -m benchmarks.speed.correlated_noise

The same clients train in turn within one process, with independent noise and with each
matrix mechanism of a hundred rounds. A round is also timed without clients, where noise
is most of what is left. The floor reads and writes the vectors of the state once, at the
speed of a large copy.
"""

from absl import flags
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import harness
from epe_jax.accounting import ParticipationSchema
from epe_jax.tasks import stackoverflow
from epe_jax.training import algorithms, clipping, correlated_noise, fedavg

_CLIENTS = flags.DEFINE_integer('clients', 10, 'Clients of a round.')
_SENTENCES = flags.DEFINE_integer('sentences', 64, 'Sentences of a client.')
_REPETITIONS = flags.DEFINE_integer('repetitions', 7, 'Rounds of each form.')
_ROUNDS, _BATCH, _MAX_WORDS = 100, 16, 20


def make_mechanisms() -> dict[str, correlated_noise.Stream]:
  """The mechanisms by name."""
  schema = ParticipationSchema(20, 5)
  make = {
    'independent': correlated_noise.independent,
    'tree': correlated_noise.tree,
    'banded, 4': lambda n: correlated_noise.banded(n, bands=4),
    'bisr, 4': lambda n: correlated_noise.bisr(n, bands=4),
    'blt, 2': lambda n: correlated_noise.blt(n, buffers=2, schema=schema),
  }
  return {name: each(_ROUNDS).stream for name, each in make.items()}


def measure(quick: bool) -> dict:
  clients, sentences = (1, 2) if quick else (_CLIENTS.value, _SENTENCES.value)
  repetitions = 1 if quick else _REPETITIONS.value
  task = stackoverflow.task()
  params = task.init(jax.random.key(0))
  dim = sum(x.size for x in jax.tree.leaves(params))
  mechanisms = make_mechanisms()

  def time_rounds(is_real: bool) -> dict[str, harness.Timing]:
    cohort = make_cohort(clients, sentences, is_real)
    return harness.time_in_turn(
      {
        name: make_round(task, params, cohort, stream)
        for name, stream in mechanisms.items()
      },
      repetitions,
    )

  full, empty = time_rounds(True), time_rounds(False)
  base, base_empty = full['independent'].best, empty['independent'].best
  rows = {}
  for name, stream in mechanisms.items():
    state = jax.eval_shape(
      stream.init, jax.ShapeDtypeStruct((dim,), jnp.float32)
    )
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    rows[name] = {
      'state_bytes': size,
      'seconds': full[name].best,
      'over_independent': full[name].best / base,
      'seconds_without_clients': empty[name].best,
      'added_seconds': empty[name].best - base_empty,
    }
  return {
    'dim': dim,
    'clients': clients,
    'sentences_per_client': sentences,
    'mechanisms': rows,
  }


def make_cohort(clients: int, sentences: int, is_real: bool) -> fedavg.Cohort:
  """Clients of random words; none of them is real if that is said."""
  rng = np.random.default_rng(0)
  steps = -(-sentences // _BATCH)
  shape = (clients, 1, steps, _BATCH)
  words = rng.integers(1, 10_001, (*shape, _MAX_WORDS), np.int16)
  real = jnp.arange(steps * _BATCH).reshape(shape[2:]) < sentences
  return fedavg.Cohort(
    {'words': jnp.asarray(words)},
    jnp.broadcast_to(real & is_real, shape),
    jnp.arange(clients)[:, None] if is_real else jnp.full((clients, 1), -1),
  )


def make_round(task, params, cohort, stream):
  """A function of nothing that trains the next round."""
  algorithm = fedavg.dp_fedavg(
    task,
    client_opt=optax.sgd(1.0),
    server_opt=optax.sgd(0.56),
    clipping=clipping.fixed(0.1),
    noise_multiplier=0.1,
    expected_clients=10.0,
    aggregation=correlated_noise.correlated(stream),
  )
  step = jax.jit(algorithm.step, donate_argnums=0)
  held = [algorithm.init(params)]
  keys = jax.random.key(0), jax.random.key(1)
  nobody = algorithms.no_canaries()

  def train():
    held[0], round = step(held[0], cohort, nobody, *keys)
    return round.scalars

  return train


if __name__ == '__main__':
  harness.run(measure, 'jax', 'jax-privacy')
