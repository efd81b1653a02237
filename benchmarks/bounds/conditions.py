"""Runs that violate what simple statistics assume.

Each condition is simulated many times, by the law of the scores where it is known, and
the study counts how many statements of the audits are false.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import hashlib
import itertools
from typing import Any, NamedTuple

from jaxtyping import Float
import numpy as np
import pandas as pd
from scipy import linalg

from benchmarks import study
from benchmarks.bounds import simulated_runs
from epe_jax import accounting
from epe_jax.audit import attackers, upper_bounds
from epe_jax.audit.record import Record, make_record, respond_at_end
from epe_jax.epsilon import Gaussian, Scores, tradeoff
from epe_jax.epsilon.known_shifts import epsilon_mixture, location_mixture_bound
from epe_jax.experiment import client_rounds
from epe_jax.report import clients
from epe_jax.sampling import canary_schedules, client_schedules
from epe_jax.several_runs import over_runs, run_effects
from epe_jax.training.round_scalars import RoundScalars
from epe_jax.watch import sequential

DELTA = 1e-5


class Condition(NamedTuple):
  """A kind of run, and what is unusual in words.

  `simulate` maps an rng to the statements of one audit, and whether each is false.
  """

  title: str
  simulate: Callable[[np.random.Generator], Mapping[str, bool]]


class Row(NamedTuple):
  """How often a statement was false in audits that made it, and may be false."""

  title: str
  statement: str
  false: int
  audits: int
  stated: float


_BOUND, _SHAPED = 'headline bound', 'bound of shifted Gaussians'
_INTERVAL, _CLAIM = '90 % interval', 'rejection of a true claim'
# Of several runs with very different numbers of canaries.
_MEAN_BOUND = 'lower bound of the mean of runs'
_MEAN_INTERVAL = '90 % interval of the mean of runs'
_PREDICTION = '90 % prediction of a new run'
_REFUSAL, _COPY = (
  'refusal of independent runs',
  'copy that is accepted as a run',
)
# Against all clients of a run.
_CLIENTS = '90 % interval of a client whose updates agree'
_BEYOND = 'interval of a client above the largest of all clients'
_STATED = {
  **dict.fromkeys((_BOUND, _SHAPED, _CLAIM, _MEAN_BOUND, _BEYOND), 0.05),
  **dict.fromkeys((_INTERVAL, _MEAN_INTERVAL, _PREDICTION, _CLIENTS), 0.1),
  _REFUSAL: 1e-3,
  _COPY: 0.0,
}
_MEAN_SHIFT = 1.0
_METHODS = {
  'clopper_pearson_bonferroni': _BOUND,
  'rank_test': _BOUND,
  'location_mixture_bound': _SHAPED,
}


def list_conditions() -> list[Condition]:
  """All conditions."""
  made = []

  def add(
    title: str, simulate: Callable[..., Mapping[str, bool]], **settings: Any
  ) -> None:
    made.append(Condition(title, functools.partial(simulate, **settings)))

  for k, ratio in itertools.product((200, 1000), (0.95, 1.05, 1.12)):
    size = 'larger' if ratio > 1 else 'smaller'
    add(
      f'noise {100 * abs(ratio - 1):.0f} % {size} than claimed, {k:,} + {k:,} '
      'canaries, μ = 5, δ = 1e-3, d = 4,000, 20 rounds',
      _misclaim_noise,
      ratio=ratio,
      num=k,
    )
  for k in (1000, 5000):
    title = f'{k:,} canaries in one round, μ = 5, d = 1,000'
    add(title, _test_claim, num=k)
  for k, unobserved, rounds, noise, dim in (
    (100, 100, 10, 0.05, 4000),
    (100, 500, 1, 0.2, 500),
    (200, 200, 1, 0.2, 400),
  ):
    sizes = dict(unobserved=unobserved, rounds=rounds, noise=noise, dim=dim)
    add(
      f'{k:,} + {unobserved:,} canaries, {rounds} round{"s" * (rounds > 1)}, z = '
      f'{noise:g}, d = {dim:,}: canaries are much of a release',
      _crowd,
      observed=k,
      **sizes,
    )
  several = {
    'runs of 50 and 5,000': (50, 5000),
    'nine runs of 30 and one of 10,000': (30,) * 9 + (10_000,),
    'runs of 30, 300 and 3,000': (30, 300, 3000),
    'five runs of 100': (100,) * 5,
  }
  for name, tau in itertools.product(several, (0.0, 0.1, 1.0)):
    title = f'{name} canaries, τ = {tau:g}'
    add(title, _simulate_unequal_runs, sizes=several[name], tau=tau)
  # Clients that take part in other rounds than canaries.
  claims = {
    0.0: '5 % above the analytic ε of clients, not judged if canaries may leak more',
    1.0: 'for a client who takes part in one known round',
  }
  for q, share in itertools.product((0.02, 0.2), claims):
    add(
      f'300 clients drawn for each of 20 rounds with q = {q:g}, z = 1, 20 canaries in '
      f'a round that is known; claims {claims[share]}',
      _claim_of_sampled,
      probability=q,
      share=share,
    )
  for m, n, momentum, falls in (
    (1, 1, 0.9, True),
    (1, 2, 0.9, False),
    (1, 4, 0.0, True),
    (2, 4, 0.9, True),
  ):
    add(
      f'3,000 clients in {n} of 12 rounds, canaries in {m}, momentum {momentum:g}, '
      f'clip norms {"fall to a fifth" if falls else "stay"}',
      _expect_clients,
      of_canaries=m,
      of_clients=n,
      momentum=momentum,
      falls=falls,
    )
  # Rounds, canaries and runs that only seem to be independent.
  lags = np.arange(20)
  correlations = {
    f'autoregressive noise, ρ = {rho:g}': rho**lags
    for rho in (0.1, 0.3, 0.5, -0.3)
  }
  correlations['noise that correlates by 0.3 at lag 3'] = np.where(
    lags == 3, 0.3, lags == 0
  )
  for name, correlation in correlations.items():
    add(
      f'{name}, claimed to be independent: 200 + 200 canaries in all of 20 rounds, '
      'μ = 5, δ = 1e-3, d = 4,000',
      _correlate_rounds,
      correlation=correlation,
    )
  # Taken for independent given the past, they would reject 16 %.
  add(
    '3,000 canaries that share the first of 501 rounds and end in different ones, '
    'μ = 5, d = 1,000',
    _share_first_round,
  )
  for num in (20, 200):
    add(
      f'another run of {num} + {num} canaries, and a copy in single precision, in '
      'other units or rounded to a twentieth of their spread',
      _copy_run,
      num=num,
    )
  return made


def _judge(record: Record, claim: float) -> dict[str, bool]:
  """Whether a true claim is rejected; nothing if it is not tested."""
  test = sequential.judge_claim(record, claim)
  return {} if test is None else {_CLAIM: test.rejected_after is not None}


def _claim_of_sampled(
  rng: np.random.Generator, *, probability: float, share: float
) -> dict[str, bool]:
  """A true claim, which is tested unless canaries may leak more than is claimed.

  Args:
    rng: of the scores.
    probability: of a client in each round.
    share: between what is proven of clients, and canaries are allowed.

  Returns:
    Whether it is rejected.
  """
  proven = _prove_sampled(probability)
  of_canary = float(tradeoff.epsilon_gdp(1.0, DELTA))
  claim = max(1.05 * proven, share * of_canary)
  run = client_rounds.Participations(1, 12, proven, is_sampled=True)
  try:
    client_rounds.check_claim('claim', claim, of_canary, run)
  except ValueError:
    return {_CLAIM: False}
  record = _record_by_law(
    rng, observed=400, unobserved=8, rounds=20, dim=4000, mu=1.0
  )
  return _judge(record, claim)


@functools.cache
def _prove_sampled(probability: float) -> float:
  return accounting.epsilon_of_poisson(
    1.0, delta=DELTA, probability=probability, rounds=20
  ).epsilon


def _expect_clients(
  rng: np.random.Generator,
  *,
  of_canaries: int,
  of_clients: int,
  momentum: float,
  falls: bool,
) -> dict[str, bool]:
  """What is expected of clients of epochs, against each of 3,000 of them."""
  rounds, dim, num, delta = 12, 5_000, 3000, 1e-3
  run = simulated_runs.simulate(
    rng,
    observed=60,
    unobserved=200,
    rounds=rounds,
    dim=dim,
    noise=0.5,
    clients=0.0,
    momentum=momentum,
    repetitions=of_canaries,
    clip_norms=np.geomspace(1.0, 0.2, rounds) if falls else None,
    delta=delta,
  )
  record = run.record
  found = attackers.CHANGE.score(record)
  analytic = upper_bounds.expect_final_model(record, delta)
  of_rounds = upper_bounds.expect_shifts(record)
  assert found is not None, 'the model is seen'
  assert analytic is not None, 'the noise is known'
  assert of_rounds is not None, 'the server is linear'
  if not found.is_calibrated:
    return {}
  interval = found.points[0](found.scores, delta=delta).interval
  assert interval is not None, 'it is of one audit'
  epochs = np.array_split(np.arange(rounds), of_clients)
  expected = client_rounds.find_shifts(
    of_rounds, [[(epoch, 1 / len(epoch)) for epoch in epochs]]
  )
  (_, low), (_, high) = (
    clients.compute_epsilons(
      clients.scale_shifts(end, analytic, delta, expected), delta, np.inf
    )
    for end in interval
  )
  # To this attacker a canary of one round scores √d w / |change|.
  assert record.rounds is not None, 'it is whole'
  change = np.linalg.norm(run.models[-1] - run.models[0])
  kept = respond_at_end(rounds, momentum=momentum)
  seen = np.sqrt(dim) * kept * record.rounds.canary_norm / change
  schedule = client_schedules.shuffled_epochs(
    int(rng.integers(2**31)),
    num_clients=num,
    clients_per_round=num * of_clients // rounds,
  )
  shifts = np.zeros(num)
  for t in range(rounds):
    shifts[schedule(t)] += seen[t]
  each, counts = np.unique(shifts.round(9), return_counts=True)
  truth = float(epsilon_mixture(each, delta, counts / num))
  largest = float(tradeoff.epsilon_gdp(shifts.max(), delta))
  return {_CLIENTS: not low <= truth <= high, _BEYOND: low > largest}


def run_study(
  conditions: Sequence[Condition], *, audits: int, seed: int, **settings: Any
) -> list[Row]:
  """Simulates audits of each condition and counts false statements.

  Args:
    conditions: what to simulate.
    audits: number of audits of each condition, >= 1.
    seed: of all simulations.
    **settings: of `study.run_simulations`.
  """
  simulations = []
  for condition in conditions:
    key = hashlib.sha256(condition.title.encode()).hexdigest()[:16]
    measure = functools.partial(
      _measure, condition, audits, [seed, int(key, 16)]
    )
    name = f'condition_{key}_{audits}_{seed}'
    simulations.append(study.Simulation(name, Row, measure))
  rows = study.run_simulations(simulations, **settings)
  return [row for of_condition in rows for row in of_condition]


def find_broken(row: Row) -> bool:
  """Whether a statement is false more often than stated, beyond chance."""
  return study.fails_too_often(row.false, row.audits, row.stated)


def make_table(rows: Sequence[Row]) -> pd.DataFrame:
  """A line for each condition and statement."""
  return pd.DataFrame(
    {
      'condition': row.title,
      'statement': row.statement,
      'audits': f'{row.audits:,}',
      'may be false': f'{100 * row.stated:g} %',
      'was false': f'{100 * row.false / row.audits:.1f} %'
      f'{" **broken**" if find_broken(row) else ""}',
    }
    for row in rows
  )


def _measure(
  condition: Condition, audits: int, seed: Sequence[int]
) -> list[Row]:
  rng = np.random.default_rng(seed)
  made: dict[str, list[bool]] = {}
  for _ in range(audits):
    for statement, is_false in condition.simulate(rng).items():
      made.setdefault(statement, []).append(bool(is_false))
  return [
    Row(condition.title, statement, sum(false), len(false), _STATED[statement])
    for statement, false in made.items()
  ]


def _misclaim_noise(
  rng: np.random.Generator, *, ratio: float, num: int
) -> dict[str, bool]:
  # At a smaller δ the headline is so low that wrong noise cannot make it too high.
  mu, delta = 5.0, 1e-3
  record = _record_by_law(
    rng, observed=num, unobserved=num, rounds=20, dim=4000, mu=mu, ratio=ratio
  )
  found = attackers.RESIDUAL.score(record)
  assert found is not None, 'there is a residual'
  truth = float(tradeoff.epsilon_gdp(mu, delta))
  first = found.bounds[0](found.scores, delta=delta)
  results = {_METHODS[first.method]: float(first.epsilon) > truth}
  # The other bound assumes a shape, and is made if no test rejects that.
  for bound in found.bounds:
    if bound is location_mixture_bound:
      epsilon = float(bound(found.scores, delta=delta).epsilon)
      results[_SHAPED] = epsilon > truth
  return results


def _test_claim(rng: np.random.Generator, *, num: int) -> dict[str, bool]:
  record = _record_by_law(
    rng, observed=num, unobserved=8, rounds=1, dim=1000, mu=5.0
  )
  return _judge(record, float(tradeoff.epsilon_gdp(5.0, DELTA)))


def _crowd(
  rng: np.random.Generator, *, dim: int, **sizes: Any
) -> dict[str, bool]:
  record = simulated_runs.simulate(rng, dim=dim, delta=DELTA, **sizes).record
  found = attackers.OWN.score(record)
  assert found is not None, 'rounds are seen'
  assert not found.scores.has_known_null, (
    'canaries leave no room for a known law'
  )
  if not found.is_calibrated:
    return {}
  assert record.expected is not None, 'norms are known'
  assigned = record.assigned[:, record.observed]
  shift = np.sqrt(dim) * (record.expected @ assigned)
  truth = float(epsilon_mixture(shift, DELTA))
  interval = found.points[0](found.scores, delta=DELTA).interval
  assert interval is not None, 'it is of one audit'
  return {_INTERVAL: not interval[0] <= truth <= interval[1]}


def _simulate_unequal_runs(
  rng: np.random.Generator, *, sizes: Sequence[int], tau: float
) -> Mapping[str, bool]:
  """One set of runs, of Gaussian shifts N(1, τ²) and a known null law.

  Args:
    rng: of the scores.
    sizes: numbers of observed canaries of each run.
    tau: standard deviation of the shift between runs.

  Returns:
    Whether each statement is false.
  """
  *shifts, new = rng.normal(_MEAN_SHIFT, tau, len(sizes) + 1)
  runs = [
    Scores(rng.normal(mu, 1, num), np.empty(0), Gaussian())
    for mu, num in zip(shifts, sizes)
  ]
  mu, variance = over_runs.estimate_shifts(runs)
  effects = over_runs.random_effects(mu, variance)
  bound = over_runs.mean_shift_bound(effects, delta=DELTA)
  low, high = effects.interval
  least, most = effects.prediction
  truth = float(tradeoff.epsilon_gdp(_MEAN_SHIFT, DELTA))
  return {
    _MEAN_BOUND: bool(bound.epsilon > truth),
    _MEAN_INTERVAL: not low <= _MEAN_SHIFT <= high,
    _PREDICTION: not least <= new <= most,
  }


def _record_by_law(
  rng: np.random.Generator,
  *,
  observed: int,
  unobserved: int,
  rounds: int,
  dim: int,
  mu: float,
  ratio: float = 1.0,
) -> Record:
  """The residual of releases, by the law of its cosines with random directions.

  Given the residual, these are independent. The noise is `ratio` times as large as
  claimed, and 1/μ of a canary.
  """
  shape = rounds, observed + unobserved
  normal = rng.standard_normal(shape)
  rest = np.sqrt(rng.chisquare(dim - 1, shape))
  included = canary_schedules.once_per_period(rng, rounds=rounds, num=observed)
  included = np.pad(included, ((0, 0), (0, unobserved)))
  norms = np.sqrt(rng.chisquare(dim, rounds)) / mu
  cosines = normal / np.hypot(normal, rest)
  return _make_residuals(cosines, norms, included, dim, 1 / mu / ratio)


def record_correlated(
  rng: np.random.Generator,
  covariance: Float[np.ndarray, 'T T'],
  *,
  num: int,
  dim: int,
  mu: float,
) -> tuple[Record, float]:
  """Residuals of noise that is claimed to be independent over rounds and is not.

  Args:
    rng: of the noise.
    covariance: of the noise of all rounds, with a diagonal of ones.
    num: canaries in all rounds, and canaries in none.
    dim: d.
    mu: of the canaries if noise were independent.

  Returns:
    The record, and its true ε at δ = 1e-3.
  """
  rounds = len(covariance)
  normal = np.linalg.cholesky(covariance) @ rng.standard_normal(
    (rounds, 2 * num)
  )
  included = np.broadcast_to(np.arange(2 * num) < num, normal.shape)
  norms = np.sqrt(rng.chisquare(dim, rounds))
  std = np.sqrt(rounds) / mu
  record = _make_residuals(
    normal / norms[:, None], std * norms, included, dim, std
  )
  alone = np.ones(rounds) / std
  shift = np.sqrt(alone @ np.linalg.solve(covariance, alone))
  return record, float(tradeoff.epsilon_gdp(shift, 1e-3))


def _correlate_rounds(
  rng: np.random.Generator, *, correlation: Float[np.ndarray, ' T']
) -> dict[str, bool]:
  record, truth = record_correlated(
    rng, linalg.toeplitz(correlation), num=200, dim=4000, mu=5.0
  )
  found = attackers.RESIDUAL.score(record)
  assert found is not None, 'there is a residual'
  first = found.bounds[0](found.scores, delta=1e-3)
  return {_BOUND: float(first.epsilon) > truth}


def record_sharing_round(
  rng: np.random.Generator, *, num: int, rounds: int, dim: int, mu: float
) -> Record:
  """Residuals of canaries that are all in the first round, and each in another.

  Args:
    rng: of the noise.
    num: canaries that took part; eight did not.
    rounds: T >= 2.
    dim: d.
    mu: of each canary.
  """
  which = 1 + np.arange(num) % (rounds - 1)
  included = np.zeros((rounds, num + 8), bool)
  included[0, :num] = included[which, np.arange(num)] = True
  normal = rng.standard_normal(included.shape)
  rest = np.sqrt(rng.chisquare(dim - 1, included.shape))
  std = np.sqrt(2) / mu
  norms = std * np.sqrt(rng.chisquare(dim, rounds))
  cosines = normal / np.hypot(normal, rest)
  return _make_residuals(cosines, norms, included, dim, std)


def _share_first_round(rng: np.random.Generator) -> dict[str, bool]:
  record = record_sharing_round(rng, num=3000, rounds=501, dim=1000, mu=5)
  return _judge(record, float(tradeoff.epsilon_gdp(5, DELTA)))


def _make_residuals(cosines, norms, included, dim: int, std: float) -> Record:
  """A record of residuals of these norms, of canaries of norm 1 and noise of a std."""
  known = dict.fromkeys(RoundScalars._fields, np.ones(len(norms)))
  known |= {
    'noise_std': np.full(len(norms), std),
    'num_canaries': included.sum(axis=1).astype(np.float64),
    'residual_norm': norms,
  }
  return make_record(
    {'residual': cosines},
    RoundScalars(**known),
    included=included,
    dim=dim,
    delta=DELTA,
    noise_multiplier=std,
  )


def _copy_run(rng: np.random.Generator, *, num: int) -> dict[str, bool]:
  one, other = (
    Scores(rng.normal(1, 1, num), rng.normal(0, 1, num)) for _ in range(2)
  )
  changes = (np.float32, lambda x: 7 + 1e-3 * x, lambda x: (20 * x).round())
  copies = [
    Scores(
      np.asarray(change(one.observed), np.float64),
      np.asarray(change(one.unobserved), np.float64),
    )
    for change in changes
  ]
  return {
    _REFUSAL: run_effects.are_copies(one, other),
    _COPY: not all(run_effects.are_copies(one, copy) for copy in copies),
  }
