"""What a run records, made without training: by law, and by explicit vectors."""

import dataclasses
import functools

import numpy as np

from benchmarks.bounds import simulated_runs
from epe_jax.audit import evaluation, release, results, upper_bounds
from epe_jax.audit.record import make_record
from epe_jax.experiment import client_rounds, run_result
from epe_jax.fact import Fact
from epe_jax.training.round_scalars import RoundScalars


def scalars(rounds, **known):
  """Numbers of rounds: those that are known, alike in all or [T]; else 0."""
  zero = dict.fromkeys(RoundScalars._fields, 0.0)
  return RoundScalars(
    **{
      name: np.broadcast_to(np.asarray(x, np.float64), (rounds,))
      for name, x in (zero | known).items()
    }
  )


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
  num_assigned = k if design == 'coin_flip' else observed
  assigned = np.zeros((rounds, k), bool)
  for period in np.array_split(np.arange(rounds), repetitions):
    assigned[rng.choice(period, num_assigned), np.arange(num_assigned)] = True
  seen = np.arange(k) < observed
  if design == 'coin_flip':
    seen = rng.random(k) < 0.5
  participation = assigned & seen
  noise = rng.standard_normal((rounds, k)) / np.sqrt(dim)
  cosines = np.sqrt(dim) * noise + shift * participation
  final = rng.standard_normal((2, k)) + shift * seen
  trace = (cosines / np.sqrt(dim)).astype(np.float32)
  final, change = (final / np.sqrt(dim)).astype(np.float32)
  # Alone in a round of noise 1/shift, as one of two hundred that are expected.
  known = scalars(
    rounds,
    clip_norm=1,
    canary_norm=1 / 200,
    noise_std=1 / shift / 200,
    num_canaries=1,
    aggregate_norm=np.hypot(1, np.sqrt(dim) / shift) / 200,
    residual_norm=np.sqrt(dim) / shift / 200,
    effective_dimension=dim / 3,
  )
  return make_record(
    {'final': final, 'change': change, 'aggregate': trace, 'residual': noise},
    known,
    included=participation,
    assigned=assigned,
    momentum=0.0,
    design=design,
    dim=dim,
    delta=1e-5,
  )


@functools.cache
def audit_by_law(*, floors=True, **settings):
  """The audit of `by_law`, made once."""
  return evaluation.evaluate(by_law(**settings), floors=floors)


def replace_cosines(record, **changes):
  """The same record with other cosines; without those that are None."""
  cosines = {**record.cosines, **changes}
  return dataclasses.replace(
    record, cosines={n: x for n, x in cosines.items() if x is not None}
  )


def client_shifts(record, n):
  """What the model keeps of clients who take part once in each of n periods."""
  of_rounds = upper_bounds.expect_shifts(record)
  periods = np.array_split(np.arange(len(of_rounds)), n)
  return client_rounds.find_shifts(
    of_rounds, [[(p, 1 / len(p)) for p in periods]]
  )


def show_as(record, name):
  """The same record, as if its trace were of something else."""
  changes = {record.view: None, name: record.trace}
  return replace_cosines(record, **changes)


def metrics(rounds):
  """Lines of metrics.jsonl as training writes them, norms left out."""
  records = [{'round': 0, 'test_accuracy': 0.1, 'test_loss': 2.3}]
  for t in range(1, rounds + 1):
    train = {
      'loss': 2 / t,
      'clip_norm': 0.1,
      'num_clients': 40.0,
      'num_canaries': 3.0,
    }
    test = {'test_accuracy': 1 - 0.9 / t, 'test_loss': 2.3 / t}
    records.append({'round': t} | train | (test if t % 5 == 0 else {}))
  return records


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
  """Server SGD on aggregates of canaries, clients that all agree, and noise."""
  return simulated_runs.simulate(
    np.random.default_rng(0),
    observed=observed,
    unobserved=unobserved,
    rounds=rounds,
    dim=dim,
    noise=noise,
    clients=clients,
    momentum=momentum,
    coins=design == 'coin_flip',
  )


cosines = simulated_runs.compute_cosines


def fit_result(result, record):
  """The same result, with the sizes of a record."""
  return dataclasses.replace(
    result,
    rounds=record.num_rounds,
    dim=record.dim,
    delta=record.delta,
    noise_multiplier=record.noise_multiplier or result.noise_multiplier,
    num_observed=int(record.observed.sum()),
    num_unobserved=int((~record.observed).sum()),
    record_sha256=release.hash_record(record),
  )


def result(**changes):
  """What result.json says of a run of 1,000 + 1,000 canaries, with these changes."""
  fields = {
    'task': 'digits',
    'data': 'handwritten digits | real images',
    'config': {
      'rounds': 100,
      'server': {'learning_rate': 1.0, 'momentum': 0.9},
      'audit': {'delta': None, 'view': 'aggregate'},
      'noise': {'correlation': 'independent'},
      'secure_aggregation': {'bits': None},
    },
    'versions': {'epe_jax': '0.1.0', 'device': '1 x cpu'},
    'rounds': 100,
    'dim': 55210,
    'delta': 1e-5,
    'num_observed': 1000,
    'num_unobserved': 1000,
    'participations': 1,
    'noise_multiplier': 0.2,
    'noise': 'reproducible_simulation',
    'claim': None,
    'analytic_epsilon': 35.5,
    'analytic_assumes': (Fact('participations', {'rounds': 1}),),
    'clients_participations': 2,
    'clients_analytic_epsilon': 57.25,
    'clients_analytic_assumes': (Fact('participations', {'rounds': 2}),),
    'audit': results.Audit(()),
    'effective_dimension': None,
    'accuracy': 0.93,
    'baseline_accuracy': 0.1,
    'amplification': None,
    'clients_shifts': None,
    'date': '2026-11-24',
    'arithmetic': [],
    'model_sha256': '1' * 64,
    'record_sha256': '2' * 64,
    'waited_share': 0.01,
    'loss': 0.31,
    'seconds_per_round': 0.2,
    'seconds': 31.5,
  }
  return run_result.RunResult(**fields | changes)
