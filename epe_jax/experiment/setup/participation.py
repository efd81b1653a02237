"""The participation of clients and canaries in rounds, as a config sets it."""

from collections.abc import Sequence
import functools
from typing import Literal, NamedTuple

from jaxtyping import Bool, Float
import numpy as np

from epe_jax import accounting, streams
from epe_jax.accounting import ParticipationSchema, matrix_mechanism
from epe_jax.data import federated, participation_log
from epe_jax.experiment import client_rounds
from epe_jax.experiment.client_rounds import Schedule, Shifts
from epe_jax.experiment.setup import config as config_lib
from epe_jax.experiment.setup.config import Config
from epe_jax.sampling import canary_schedules, client_schedules
from epe_jax.training import correlated_noise
from epe_jax.training.correlated_noise import Correlation

# The probability of exceeding `Participation.max_rounds` or `slots`, if draws of a
# schedule are secret.
_TAIL = 1e-9
# Clients whose rounds stand for those of all, of a schedule without a simple law.
_TYPICAL = 1000
# Kinds of participation in which the size of a round is random.
_RANDOM_SIZE = ('poisson', 'cyclic')
# Schedules that add canaries to a round; the others count them among its clients.
_ADDED = ('once_per_period', 'coin_flip', 'worst_case')


class Participation(NamedTuple):
  """The participation of clients and canaries in T rounds.

  Where draws are secret, `slots`, `max_canaries` and `max_rounds` follow from their law,
  and something exceeds them with probability at most 1e-9. A round that does has more
  room.
  """

  # The indices of the real clients of a round t in [0, T).
  clients: client_schedules.ClientSchedule
  # Row t holds the canaries of round t; those in no row are unobserved.
  canaries: Bool[np.ndarray, 'T k']
  # The same if every coin came up heads; without coins it equals `canaries`.
  assigned: Bool[np.ndarray, 'T k']
  design: Literal['fixed', 'coin_flip']  # Of `audit.Record`.
  # m, the mean number of clients and canaries in a round.
  expected_clients: float
  slots: int  # Real clients to make room for in a round, >= 1.
  max_canaries: int  # Canaries to make room for in a round.
  # Periods, in each of which a canary is assigned one random round; None if canaries
  # are assigned rounds in another way.
  periods: int | None
  # Rounds in which a real client takes part at most, or with 'limited' may.
  max_rounds: int
  # Of the noise over rounds; None if it is independent.
  correlation: Correlation | None = None
  # How far a client can move all rounds together; None likewise.
  sensitivity: accounting.Sensitivity | None = None


