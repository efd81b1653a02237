"""How far unobserved cosines are from their law, by family and by vector.

  python -m benchmarks.speed.canary_law

The Anderson-Darling test of k cosines against the exact law of the cosine of a random
direction: for vectors of m equal entries, for normal noise, and for the aggregates of
real training (digits by the default model, and next words by the StackOverflow LSTM on
a few sentences of Zipf's words, which leave most rows of the embedding untouched). All
vectors of a kind share one canary set; the test rejects 5 % of them at the 5 % level if
the law holds exactly.
"""

from collections.abc import Mapping
import json

from absl import flags
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import harness
from epe_jax import canaries
from epe_jax.data import cohort, digits, federated
from epe_jax.epsilon import diagnostics
from epe_jax.epsilon.types import Sphere
from epe_jax.tasks import digits as digits_task
from epe_jax.tasks import stackoverflow
from epe_jax.training import algorithms, clipping, fedavg
from epe_jax.types import Task

_NUM = flags.DEFINE_integer('num_canaries', 2000, 'k.')
_DIM = flags.DEFINE_integer('dim', 100_000, 'd of the synthetic vectors.')
_VECTORS = flags.DEFINE_integer('vectors', 40, 'Synthetic vectors of a kind.')
_ROUNDS = flags.DEFINE_integer('rounds', 10, 'Rounds of each training.')
_CLIENTS, _NOISE = 20, 0.2


def equal(rng: np.random.Generator, vectors: int, dim: int, m: int):
  """Vectors of m entries ±1, the others 0."""
  v = np.zeros((vectors, dim), np.float32)
  for x in v:
    x[rng.choice(dim, m, replace=False)] = rng.choice([-1.0, 1.0], m)
  return v


def aggregates(
  task: Task,
  data: federated.FederatedData,
  *,
  rounds: int,
  clients: int,
  learning_rate: float,
  noise_multiplier: float,
):
  """Noisy means of the rounds of a training, [rounds, d]."""
  algorithm = fedavg.dp_fedavg(
    task,
    client_opt=optax.sgd(learning_rate),
    server_opt=optax.sgd(1.0),
    clipping=clipping.fixed(0.1),
    noise_multiplier=noise_multiplier,
    expected_clients=clients,
  )
  state = algorithm.init(task.init(jax.random.key(0)))
  plan = cohort.Plan(
    batch_size=8, epochs=1, max_examples=None, chunk=1, slots=clients
  )
  step = jax.jit(
    lambda state, batch, *keys: algorithm.step(
      state, batch, algorithms.no_canaries(), *keys
    )
  )
  found = []
  for t in range(rounds):
    who = np.arange(t * clients, (t + 1) * clients) % data.num_clients
    batch = cohort.gather(data, who, plan, seed=0, round=t)
    keys = jax.random.key(2 * t), jax.random.key(2 * t + 1)
    state, info = step(state, batch, *keys)
    found.append(np.asarray(info.aggregate))
  return np.stack(found)


def of_digits(rounds: int, noise_multiplier: float, width: int = 200):
  """Aggregates of the default task."""
  data, _ = digits.load(0, num_clients=200, concentration=1.0)
  return aggregates(
    digits_task.task(width),
    data,
    rounds=rounds,
    clients=_CLIENTS,
    learning_rate=0.05,
    noise_multiplier=noise_multiplier,
  )


def of_words(
  rounds: int, noise_multiplier: float, words: int = 2000, sentences: int = 4
):
  """Aggregates of a small LSTM, of single clients with few sentences."""
  rng = np.random.default_rng(0)
  shape = (rounds, sentences, 20)
  text = np.minimum(rng.zipf(1.3, shape), words).astype(np.int16)
  data = federated.from_clients(
    {f'{i:03d}': {'words': text[i]} for i in range(rounds)}
  )
  return aggregates(
    stackoverflow.task(words, embedding_size=16, hidden_size=24),
    data,
    rounds=rounds,
    clients=1,
    learning_rate=1.0,
    noise_multiplier=noise_multiplier,
  )


def embedding_alone(v, words: int = 2000):
  """The part of `of_words` in the rows of the embedding, the others 0."""
  task = stackoverflow.task(words, embedding_size=16, hidden_size=24)
  params = task.init(jax.random.key(0))
  first = lambda path: jax.tree_util.keystr(path).count('embed')
  inside = jax.tree_util.tree_map_with_path(
    lambda path, x: np.full(x.shape, first(path) > 0), params
  )
  mask = np.concatenate([x.ravel() for x in jax.tree.leaves(inside)])
  return v * mask


def measured(v: np.ndarray, num: int) -> dict:
  """The test of each family, for vectors [n, d]."""
  dim = v.shape[1]
  spread = np.asarray(canaries.effective_dimension(jnp.asarray(v)))
  unit = v / np.linalg.norm(v, axis=1, keepdims=True)
  row = {
    'dim': dim,
    'vectors': len(v),
    'canaries': num,
    'effective_dimension': float(np.median(spread)),
    'effective_dimension_least': float(spread.min()),
    'families': {},
  }
  for name in canaries.FAMILIES:
    c = canaries.family(name)(jax.random.key(1), num, dim)
    cosines = np.asarray(jax.jit(c.project)(jnp.asarray(unit)), np.float64)
    tests = [_test(x, dim) for x in cosines]
    needed = canaries.min_effective_dimension(name, dim)
    row['families'][name] = {
      'rejected_share': float(np.mean([p < 0.05 for _, p in tests])),
      'statistic_median': float(np.median([a for a, _ in tests])),
      'p_value_least': float(min(p for _, p in tests)),
      'warned_share': float(np.mean(spread < (needed or 0))),
    }
  return row


def _test(cosines: np.ndarray, dim: int) -> tuple[float, float]:
  found = diagnostics.anderson_darling_null(cosines, null=Sphere(dim))
  return float(found.statistic), float(found.p_value)


def kinds(vectors: int, dim: int, rounds: int) -> Mapping[str, np.ndarray]:
  """Stacks of vectors by name."""
  rng = np.random.default_rng(0)
  words = of_words(rounds, 0.0)
  return {
    **{
      f'{m:,} equal entries': equal(rng, vectors, dim, m)
      for m in (1, 10, 100, 300, 1000, 3000)
    },
    'normal noise': rng.standard_normal((vectors, dim)).astype(np.float32),
    'digits, no noise': of_digits(rounds, 0.0),
    f'digits, noise {_NOISE}': of_digits(rounds, _NOISE),
    'words of one client, no noise': words,
    'the same, embedding alone': embedding_alone(words),
    f'words of one client, noise {_NOISE}': of_words(rounds, _NOISE),
  }


def measure(quick: bool) -> dict:
  num, size = _NUM.value, (_VECTORS.value, _DIM.value, _ROUNDS.value)
  if quick:
    num, size = 200, (3, 10_000, 2)
  rows = {}
  for name, v in kinds(*size).items():
    rows[name] = measured(v, num)
    shares = {
      family: row['rejected_share']
      for family, row in rows[name]['families'].items()
    }
    spread = rows[name]['effective_dimension']
    print(f'{name} (d_eff {spread:,.0f}): {json.dumps(shares)}', flush=True)
  return {'kinds': rows}


if __name__ == '__main__':
  harness.run(measure, 'jax', 'dm-haiku')
