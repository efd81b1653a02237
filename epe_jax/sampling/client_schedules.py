"""Cohort sampling: which clients take part in which round, and canaries as clients.

`epe_jax.sampling` says what the arguments are.
"""

from collections.abc import Callable
import functools

from jaxtyping import Bool, Int
import numpy as np

from epe_jax import streams

# The purpose of the stream of random numbers; a run has one schedule.
_PURPOSE = 'clients'

# t -> indices of the clients of round t, all different
ClientSchedule = Callable[[int], Int[np.ndarray, ' m']]


def shuffled_epochs(
  seed: int, *, num_clients: int, clients_per_round: int, reshuffle: bool = True
) -> ClientSchedule:
  """Takes m clients at a time in shuffled order, epoch after epoch.

  An epoch is floor(N / m) rounds. The last N mod m clients of its order sit it
  out, so that no client enters a round twice.

  Args:
    reshuffle: True draws a new order for each epoch, as in the paper; False
      keeps one order for all epochs, as the authors' released code does.

  References:
    One-shot Empirical Privacy Estimation, section 5.2.1.

  >>> cohort = shuffled_epochs(0, num_clients=6, clients_per_round=3)
  >>> sorted([*cohort(0), *cohort(1)]) == list(range(6))
  True
  """
  _check_size(clients_per_round, num_clients)
  epoch_rounds = num_clients // clients_per_round

  # Cached, or each of 2,000 rounds would shuffle 342,477 clients again.
  @functools.lru_cache(maxsize=1)
  def draw_order(epoch: int) -> Int[np.ndarray, ' n']:
    return streams.host_rng(seed, _PURPOSE, epoch).permutation(num_clients)

  def draw_cohort(t: int) -> Int[np.ndarray, ' m']:
    epoch, i = divmod(t, epoch_rounds)
    places = slice(i * clients_per_round, (i + 1) * clients_per_round)
    # A copy, because the order is cached.
    return draw_order(epoch if reshuffle else 0)[places].copy()

  return draw_cohort


def fixed_size(
  seed: int, *, num_clients: int, clients_per_round: int
) -> ClientSchedule:
  """Draws m clients in each round independently, without replacement."""
  _check_size(clients_per_round, num_clients)

  def draw_cohort(t: int) -> Int[np.ndarray, ' m']:
    rng = streams.host_rng(seed, _PURPOSE, t)
    return rng.choice(num_clients, clients_per_round, replace=False)

  return draw_cohort


def poisson(
  seed: int, *, num_clients: int, expected_clients: float
) -> ClientSchedule:
  """Poisson sampling: each client in each round with probability q = m / N."""
  if not 0 < expected_clients <= num_clients:
    raise ValueError(
      f'expected_clients={expected_clients}, but there are {num_clients} '
      f'clients; give more than 0 and at most {num_clients}.'
    )

  def draw_cohort(t: int) -> Int[np.ndarray, ' m']:
    rng = streams.host_rng(seed, _PURPOSE, t)
    # Given its size, every set of clients is equally likely.
    size = rng.binomial(num_clients, expected_clients / num_clients)
    return rng.choice(num_clients, size, replace=False)

  return draw_cohort


def cyclic(
  seed: int, *, num_clients: int, expected_clients: float, period: int
) -> ClientSchedule:
  """Poisson sampling of one group of clients in each round, group after group.

  A client takes part in every period-th round at most, with probability
  q = m period / N. Noise that is correlated over fewer rounds is amplified by that.

  Args:
    expected_clients: m, at most N / period.
    period: number of groups, 1 to N.

  References:
    Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", section 4.

  >>> clients = cyclic(0, num_clients=6, expected_clients=3, period=2)
  >>> clients(0).tolist(), clients(3).tolist()
  ([0, 2, 4], [1, 3, 5])
  """
  if not 1 <= period <= num_clients:
    raise ValueError(
      f'period={period} groups of {num_clients} clients; give 1 to {num_clients}.'
    )
  probability = expected_clients * period / num_clients
  if not 0 < probability <= 1:
    raise ValueError(
      f'expected_clients={expected_clients}, but each of {period} groups has '
      f'{num_clients / period:g} of {num_clients} clients; give more than 0 and at '
      'most as many.'
    )

  def draw_cohort(t: int) -> Int[np.ndarray, ' m']:
    rng = streams.host_rng(seed, _PURPOSE, t)
    group = np.arange(t % period, num_clients, period)
    return group[rng.random(len(group)) < probability]

  return draw_cohort


