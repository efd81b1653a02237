"""Who takes part when, as a config says, and what is known of it."""

import math
from typing import Literal, NamedTuple

from jaxtyping import Bool
import numpy as np
from scipy import stats

from epe_jax import accounting, streams
from epe_jax.data import federated
from epe_jax.experiment import workloads
from epe_jax.sampling import canary_schedules, client_schedules

Config = workloads.Config

# A chance that nobody need reckon with.
_RARELY = 1e-9

CLIENTS = ('shuffled', 'one_order', 'fixed_size', 'poisson', 'limited', 'log')
CANARIES = (
  'once_per_period',
  'coin_flips',
  'as_clients',
  'replace',
  'matrix',
)


class Participation(NamedTuple):
  """Who takes part when.

  Attributes:
    clients: round -> indices of its real clients.
    canaries: row t holds the canaries of round t; those in no row are
      unobserved.
    assigned: likewise, had all coins said yes; canaries again without coins.
    design: 'coin_flip' or 'fixed', see `record.Record`.
    expected: m, clients and canaries of a round on average.
    slots: real clients of a round at most.
    most: rounds that a real client takes part in at most. Where coins are to
      stay secret it follows from their law: more have a chance of 1e-9.
  """

  clients: client_schedules.ClientSchedule
  canaries: Bool[np.ndarray, 'T k']
  assigned: Bool[np.ndarray, 'T k']
  design: Literal['fixed', 'coin_flip']
  expected: float
  slots: int
  most: int


def plan_participation(
  config: Config,
  data: federated.FederatedData,
  *,
  client_seed: int,
  canary_seed: int,
) -> Participation:
  """Clients by config.participation, canaries by config.canaries.

  Args:
    config: every field set; its own seed is ignored.
    data: of all clients.
    client_seed: which clients take part when follows from it, >= 0.
    canary_seed: when canaries do and their coins follow from it, >= 0.

  Raises:
    ValueError: a field is out of range or contradicts another.
    FileNotFoundError: the log or the matrix is missing.
  """
  kind, how = config.participation.kind, config.canaries.schedule
  for name, value, known in (
    ('participation.kind', kind, CLIENTS),
    ('canaries.schedule', how, CANARIES),
  ):
    if value not in known:
      names = ', '.join(map(repr, known))
      raise ValueError(f'{name}={value!r}; give one of {names}.')
  rounds, n = config.rounds, data.num_clients
  rng = streams.host_rng(canary_seed, 'canary rounds')
  clients, assigned = _assign_rounds(config, data, client_seed, rng)
  coins = how == 'coin_flips'
  canaries = canary_schedules.coin_flips(rng, assigned) if coins else assigned
  _check_groups(canaries, rounds=rounds, coins=coins)
  cohorts = [clients(t) for t in range(rounds)]
  sizes = [len(cohort) for cohort in cohorts]
  counts = client_schedules.count_participations(
    cohorts.__getitem__, rounds=rounds, num_clients=n
  )
  # Half of those with a coin, and not as many as came, which would give away
  # something of every coin.
  inserted = assigned.sum() / rounds * (0.5 if coins else 1)
  most = int(counts.max())
  if kind == 'poisson' and not config.simulation:
    q = config.clients_per_round / _population(config, n)
    most = max(1, int(stats.binom.isf(_RARELY / n, rounds, q)))
  # Where canaries come on top, they are expected on top; else among the rest.
  mean = config.clients_per_round
  if how in ('once_per_period', 'coin_flips', 'matrix'):
    mean += inserted
  return Participation(
    clients=cohorts.__getitem__,
    canaries=canaries,
    assigned=assigned,
    design='coin_flip' if coins else 'fixed',
    expected=np.mean(sizes) + inserted if kind == 'log' else mean,
    slots=max(1, *sizes),
    most=most,
  )


def describe_amplification(
  config: Config, *, num_clients: int, delta: float
) -> str | None:
  """What is known of amplification by sampling, in words; None without any.

  The attacker of the analytic ε knows who takes part when. One who does not
  learns less where rounds are drawn in secret.
  """
  kind = config.participation.kind
  if kind == 'poisson' and config.divisor != 'expected':
    return (
      'not known: the number of clients of a round, which says something of each '
      f'coin, shows in what divisor={config.divisor!r} divides'
    )
  if kind == 'poisson':
    found = accounting.epsilon_of_poisson(
      config.noise_multiplier,
      delta=delta,
      probability=config.clients_per_round / _population(config, num_clients),
      rounds=config.rounds,
    )
    epsilon = '∞' if math.isinf(found.epsilon) else f'{found.epsilon:.4g}'
    return f'ε = {epsilon} for clients: {found.assumes}'
  if kind in ('fixed_size', 'limited'):
    return (
      'not known: there is no tight analysis of a participation '
      f'{kind.replace("_", " ")}'
    )
  return None


def _population(config: Config, num_clients: int) -> int:
  """From how many a round is drawn: canaries may be among them."""
  c = config.canaries
  return num_clients + (c.observed if c.schedule == 'as_clients' else 0)


