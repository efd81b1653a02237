"""Who takes part when, as a config says, and what is known of it."""

from typing import NamedTuple
import zlib

from jaxtyping import Bool
import numpy as np

from epe_jax import accounting, canary_schedules, schedules, workloads
from epe_jax.data import federated

Config = workloads.Config

_CLIENTS = ('shuffled', 'one_order', 'fixed_size', 'poisson', 'limited', 'log')
_CANARIES = ('once_per_period', 'as_clients', 'replace', 'matrix')


class Participation(NamedTuple):
  """Who takes part when.

  Attributes:
    clients: round -> indices of its real clients.
    canaries: row t holds the canaries of round t; those in no row are
      unobserved.
    expected: m, clients and canaries of a round on average.
    slots: real clients of a round at most.
    most: rounds that a real client takes part in at most.
  """

  clients: schedules.ClientSchedule
  canaries: Bool[np.ndarray, 'T k']
  expected: float
  slots: int
  most: int


def plan(config: Config, data: federated.FederatedData) -> Participation:
  """Clients by config.participation, canaries by config.canaries.

  Raises:
    ValueError: a field is out of range or contradicts another.
    FileNotFoundError: the log or the matrix is missing.
  """
  kind, how = config.participation.kind, config.canaries.schedule
  for name, value, known in (
    ('participation.kind', kind, _CLIENTS),
    ('canaries.schedule', how, _CANARIES),
  ):
    if value not in known:
      names = ', '.join(map(repr, known))
      raise ValueError(f'{name}={value!r}; give one of {names}.')
  rounds, num, n = config.rounds, config.canaries.observed, data.num_clients
  rng = np.random.default_rng((config.seed, zlib.crc32(b'canary')))
  if how == 'as_clients':
    both = _clients(config, data, n + num)
    canaries, clients = canary_schedules.as_clients(
      both, rounds=rounds, num=num, num_clients=n
    )
  elif how == 'replace':
    canaries, clients = canary_schedules.replacing(
      rng, _clients(config, data, n), rounds=rounds, num=num, num_clients=n
    )
  else:
    clients = _clients(config, data, n)
    canaries = _inserted(config, rng)
  canaries = np.pad(canaries, ((0, 0), (0, config.canaries.unobserved)))
  observed = int(canaries.any(axis=0).sum())
  if observed < 2:
    raise ValueError(
      f'{observed} canaries take part in {rounds} rounds, and the spread of '
      'scores takes two. Give more of canaries.observed, or more rounds.'
    )
  cohorts = [clients(t) for t in range(rounds)]
  sizes = [len(cohort) for cohort in cohorts]
  counts = schedules.participations(
    cohorts.__getitem__, rounds=rounds, num_clients=n
  )
  # Where canaries come on top, they are expected on top; else among the rest.
  mean = config.clients_per_round
  if how in ('once_per_period', 'matrix'):
    mean += canaries.sum() / rounds
  return Participation(
    clients=cohorts.__getitem__,
    canaries=canaries,
    expected=np.mean(sizes) + canaries.sum() / rounds
    if kind == 'log'
    else mean,
    slots=max(1, *sizes),
    most=int(counts.max()),
  )


def amplification(
  config: Config, *, num_clients: int, delta: float
) -> str | None:
  """What is known of amplification by sampling, in words; None without any.

  The attacker of the analytic ε knows who takes part when. One who does not
  learns less where rounds are drawn in secret.
  """
  kind = config.participation.kind
  if kind == 'poisson':
    found = accounting.poisson(
      config.noise_multiplier,
      delta=delta,
      probability=config.clients_per_round / num_clients,
      rounds=config.rounds,
    )
    return f'ε = {found.epsilon:.4g} for clients: {found.assumes}'
  if kind in ('fixed_size', 'limited'):
    return (
      'not known: there is no tight analysis of a participation '
      f'{kind.replace("_", " ")}'
    )
  return None


def _clients(
  config: Config, data: federated.FederatedData, num_clients: int
) -> schedules.ClientSchedule:
  """The schedule of so many clients, who may include canaries."""
  p, m = config.participation, config.clients_per_round
  sizes = {'num_clients': num_clients, 'clients_per_round': m}
  if p.kind in ('shuffled', 'one_order'):
    return schedules.shuffled_epochs(
      config.seed, **sizes, reshuffle=p.kind == 'shuffled'
    )
  if p.kind == 'fixed_size':
    return schedules.fixed_size(config.seed, **sizes)
  if p.kind == 'poisson':
    return schedules.poisson(
      config.seed, num_clients=num_clients, expected_clients=m
    )
  if p.kind == 'limited':
    return schedules.limited(
      config.seed,
      rounds=config.rounds,
      **sizes,
      separation=p.separation,
      most=p.most,
    )
  if p.log is None or num_clients != data.num_clients:
    raise ValueError(
      f"participation.kind='log' with participation.log={p.log!r} and "
      f'canaries.schedule={config.canaries.schedule!r}; give the log of a real '
      "system, in which no canary is: not with 'as_clients'."
    )
  schedule, logged = schedules.replayed(p.log, data.client_ids.tolist())
  if config.rounds > logged:
    raise ValueError(
      f'rounds={config.rounds}, but {p.log} has {logged}. Ask for these.'
    )
  return schedule


def _inserted(
  config: Config, rng: np.random.Generator
) -> Bool[np.ndarray, 'T k']:
  """Canaries that come to the clients of a round."""
  c, rounds = config.canaries, config.rounds
  if c.schedule == 'matrix':
    if c.matrix is None:
      raise ValueError(
        "canaries.schedule='matrix', but canaries.matrix=None; give the file of "
        'a 0/1 matrix, a row for each round.'
      )
    matrix = canary_schedules.read(c.matrix, rounds=rounds)
    if matrix.shape[1] != c.observed:
      raise ValueError(
        f'canaries.observed={c.observed}, but {c.matrix} has '
        f'{matrix.shape[1]} columns, one for each canary. Make them agree.'
      )
    return matrix
  slots = rounds // max(c.repetitions, 1) * config.clients_per_round
  if c.observed > slots:
    raise ValueError(
      f'canaries.observed={c.observed} is more than the {slots} slots of the '
      f'{rounds // max(c.repetitions, 1)} rounds in which each canary takes '
      f'part once ({config.clients_per_round} clients per round). Ask for at '
      f'most {slots}, for fewer canaries.repetitions, or for more rounds.'
    )
  return canary_schedules.once_per_period(
    rng, rounds=rounds, num=c.observed, periods=c.repetitions
  )
