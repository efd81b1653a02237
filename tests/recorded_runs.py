"""What a run records, made without training: by law, and by explicit vectors."""

from typing import NamedTuple

import numpy as np

from epe_jax import results


def by_law(
  *,
  observed=60,
  unobserved=60,
  rounds=20,
  repetitions=1,
  shift=3.0,
  dim=10**6,
  design='fixed',
):
  """Cosines N(0, 1/d), higher by shift/√d where a canary takes part."""
  rng = np.random.default_rng(0)
  k = observed + unobserved
  seated = k if design == 'coin_flip' else observed
  seats = np.zeros((rounds, k), bool)
  for period in np.array_split(np.arange(rounds), repetitions):
    seats[rng.choice(period, seated), np.arange(seated)] = True
  seen = np.arange(k) < observed
  if design == 'coin_flip':
    seen = rng.random(k) < 0.5
  participation = seats & seen
  cosines = rng.standard_normal((rounds, k)) + shift * participation
  final = rng.standard_normal((2, k)) + shift * seen
  trace = (cosines / np.sqrt(dim)).astype(np.float32)
  final, change = (final / np.sqrt(dim)).astype(np.float32)
  return results.Recorded(
    final=final,
    change=change,
    trace=trace,
    residual=trace,
    expected=np.full(rounds, shift / np.sqrt(dim), np.float32),
    participation=participation,
    seats=seats,
    sees='aggregate',
    design=design,
    dim=dim,
    delta=1e-5,
  )


def metrics(rounds):
  """Lines of metrics.jsonl as training writes them, norms left out."""
  records = [{'round': 0, 'test_accuracy': 0.1, 'test_loss': 2.3}]
  for t in range(1, rounds + 1):
    train = {'loss': 2 / t, 'clip_norm': 0.1, 'clients': 40.0, 'canaries': 3.0}
    test = {'test_accuracy': 1 - 0.9 / t, 'test_loss': 2.3 / t}
    records.append({'round': t} | train | (test if t % 5 == 0 else {}))
  return records


class Simulated(NamedTuple):
  """A run of explicit vectors: canaries [k, d], models [T + 1, d]."""

  recorded: results.Recorded
  history: list[dict[str, float]]
  canaries: np.ndarray
  models: np.ndarray


def by_vectors(
  *,
  momentum,
  noise=0.3,
  clients=3.0,
  rounds=12,
  observed=240,
  unobserved=400,
  dim=3000,
  design='fixed',
):
  """Server SGD on aggregates of canaries, clients that all agree, and noise.

  Args:
    momentum: of the server.
    noise: z, the standard deviation of the noise, as canaries have norm 1.
    clients: norm of the sum of the real updates, the same in each round.
    rounds: T.
    observed: canaries, each in one round.
    unobserved: canaries in none.
    dim: d.
    design: 'coin_flip' to let all canaries have a seat, and coins decide.
  """
  rng = np.random.default_rng(0)
  k = observed + unobserved
  canaries = rng.standard_normal((k, dim))
  canaries /= np.linalg.norm(canaries, axis=1, keepdims=True)
  seated = k if design == 'coin_flip' else observed
  seats = np.zeros((rounds, k), bool)
  dealt = rng.permutation(np.arange(seated) % rounds)
  seats[dealt, np.arange(seated)] = True
  coins = rng.random(k) < 0.5 if design == 'coin_flip' else True
  participation = seats & coins
  known = rng.standard_normal(dim)
  known *= clients / np.linalg.norm(known)
  m = 7.0
  residual = participation @ canaries
  residual = (residual + noise * rng.standard_normal(residual.shape)) / m
  aggregates = residual + known / m
  models = [rng.standard_normal(dim)]
  update = np.zeros(dim)
  for aggregate in aggregates:
    update = momentum * update + aggregate
    models.append(models[-1] + 0.5 * update)
  models = np.stack(models)
  norms = np.linalg.norm(aggregates, axis=1)
  recorded = results.Recorded(
    final=np.float32(cosines(canaries, models[-1])),
    change=np.float32(cosines(canaries, models[-1] - models[0])),
    trace=np.float32(cosines(canaries, aggregates)),
    residual=np.float32(cosines(canaries, residual)),
    expected=np.float32(1 / m / norms),
    participation=participation,
    seats=seats,
    sees='aggregate',
    design=design,
    dim=dim,
    delta=1e-5,
  )
  history = [{'round': 0, 'test_accuracy': 0.1}]
  for t in range(rounds):
    history.append(
      {
        'round': t + 1,
        'aggregate_norm': float(norms[t]),
        'canary_cosine': float(1 / m / norms[t]),
        'noise_std': noise / m,
        'canaries': float(participation[t].sum()),
      }
    )
  return Simulated(recorded, history, canaries, models)


def cosines(canaries, v):
  """[..., k] of vectors [..., d]."""
  return v @ canaries.T / np.linalg.norm(v, axis=-1, keepdims=True)