def limited(
  seed: int,
  *,
  rounds: int,
  num_clients: int,
  clients_per_round: int,
  min_separation: int = 1,
  max_participations: int | None = None,
) -> ClientSchedule:
  """Draws m clients in each round, of those who may take part again.

  Rounds are planned in advance because each depends on those before.

  Args:
    min_separation: minimum distance between two rounds of a client, >= 1; 1 is
      no limit.
    max_participations: maximum number of rounds of a client, >= 1; None is no
      limit.

  Raises:
    ValueError: fewer than m clients may take part in some round, too.

  >>> clients = limited(
  ...   0, rounds=4, num_clients=6, clients_per_round=3, min_separation=2
  ... )
  >>> set(clients(0)) & set(clients(1))
  set()
  """
  _check_size(clients_per_round, num_clients)
  limit = rounds if max_participations is None else max_participations
  if min_separation < 1 or limit < 1:
    raise ValueError(
      f'min_separation={min_separation}, '
      f'max_participations={max_participations}; give 1 or more.'
    )
  last = np.full(num_clients, -min_separation)
  remaining = np.full(num_clients, limit)
  plan = []
  for t in range(rounds):
    eligible = np.flatnonzero((t - last >= min_separation) & (remaining > 0))
    if len(eligible) < clients_per_round:
      raise ValueError(
        f'{len(eligible)} of {num_clients} clients may take part in round {t + 1}, '
        f'but clients_per_round={clients_per_round}: '
        f'participation.separation={min_separation} and '
        f'participation.max_rounds={max_participations} rule out the others. Use '
        'fewer clients in a round, or loosen a limit.'
      )
    rng = streams.host_rng(seed, _PURPOSE, t)
    cohort = rng.choice(eligible, clients_per_round, replace=False)
    last[cohort] = t
    remaining[cohort] -= 1
    plan.append(cohort)
  return plan.__getitem__


def count_participations(
  schedule: ClientSchedule, *, rounds: int, num_clients: int
) -> Int[np.ndarray, ' clients']:
  """Counts the rounds in which each client takes part.

  >>> schedule = shuffled_epochs(0, num_clients=6, clients_per_round=3)
  >>> count_participations(schedule, rounds=4, num_clients=6)
  array([2, 2, 2, 2, 2, 2])
  """
  counts = np.zeros(num_clients, np.int64)
  for t in range(rounds):
    counts[schedule(t)] += 1
  return counts


def as_clients(
  schedule: ClientSchedule,
  *,
  rounds: int,
  num: int,
  num_clients: int,
) -> tuple[Bool[np.ndarray, 'rounds num'], ClientSchedule]:
  """Samples canaries as real clients are sampled, by the same schedule.

  Args:
    schedule: of num_clients + num clients; the last num are the canaries.

  Returns:
    The matrix, and the schedule of the real clients alone.

  >>> both = shuffled_epochs(
  ...   0, num_clients=6, clients_per_round=3
  ... )
  >>> m, real = as_clients(both, rounds=2, num=2, num_clients=4)
  >>> m.sum(axis=0).tolist(), len(real(0)) + len(real(1))
  ([1, 1], 4)
  """
  canary_of = np.maximum(np.arange(num_clients + num) - num_clients, -1)
  return _split(schedule, canary_of, rounds=rounds, num=num)


def replacing(
  rng: np.random.Generator,
  schedule: ClientSchedule,
  *,
  rounds: int,
  num: int,
  num_clients: int,
) -> tuple[Bool[np.ndarray, 'rounds num'], ClientSchedule]:
  """Puts each canary in the place of a designated real client.

  In production nobody can add clients to a round. There, some devices send a
  canary whenever they are asked for an update, and never anything else.

  Args:
    schedule: of the real clients.

  Returns:
    The matrix, and the schedule without the designated clients.

  References:
    One-shot Empirical Privacy Estimation, section 3.
  """
  if not 0 <= num <= num_clients:
    raise ValueError(
      f'num={num} canaries cannot replace {num_clients} clients; give at most '
      f'{num_clients}.'
    )
  canary_of = np.full(num_clients, -1)
  canary_of[rng.permutation(num_clients)[:num]] = np.arange(num)
  return _split(schedule, canary_of, rounds=rounds, num=num)


def _split(
  schedule: ClientSchedule,
  canary_of: Int[np.ndarray, ' clients'],
  *,
  rounds: int,
  num: int,
) -> tuple[Bool[np.ndarray, 'rounds num'], ClientSchedule]:
  """Splits a schedule by the canary of each client, which is -1 of a real one."""
  matrix = np.zeros((rounds, num), bool)
  for t in range(rounds):
    ids = canary_of[schedule(t)]
    matrix[t, ids[ids >= 0]] = True

  def draw_real_clients(t: int) -> Int[np.ndarray, ' m']:
    cohort = schedule(t)
    return cohort[canary_of[cohort] < 0]

  return matrix, draw_real_clients


def _check_size(clients_per_round: int, num_clients: int) -> None:
  if not 1 <= clients_per_round <= num_clients:
    raise ValueError(
      f'clients_per_round={clients_per_round}, but the data has {num_clients} '
      f'clients; give 1 to {num_clients}.'
    )
