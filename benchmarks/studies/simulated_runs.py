"""Runs of explicit vectors: what DP-FedAvg releases, without a model or a task.

Clients send given sums, canaries unit directions, and the server is SGD with
momentum. Everything an audit records follows, and so does the law of its scores.
"""

from typing import NamedTuple

from jaxtyping import Bool, Float
import numpy as np

from epe_jax.audit.record import Record, make_record
from epe_jax.audit.round_scalars import RoundScalars
from epe_jax.sampling import canary_schedules


class SimulatedRun(NamedTuple):
  """A run of explicit vectors.

  Attributes:
    record: what an audit keeps of it.
    canaries: unit rows.
    models: parameters before the first round and after each.
  """

  record: Record
  canaries: Float[np.ndarray, 'k d']
  models: Float[np.ndarray, 'stops d']


def simulate(
  rng: np.random.Generator,
  *,
  observed: int,
  unobserved: int,
  rounds: int,
  dim: int,
  noise: float,
  clients: float = 3.0,
  momentum: float = 0.0,
  repetitions: int = 1,
  clip_norms: Float[np.ndarray, ' rounds'] | None = None,
  coins: bool = False,
  delta: float = 1e-5,
) -> SimulatedRun:
  """One run: canaries uniform on the sphere, clients that agree in each round.

  Args:
    rng: source of all of it.
    observed: canaries that take part, once in each of `repetitions` periods.
    unobserved: canaries that do not.
    rounds: T >= repetitions.
    dim: d.
    noise: z, in units of the clip norm.
    clients: norm of the sum of the real updates in units of the clip norm, whose
      direction is the same in all rounds.
    momentum: of the server, in [0, 1).
    repetitions: rounds of a canary.
    clip_norms: S_t; None for 1 in each round.
    coins: all canaries have rounds, and fair coins decide who takes part.
    delta: δ of the run.

  Returns:
    The run; its cosines are float32, as those of a real one.
  """
  num = observed + unobserved
  clip = np.ones(rounds) if clip_norms is None else np.asarray(clip_norms)
  canaries = rng.standard_normal((num, dim))
  canaries /= np.linalg.norm(canaries, axis=1, keepdims=True)
  assigned = _assign_rounds(
    rng, rounds, observed, unobserved, repetitions, coins
  )
  participation = (
    canary_schedules.flip_coins(rng, assigned) if coins else assigned
  )
  common = rng.standard_normal(dim)
  common *= clients / np.linalg.norm(common)
  expected_clients = 7.0
  put_in = clip[:, None] * (participation @ canaries + common)
  residual = noise * clip[:, None] * rng.standard_normal((rounds, dim))
  residual /= expected_clients
  aggregates = put_in / expected_clients + residual
  models, update = [rng.standard_normal(dim)], np.zeros(dim)
  for aggregate in aggregates:
    update = momentum * update + aggregate
    models.append(models[-1] + update)
  scalars = RoundScalars(
    clip_norm=clip,
    canary_norm=clip / expected_clients,
    noise_std=noise * clip / expected_clients,
    num_clients=np.ones(rounds),
    num_canaries=participation.sum(axis=1).astype(np.float64),
    sum_norm=clients * clip,
    aggregate_norm=np.linalg.norm(aggregates, axis=1),
    residual_norm=np.linalg.norm(residual, axis=1),
    effective_dimension=np.full(rounds, dim / 3),
  )
  seen = {
    'final': models[-1],
    'change': models[-1] - models[0],
    'aggregate': aggregates,
    'residual': residual,
  }
  record = make_record(
    {name: compute_cosines(canaries, v) for name, v in seen.items()},
    scalars,
    included=participation,
    assigned=assigned,
    momentum=momentum,
    design='coin_flip' if coins else 'fixed',
    dim=dim,
    delta=delta,
  )
  return SimulatedRun(record, canaries, np.stack(models))


def compute_cosines(
  canaries: Float[np.ndarray, 'k d'], vectors: Float[np.ndarray, '*r d']
) -> Float[np.ndarray, '*r k']:
  """Cosines of canaries with vectors; 0 with a vector of zeros."""
  norm = np.linalg.norm(vectors, axis=-1, keepdims=True)
  return vectors @ canaries.T / np.where(norm > 0, norm, 1)


def _assign_rounds(
  rng: np.random.Generator,
  rounds: int,
  observed: int,
  unobserved: int,
  repetitions: int,
  coins: bool,
) -> Bool[np.ndarray, 'rounds k']:
  num = observed + unobserved if coins else observed
  assigned = canary_schedules.once_per_period(
    rng, rounds=rounds, num=num, periods=repetitions
  )
  return np.pad(assigned, ((0, 0), (0, observed + unobserved - num)))
