"""Who takes part when: 0/1 matrices for canaries, cohorts for clients.

Host only. Nothing but the seed and the round decides, so a run that is
continued needs no replay.
"""

from collections.abc import Callable
import itertools

from jaxtyping import Bool, Int
import numpy as np

# round -> indices of its clients
ClientSchedule = Callable[[int], Int[np.ndarray, ' m']]


def once_per_period(
  rng: np.random.Generator, *, rounds: int, num: int, periods: int = 1
) -> Bool[np.ndarray, 'rounds num']:
  """Each canary takes part once in each of n equal periods.

  Within a period canaries are dealt to rounds in random order, as evenly as
  they go: rounds differ by at most one canary.

  Args:
    rng: canary randomness, apart from that of noise and data.
    rounds: T >= periods. If periods does not divide T, periods differ by at
      most one round.
    num: number of canaries, >= 0.
    periods: n >= 1.

  Returns:
    A 0/1 matrix: row t holds the canaries of round t.

  Raises:
    ValueError: num, periods or rounds is out of range.

  Source: One-shot Empirical Privacy Estimation, section 5.2.

  >>> m = once_per_period(np.random.default_rng(0), rounds=6, num=4, periods=2)
  >>> m[:3].sum(axis=0), m[3:].sum(axis=0)
  (array([1, 1, 1, 1]), array([1, 1, 1, 1]))
  """
  if num < 0:
    raise ValueError(f'num={num} canaries; give num >= 0.')
  if periods < 1:
    raise ValueError(f'periods={periods}; give periods >= 1.')
  if rounds < periods:
    raise ValueError(
      f'rounds={rounds} cannot be cut into periods={periods}: a canary takes '
      f'part once in each. Train for at least {periods} rounds.'
    )
  matrix = np.zeros((rounds, num), bool)
  bounds = np.arange(periods + 1) * rounds // periods
  for start, stop in itertools.pairwise(bounds):
    seats = rng.permutation(stop - start)[np.arange(num) % (stop - start)]
    matrix[start + rng.permutation(seats), np.arange(num)] = True
  return matrix


def shuffled_epochs(
  seed: int, *, num_clients: int, clients_per_round: int
) -> ClientSchedule:
  """Clients in shuffled order, epoch after epoch, each reshuffled.

  An epoch is floor(N / m) rounds; the rest of its order, fewer than m clients,
  sits out, so that no client enters a round twice.

  Args:
    seed: data randomness.
    num_clients: N.
    clients_per_round: m, 1 <= m <= N.

  Returns:
    round -> m distinct client indices.

  Raises:
    ValueError: clients_per_round is out of range.

  Source: One-shot Empirical Privacy Estimation, section 5.2.1.

  >>> cohort = shuffled_epochs(0, num_clients=6, clients_per_round=3)
  >>> sorted([*cohort(0), *cohort(1)]) == list(range(6))
  True
  """
  if not 1 <= clients_per_round <= num_clients:
    raise ValueError(
      f'clients_per_round={clients_per_round}, but the data has {num_clients} '
      f'clients; give 1 to {num_clients}.'
    )
  epoch_rounds = num_clients // clients_per_round

  def clients(t: int) -> Int[np.ndarray, ' m']:
    epoch, i = divmod(t, epoch_rounds)
    order = np.random.default_rng((seed, epoch)).permutation(num_clients)
    return order[i * clients_per_round : (i + 1) * clients_per_round]

  return clients


def most_participations(
  *, rounds: int, num_clients: int, clients_per_round: int
) -> int:
  """Rounds that a client of `shuffled_epochs` takes part in at most.

  >>> most_participations(rounds=5, num_clients=6, clients_per_round=3)
  3
  """
  return -(-rounds // (num_clients // clients_per_round))