def _clients(
  config: Config, data: federated.FederatedData, seed: int, num_clients: int
) -> client_schedules.ClientSchedule:
  """The schedule of so many clients, who may include canaries."""
  p, m = config.participation, config.clients_per_round
  sizes = {'num_clients': num_clients, 'clients_per_round': m}
  if p.kind in ('shuffled', 'one_order'):
    return client_schedules.shuffled_epochs(
      seed, **sizes, reshuffle=p.kind == 'shuffled'
    )
  if p.kind == 'fixed_size':
    return client_schedules.fixed_size(seed, **sizes)
  if p.kind == 'poisson':
    return client_schedules.poisson(
      seed, num_clients=num_clients, expected_clients=m
    )
  if p.kind == 'limited':
    return client_schedules.limited(
      seed,
      rounds=config.rounds,
      **sizes,
      min_separation=p.separation,
      max_participations=p.most,
    )
  if p.log is None or num_clients != data.num_clients:
    raise ValueError(
      f"participation.kind='log' with participation.log={p.log!r} and "
      f'canaries.schedule={config.canaries.schedule!r}; give the log of a real '
      "system, in which no canary is: not with 'as_clients'."
    )
  schedule, logged = client_schedules.replay_log(
    p.log, data.client_ids.tolist()
  )
  if config.rounds > logged:
    raise ValueError(
      f'rounds={config.rounds}, but {p.log} has {logged}. Ask for these.'
    )
  return schedule


def _assign_rounds(
  config: Config,
  data: federated.FederatedData,
  seed: int,
  rng: np.random.Generator,
) -> tuple[client_schedules.ClientSchedule, Bool[np.ndarray, 'T k']]:
  """Clients of each round, and the canaries assigned to it.

  Columns without a round are of canaries that can only be unobserved.
  """
  c, rounds, n = config.canaries, config.rounds, data.num_clients
  if c.observed + c.unobserved == 0:
    return _clients(config, data, seed, n), np.zeros((rounds, 0), bool)
  if c.schedule == 'as_clients':
    assigned, clients = canary_schedules.as_clients(
      _clients(config, data, seed, _population(config, n)),
      rounds=rounds,
      num=c.observed,
      num_clients=n,
    )
  elif c.schedule == 'replace':
    assigned, clients = canary_schedules.replacing(
      rng,
      _clients(config, data, seed, n),
      rounds=rounds,
      num=c.observed,
      num_clients=n,
    )
  else:
    clients = _clients(config, data, seed, n)
    assigned = _inserted(config, rng)
  unassigned = c.observed + c.unobserved - assigned.shape[1]
  return clients, np.pad(assigned, ((0, 0), (0, unassigned)))


def _check_groups(
  canaries: Bool[np.ndarray, 'T k'], *, rounds: int, coins: bool
) -> None:
  """Raises a ValueError if canaries that take part have no spread of scores.

  By coins, if those that do not have none either; without coins there may be a
  null law that is known.
  """
  k, observed = canaries.shape[1], int(canaries.any(axis=0).sum())
  if k == 0:
    return
  if coins and min(observed, k - observed) < 2:
    raise ValueError(
      f'{observed} of {k} canaries take part by their coins, and the spread of '
      'scores takes two that do and two that do not. Give more of '
      'canaries.observed or canaries.unobserved.'
    )
  if observed < 2:
    raise ValueError(
      f'{observed} canaries take part in {rounds} rounds, and the spread of '
      'scores takes two. Give more of canaries.observed, or more rounds.'
    )


def _inserted(
  config: Config, rng: np.random.Generator
) -> Bool[np.ndarray, 'T n']:
  """Rounds assigned to canaries that come to the clients of a round."""
  c, rounds = config.canaries, config.rounds
  if c.schedule == 'matrix':
    if c.matrix is None:
      raise ValueError(
        "canaries.schedule='matrix', but canaries.matrix=None; give the file of "
        'a 0/1 matrix, a row for each round.'
      )
    matrix = canary_schedules.read_matrix(c.matrix, rounds=rounds)
    if matrix.shape[1] != c.observed:
      raise ValueError(
        f'canaries.observed={c.observed}, but {c.matrix} has '
        f'{matrix.shape[1]} columns, one for each canary. Make them agree.'
      )
    return matrix
  num, names = c.observed, f'canaries.observed={c.observed} is'
  if c.schedule == 'coin_flips':
    num += c.unobserved
    names = f'{names[:-3]} and canaries.unobserved={c.unobserved} are'
  slots = rounds // max(c.repetitions, 1) * config.clients_per_round
  if num > slots:
    raise ValueError(
      f'{names} more than the {slots} slots of the '
      f'{rounds // max(c.repetitions, 1)} rounds in which each canary takes '
      f'part once ({config.clients_per_round} clients per round). Ask for at '
      f'most {slots}, for fewer canaries.repetitions, or for more rounds.'
    )
  return canary_schedules.once_per_period(
    rng, rounds=rounds, num=num, periods=c.repetitions
  )
