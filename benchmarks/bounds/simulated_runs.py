"""Runs of explicit vectors: what DP-FedAvg releases, without a model or a task.

Clients send given sums, canaries unit directions, and the server is SGD with
momentum. Everything an audit records follows, and so does the law of its scores.
"""

from typing import Literal, NamedTuple, TypeAlias

from jaxtyping import Bool, Float
import numpy as np

from epe_jax.audit.record import Record, make_record
from epe_jax.sampling import canary_schedules
from epe_jax.training.round_scalars import RoundScalars

Canaries: TypeAlias = Literal['sphere', 'orthogonal'] | Float[np.ndarray, 'k d']


class SimulatedRun(NamedTuple):
  """A run of explicit vectors.

  Attributes:
    record: what an audit keeps of it.
    canaries: unit rows.
    models: parameters before the first round and after each. Like canaries they
      are in a basis of their own, in which n <= d numbers may be enough.
  """

  record: Record
  canaries: Float[np.ndarray, 'k n']
  models: Float[np.ndarray, 'stops n']


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
  canaries: Canaries = 'sphere',
) -> SimulatedRun:
  """One run of clients that agree in each round.

  All vectors but given canaries have random directions, so that the run is drawn in
  a basis in which few numbers of each are not 0: d may be large.

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
    coins: whether all canaries have rounds and are included with probability 1/2.
    delta: δ of the run.
    canaries: independent and uniform on the sphere; a random orthogonal frame, of
      no more than d; or unit rows.

  Returns:
    The run; its cosines are float32, as those of a real one.
  """
  num = observed + unobserved
  clip = np.ones(rounds) if clip_norms is None else np.asarray(clip_norms)
  vectors = 2 + rounds
  if isinstance(canaries, str):
    normal = draw_normal(rng, num + vectors, dim)
    rows, normal = normal[:num], normal[num:]
    if canaries == 'orthogonal':
      rows = np.eye(num, normal.shape[1])
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
  else:
    rows, normal = canaries, rng.standard_normal((vectors, dim))
  initial, common, normal = normal[0], normal[1].copy(), normal[2:]
  assigned = _assign_rounds(
    rng, rounds, observed, unobserved, repetitions, coins
  )
  participation = (
    canary_schedules.flip_coins(rng, assigned) if coins else assigned
  )
  common *= clients / np.linalg.norm(common)
  expected_clients = 7.0
  put_in = clip[:, None] * (participation @ rows + common)
  residual = noise * clip[:, None] * normal
  residual /= expected_clients
  aggregates = put_in / expected_clients + residual
  models, update = [initial], np.zeros_like(initial)
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
    {name: compute_cosines(rows, v) for name, v in seen.items()},
    scalars,
    included=participation,
    assigned=assigned,
    momentum=momentum,
    design='coin_flip' if coins else 'fixed',
    dim=dim,
    delta=delta,
    noise_multiplier=noise,
    periods=repetitions,
  )
  return SimulatedRun(record, rows, np.stack(models))


def draw_normal(
  rng: np.random.Generator, num: int, dim: int
) -> Float[np.ndarray, 'num n']:
  """Independent normal vectors of R^d, up to a rotation of all of them.

  In the basis that Gram and Schmidt make of them, row i has i normal numbers and the
  norm of d - i others (Bartlett 1933).
  """
  if dim <= num:
    return rng.standard_normal((num, dim))
  rows = np.tril(rng.standard_normal((num, num)), -1)
  np.fill_diagonal(rows, np.sqrt(rng.chisquare(dim - np.arange(num))))
  return rows


def compute_cosines(
  canaries: Float[np.ndarray, 'k n'], vectors: Float[np.ndarray, '*r n']
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