def plan_participation(
  config: Config,
  data: federated.FederatedData,
  *,
  client_seed: int,
  canary_seed: int,
) -> Participation:
  """Plans clients by config.participation and canaries by config.canaries.

  Args:
    client_seed: an integer >= 0, from which the rounds of clients follow.
    canary_seed: an integer >= 0, from which the rounds of canaries and their
      coins follow.

  Raises:
    ValueError: a field is out of range or contradicts another.
    FileNotFoundError: the log is missing.
  """
  kind, schedule = config.participation.kind, config.canaries.schedule
  rounds, n, is_secret = config.rounds, data.num_clients, not config.simulation
  rng = streams.host_rng(canary_seed, 'canary rounds')
  clients, assigned = _assign_rounds(config, data, client_seed, rng)
  cohorts = [clients(t) for t in range(rounds)]
  sizes = [len(cohort) for cohort in cohorts]
  counts = client_schedules.count_participations(
    cohorts.__getitem__, rounds=rounds, num_clients=n
  )
  max_rounds, slots = int(counts.max()), max(1, *sizes)
  if is_secret and kind in ('fixed_size', *_RANDOM_SIZE):
    # Imported late, because it takes most of a second.
    from scipy import stats

    groups, q = find_probability(config, n)
    # How often the busiest client came is a secret.
    turns = -(-rounds // groups)
    max_rounds = max(1, int(stats.binom.isf(_TAIL / n, turns, q)))
    if kind in _RANDOM_SIZE:
      in_group = -(-n // groups)
      slots = max(slots, int(stats.binom.isf(_TAIL / rounds, in_group, q)))
  if is_secret and kind not in ('log', *_RANDOM_SIZE):
    slots = max(slots, config.clients_per_round)
  if kind == 'limited':
    allowed = -(-rounds // config.participation.separation)
    max_rounds = min(config.participation.max_rounds or rounds, allowed)
  if is_secret and kind == 'log' and schedule == 'replace':
    # Room for all clients of the log, as those whom canaries replace are secret.
    slots = max(1, *(sizes + assigned.sum(axis=1)))
  logged = _list_rounds(cohorts) if kind == 'log' else []
  schema = _find_schema(config, n, max_rounds, logged)
  noise, sensitivity = config.noise, None
  correlation = _make_correlation(
    noise.correlation,
    rounds,
    noise.restart,
    noise.bands,
    noise.buffers,
    schema,
  )
  is_worst = schedule == 'worst_case' and assigned.size > 0
  if correlation is not None or is_worst:
    strategy = np.eye(rounds) if correlation is None else correlation.strategy
    if logged:
      patterns, pattern = logged, np.zeros(rounds, bool)
      norms = matrix_mechanism.measure_patterns(strategy, logged)
      pattern[logged[norms.argmax()]] = True
      worst = accounting.Sensitivity(norms.max(), pattern, norms.max())
    else:
      worst = accounting.find_sensitivity(strategy, schema)
      patterns = matrix_mechanism.list_moved(worst.pattern, schema)
    sensitivity = None if correlation is None else worst
    if is_worst:
      observed = canary_schedules.worst_case(
        rng,
        patterns,
        matrix_mechanism.measure_patterns(strategy, patterns),
        rounds=rounds,
        num=config.canaries.observed,
      )
      assigned[:, : observed.shape[1]] = observed
  coins = schedule == 'coin_flip'
  canaries = canary_schedules.flip_coins(rng, assigned) if coins else assigned
  _check_groups(canaries, coins=coins)
  # With coins half of them, and not the number that took part, which would reveal
  # something of every coin.
  mean_inserted = assigned.sum() / rounds * (0.5 if coins else 1)
  mean = config.clients_per_round
  if kind == 'log':
    mean = float(np.mean(sizes))
  if kind == 'log' or schedule in _ADDED:
    mean += mean_inserted
  periods = None
  if coins or schedule == 'once_per_period':
    # A canary is in one round of each.
    periods = int(assigned.sum(axis=0).max(initial=0)) or None
  return Participation(
    clients=cohorts.__getitem__,
    canaries=canaries,
    assigned=assigned,
    design='coin_flip' if coins else 'fixed',
    expected_clients=float(mean),
    slots=slots,
    max_canaries=_bound_canaries(config, canaries, assigned, slots, n),
    periods=periods,
    max_rounds=max_rounds,
    correlation=correlation,
    sensitivity=sensitivity,
  )


def count_population(config: Config, num_clients: int) -> int:
  """Counts the population from which a round is drawn, with its canaries."""
  c = config.canaries
  return num_clients + (c.observed if c.schedule == 'as_clients' else 0)


def find_probability(config: Config, num_clients: int) -> tuple[int, float]:
  """Groups of clients, and the probability of one in a round of its group."""
  p = config.participation
  groups = p.separation if p.kind == 'cyclic' else 1
  population = count_population(config, num_clients)
  return groups, config.clients_per_round * groups / population


def _bound_canaries(
  config: Config,
  canaries: Bool[np.ndarray, 'T k'],
  assigned: Bool[np.ndarray, 'T k'],
  slots: int,
  num_clients: int,
) -> int:
  """Bounds the number of canaries in a round; see `Participation.max_canaries`."""
  k, schedule = config.canaries.observed, config.canaries.schedule
  if config.simulation or not k:
    return int(canaries.sum(axis=1).max(initial=0))
  # Without coins, how many canaries a round is assigned is public.
  most = int(assigned.sum(axis=1).max())
  if schedule not in ('as_clients', 'replace'):
    return most
  from scipy import stats

  tail = _TAIL / config.rounds
  if config.participation.kind in _RANDOM_SIZE:
    groups, q = find_probability(config, num_clients)
    in_group = k if schedule == 'replace' else -(-k // groups)
    return max(most, int(stats.binom.isf(tail, in_group, q)))
  # Whom a round has is a sample without replacement, whatever the other rounds have.
  population = count_population(config, num_clients)
  return max(most, int(stats.hypergeom.isf(tail, population, k, slots)))


def _list_rounds(cohorts: Sequence[np.ndarray]) -> list[list[int]]:
  """Lists the sets of rounds that clients had, each once."""
  rounds_of: dict[int, list[int]] = {}
  for t, cohort in enumerate(cohorts):
    for client in cohort.tolist():
      rounds_of.setdefault(client, []).append(t)
  return [list(p) for p in sorted(set(map(tuple, rounds_of.values())))]


def _find_schema(
  config: Config, num_clients: int, max_rounds: int, logged: Sequence[list[int]]
) -> ParticipationSchema:
  """Finds the rounds that a client may have."""
  p = config.participation
  if p.kind in ('shuffled', 'one_order'):
    epoch = count_population(config, num_clients) // config.clients_per_round
    shuffled = p.kind == 'shuffled'
    return ParticipationSchema(
      epoch, max_rounds, is_fixed=not shuffled, in_blocks=shuffled
    )
  if p.kind == 'cyclic':
    turns = -(-config.rounds // p.separation)
    return ParticipationSchema(p.separation, turns, is_fixed=True)
  separation = p.separation if p.kind == 'limited' else 1
  if logged:
    # Of rounds of one client; a client of one round has none.
    gaps = [np.diff(p).min(initial=config.rounds) for p in logged]
    separation = int(min(gaps))
  return ParticipationSchema(separation, max_rounds)


# BLT takes seconds, and a sweep plans the same many times.
@functools.lru_cache(maxsize=4)
def _make_correlation(
  name: str,
  rounds: int,
  restart: int | None,
  bands: int,
  buffers: int,
  schema: ParticipationSchema,
) -> Correlation | None:
  """Makes the matrix mechanism of a run; None if rounds have independent noise."""
  if name == 'independent':
    return None

  def make(num_rounds: int) -> Correlation:
    return correlated_noise.CORRELATIONS[name](
      num_rounds, bands=bands, buffers=buffers, schema=schema
    )

  if restart is None:
    return make(rounds)
  return correlated_noise.restart(make, rounds, restart)


def find_client_shifts(
  config: Config,
  data: federated.FederatedData,
  clients: client_schedules.ClientSchedule,
  of_rounds: Float[np.ndarray, ' T'],
) -> Shifts:
  """Finds what the rounds of a client leave in the final model.

  Args:
    clients: their schedule; only that of a log is read, as others may be secret.
    of_rounds: as `upper_bounds.expect_shifts` gives them.

  Returns:
    By the law of the participation: where clients are drawn for each round, of any;
    else of one who takes part most often, and of a log, of whom the model keeps most.
  """
  kind, rounds = config.participation.kind, config.rounds
  population = count_population(config, data.num_clients)

  def every(step: int, start: int = 0, *, probability: float = 1.0) -> Schedule:
    """Independent draws in every so many rounds."""
    return [([t], probability) for t in range(start, rounds, step)]

  epoch = population // config.clients_per_round
  if kind == 'shuffled':
    epochs = np.split(np.arange(rounds), range(epoch, rounds, epoch))
    schedules = [[(of_epoch, 1 / len(of_epoch)) for of_epoch in epochs]]
  elif kind == 'one_order':
    # The first rounds of the order come again in an epoch that is not whole.
    most = rounds % epoch or epoch
    schedules = [every(epoch, t) for t in range(most)]
  elif kind == 'fixed_size' or kind in _RANDOM_SIZE:
    groups, q = find_probability(config, data.num_clients)
    schedules = [every(groups, t, probability=q) for t in range(groups)]
  else:
    several = [clients]
    if kind == 'limited':
      # As others whom the same law may draw: these are no secret.
      seeds = range(-(-_TYPICAL // population))
      several = [
        _schedule_clients(config, data, seed, population) for seed in seeds
      ]
    taken = np.zeros((rounds, len(several), population), bool)
    for i, clients in enumerate(several):
      for t in range(rounds):
        taken[t, i, clients(t)] = True
    taken = taken.reshape(rounds, -1)
    chosen = np.arange(_TYPICAL)
    if kind == 'log':
      chosen = [np.argmax(of_rounds @ taken)]
    schedules = [
      [([t], 1.0) for t in np.flatnonzero(taken[:, client]).tolist()]
      for client in chosen
    ]
  return client_rounds.find_shifts(of_rounds, schedules)


def _schedule_clients(
  config: Config, data: federated.FederatedData, seed: int, num_clients: int
) -> client_schedules.ClientSchedule:
  """Makes the schedule of this many clients, canaries included."""
  p, m = config.participation, config.clients_per_round
  sizes = {'num_clients': num_clients, 'clients_per_round': m}
  means = {'num_clients': num_clients, 'expected_clients': m}
  match p.kind:
    case 'shuffled' | 'one_order':
      return client_schedules.shuffled_epochs(
        seed, **sizes, reshuffle=p.kind == 'shuffled'
      )
    case 'fixed_size':
      return client_schedules.fixed_size(seed, **sizes)
    case 'poisson':
      return client_schedules.poisson(seed, **means)
    case 'cyclic':
      if p.separation > config.rounds:
        raise ValueError(
          f"participation.separation={p.separation} with participation.kind='cyclic', "
          f'but rounds={config.rounds}, so that some groups never take part; give no '
          'more.'
        )
      return client_schedules.cyclic(seed, **means, period=p.separation)
    case 'limited':
      return client_schedules.limited(
        seed,
        rounds=config.rounds,
        **sizes,
        min_separation=p.separation,
        max_participations=p.max_rounds,
      )
  if p.log is None or num_clients != data.num_clients:
    raise ValueError(
      f"participation.kind='log' with participation.log={p.log!r} and "
      f'canaries.schedule={config.canaries.schedule!r}; give the log of a real '
      "system, in which no canary is: not with 'as_clients'."
    )
  schedule, num_logged = participation_log.replay_log(
    p.log,
    data.client_ids.tolist(),
    participation_log.LogForm(
      p.log_round, p.log_client, p.log_only, p.log_empty_rounds
    ),
  )
  if config.rounds > num_logged:
    raise ValueError(
      f'rounds={config.rounds}, but {p.log} has {num_logged}. Set no more.'
    )
  return schedule


def _assign_rounds(
  config: Config,
  data: federated.FederatedData,
  seed: int,
  rng: np.random.Generator,
) -> tuple[client_schedules.ClientSchedule, Bool[np.ndarray, 'T k']]:
  """Assigns clients and canaries to rounds.

  A canary whose column has no round is unobserved for sure.
  """
  c, rounds, n = config.canaries, config.rounds, data.num_clients
  num = c.observed + c.unobserved
  drawn_from = count_population(config, n) if num else n
  clients = _schedule_clients(config, data, seed, drawn_from)
  if num == 0:
    return clients, np.zeros((rounds, 0), bool)
  sizes = {'rounds': rounds, 'num': c.observed, 'num_clients': n}
  if c.schedule == 'as_clients':
    assigned, clients = client_schedules.as_clients(clients, **sizes)
  elif c.schedule == 'replace':
    assigned, clients = client_schedules.replacing(rng, clients, **sizes)
  elif c.schedule == 'worst_case':
    # Their rounds follow from those of clients.
    assigned = np.zeros((rounds, c.observed), bool)
  else:
    repetitions = _count_repetitions(config, clients, n)
    if repetitions > rounds:
      raise ValueError(
        f'canaries.repetitions={repetitions}, but there are {rounds} rounds, and a '
        f'canary takes part once in each of so many periods; give at most {rounds}, or '
        'more rounds.'
      )
    # They take no client's place, so a round holds any number of them.
    assigned = canary_schedules.once_per_period(
      rng,
      rounds=rounds,
      num=num if c.schedule == 'coin_flip' else c.observed,
      periods=repetitions,
    )
  return clients, np.pad(assigned, ((0, 0), (0, num - assigned.shape[1])))


def _count_repetitions(
  config: Config, clients: client_schedules.ClientSchedule, num_clients: int
) -> int:
  """Counts the rounds of a canary: as set, or those of the most frequent client."""
  repetitions, kind = config.canaries.repetitions, config.participation.kind
  if repetitions != 'as_clients':
    return repetitions
  if kind not in config_lib.KNOWN_IN_ADVANCE:
    raise ValueError(
      f"canaries.repetitions='as_clients', but with participation.kind={kind!r} "
      'the number of rounds of a client is drawn; give a number, or '
      "canaries.schedule='as_clients', which draws canaries as clients are drawn, or "
      "'worst_case', the most rounds that a client may have."
    )
  counts = client_schedules.count_participations(
    clients, rounds=config.rounds, num_clients=num_clients
  )
  return int(counts.max())


def _check_groups(canaries: Bool[np.ndarray, 'T k'], *, coins: bool) -> None:
  """Refuses groups that are too small for a spread of their scores.

  Observed canaries always need a spread. Unobserved ones need it if coins decide;
  without coins their null law may be known.
  """
  rounds, k = canaries.shape
  observed = int(canaries.any(axis=0).sum())
  if k and coins and min(observed, k - observed) < 2:
    raise ValueError(
      f'{observed} of {k} canaries take part by their coins, and the spread of '
      'scores takes two that do and two that do not. Give more of '
      'canaries.observed or canaries.unobserved.'
    )
  if k and observed < 2:
    raise ValueError(
      f'{observed} canaries take part in {rounds} rounds, and the spread of '
      'scores takes two. Give more of canaries.observed, or more rounds.'
    )
