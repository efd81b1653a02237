"""Measures how often the conformance suite is wrong, and what it detects.

  python -m benchmarks.conformance.rates --runs=1000 --out=docs/data

checks correct mechanisms with that many seeds each, each with a claim of its own, and
faulty ones of many degrees with a tenth as many, or 20. It writes every row, of which
`pages.py` shows a part. It takes some two hours on 2 cores; with --folder it goes on
where it was interrupted. Fails if a rule breaks too often.
"""

from collections.abc import Mapping, Sequence
import functools
import math
import os
import pathlib
import time
from typing import Any, NamedTuple

from absl import app, flags
import numpy as np
import pandas as pd
from scipy import stats
import tqdm

from benchmarks import study
from epe_jax import conformance
from epe_jax.conformance import laws, measurements
from tests.conformance import correct, seeded_bugs

_RUNS = flags.DEFINE_integer(
  'runs', 1000, 'Checks of each correct mechanism.', lower_bound=1
)
_SEED = flags.DEFINE_integer('seed', 0, 'Of all noise.', lower_bound=0)
_WORKERS = flags.DEFINE_integer(
  'workers', os.cpu_count() or 1, 'Processes.', lower_bound=1
)
_FOLDER = flags.DEFINE_string(
  'folder', None, 'Keeps finished batches, so that the study can be continued.'
)
_OUT = flags.DEFINE_string('out', None, 'Folder of data files.')

CLAIM = conformance.Claim(
  clip_norm=1.0,
  noise_multiplier=1.0,
  num_clients=10,
  shapes=((20, 30), (30,), (30, 10)),
)
# Shapes of tensors by the number of coordinates, and how often they are drawn.
_SHAPES = {
  1: (((),), 0.12),
  2: (((2,),), 0.12),
  3: (((2,), (1,)), 0.12),
  8: (((2, 3), (2,)), 0.15),
  60: (((5, 8), (20,)), 0.2),
  930: (CLAIM.shapes, 0.22),
  6000: (((60, 80), (200,), (1000,)), 0.06),
  60_000: (((200, 240), (240,), (96, 120), (240,)), 0.01),
}
_CLIP_NORMS, _NOISES, _CLIENTS = (1e-6, 1e5), (0.02, 30.0), (1, 300)
# They alone have a public clip norm, and are checked twice as often.
_PUBLISH = ('AdaptiveClip', 'AdaptiveMomentum', 'FixedClipNorm')
# Seconds of a check, so that rounds of many numbers do not take all of the time.
_BUDGET = 10.0
_BATCH = 20
# A rule is allowed 1e-4; so many more than that are no accident.
_ALLOWED = 1e-4


class Batch(NamedTuple):
  """Checks of one mechanism, which is correct or a degree of a fault, with these seeds.

  Of one rule, or of all if it is None.
  """

  mechanism: str
  rule: str | None
  seeds: tuple[int, ...]


class NoiseShort(correct.Plain):
  """Noise is too small by a fraction."""

  degree = 0.0

  def noise(self):
    return super().noise() * (1 - self.degree)


class BiasNoiseShort(correct.Plain):
  """The noise of a tensor of 30 coordinates is too small by a fraction."""

  degree = 0.0

  def noise(self):
    factors = np.array([1, 1 - self.degree, 1])
    return super().noise() * np.repeat(factors, self.claim.sizes)


class LooseClip(correct.Plain):
  """Updates far above S are clipped to a little more than S."""

  degree = 0.0

  def clip(self, vector):
    is_far = np.linalg.norm(vector) > 10 * self.bound
    return correct.clip(vector, self.bound * (1 + self.degree * is_far))


class SomeMomentum(correct.Plain):
  """Momentum before noise, with some coefficient."""

  degree, buffer = 0.0, 0.0

  def sum(self, vectors, weights):
    self.buffer = self.degree * self.buffer + super().sum(vectors, weights)
    return self.buffer


class NoiseAgain(correct.Plain):
  """Noise has some correlation with that of the round before."""

  degree, last = 0.0, None

  def noise(self):
    new = super().noise()
    if self.last is not None:
      new = self.degree * self.last + math.sqrt(1 - self.degree**2) * new
    self.last = new
    return new


class HeavierClients(correct.CappedWeights):
  """Weights count up to a ratio, and noise is for clients of weight 1."""

  degree = 1.0

  def mean(self, vectors, weights):
    kept = np.minimum(weights, self.degree)
    total = sum(w * v for w, v in zip(kept, vectors))
    return (total + self.noise()) / self.n


class FewerInDivisor(correct.Plain):
  """The divisor of the sum leaves out a share of the clients that dropped out."""

  degree = 0.0

  def mean(self, vectors, weights):
    divisor = self.n - self.degree * (self.n - len(vectors))
    return self.sum(vectors, weights) / divisor + self.noise() / self.n


class RepeatedCoordinates(correct.Plain):
  """A share of the coordinates has the noise of others."""

  degree = 0.0

  def noise(self):
    noise = super().noise()
    again = math.ceil(self.degree * noise.size)
    noise[-again:] = noise[:again]
    return noise


class FewSeeds(correct.Plain):
  """The seed of a round is one of some number."""

  degree = 100

  def noise(self):
    rng = np.random.default_rng(self.rng.integers(int(self.degree)))
    return rng.normal(0, self.std, self.claim.dim)


class CutNoise(correct.Plain):
  """Noise is cut off at some number of standard deviations."""

  degree = 3.0

  def noise(self):
    bound = self.degree * self.std
    return np.clip(super().noise(), -bound, bound)


class HeavyTails(correct.Plain):
  """Noise has Student's law with some degrees of freedom."""

  degree = 5

  def noise(self):
    law = stats.t(self.degree)
    return self.std / law.std() * law.rvs(self.claim.dim, random_state=self.rng)


class FaintBits(correct.AdaptiveClip):
  """The noise of the quantile is too small by some factor."""

  degree = 1.0

  def __init__(self, claim, seed=None):
    super().__init__(claim, seed)
    self.bit_std /= self.degree


class Degrees(NamedTuple):
  """A fault in some degrees, the rule that shall detect it, and how to say it."""

  mechanism: type[Any]
  rule: str
  unit: str
  values: tuple[float, ...]


_SHARES, _PARTS = (0.01, 0.02, 0.05, 0.1, 0.2), (0.05, 0.1, 0.15, 0.2, 0.5)
DEGREES = {
  fault[0].__name__: Degrees(*fault)
  for fault in (
    (NoiseShort, 'noise_scale', 'noise too small by {:.0%}', _SHARES),
    (BiasNoiseShort, 'tensor_noise', 'one small tensor, by {:.0%}', _SHARES),
    (LooseClip, 'clipping', 'norm above S by {:.0%}', _SHARES),
    (SomeMomentum, 'rounds', 'momentum {:g} before noise', _PARTS),
    (NoiseAgain, 'rounds', 'correlation {:g} with the last round', _PARTS),
    (HeavierClients, 'weights', 'weight ratio {:g}', (1.02, 1.05, 1.1, 1.5, 2, 10)),
    (FewerInDivisor, 'dropout', '{:.0%} of dropped clients not counted', _SHARES),
    (RepeatedCoordinates, 'noise_between_coordinates',
     '{:.1%} of coordinates repeat others', (0.005, 0.01, 0.02, 0.05)),
    (FewSeeds, 'noise_between_runs', '{:,.0f} seeds', (1e2, 1e3, 1e4, 1e5, 1e6)),
    (CutNoise, 'noise_law', 'cut off at {:g} std', (3, 3.3, 3.6, 4)),
    (HeavyTails, 'noise_law', "Student's t, {:g} degrees of freedom", (100, 30, 10, 5)),
    (FaintBits, 'clip_norm', 'quantile noise {:g} × too small', (2, 5, 10, 30, 100)),
  )
}  # fmt: skip


class Row(NamedTuple):
  """What became of a rule in a check, as a report has it."""

  seed: int
  rule: str
  status: str
  p_value: float | None
  claim: tuple[int, float, float, int]  # The number of coordinates, S, z and n.


def draw_claim(rng: np.random.Generator) -> conformance.Claim:
  """Draws a claim of any size."""
  shares = [share for _, share in _SHAPES.values()]
  dim = int(rng.choice([*_SHAPES], p=shares))
  draw = lambda low, high: math.exp(rng.uniform(math.log(low), math.log(high)))
  clients = _CLIENTS if dim < 6000 else (1, 30)
  return conformance.Claim(
    clip_norm=draw(*_CLIP_NORMS),
    noise_multiplier=draw(*_NOISES),
    num_clients=round(draw(*clients)),
    shapes=_SHAPES[dim][0],
  )


def run_batch(batch: Batch) -> list[Row]:
  """A row for each rule and each check of a batch."""
  name, _, degree = batch.mechanism.partition(' ')
  if degree:
    fault = DEGREES[name].mechanism
    cls: Any = type(name, (fault,), {'degree': float(degree)})
  else:
    cls = correct.CORRECT[name]
  rows = []
  for seed in batch.seeds:
    seeds = np.random.default_rng([seed, sum(map(ord, batch.mechanism))])
    make = lambda claim: cls(claim, int(seeds.integers(2**62)))  # noqa: B023
    if batch.rule is None:
      claim = draw_claim(seeds)
      report = conformance.check(make, claim, seed=seed, budget=_BUDGET)
      results = report.results
    else:
      claim = CLAIM
      m = measurements.Measurements(
        make, claim, budget=60.0, rng=np.random.default_rng(seed)
      )
      results = [conformance.RULES[batch.rule].check(m)]
    size = claim.dim, claim.clip_norm, claim.noise_multiplier, claim.num_clients
    rows += [Row(seed, r.rule, r.status, r.p_value, size) for r in results]
  return rows


def make_batches(runs: int, seed: int) -> list[Batch]:
  """Batches of all mechanisms."""
  batches = []

  def add(mechanism: str, rule: str | None, num: int) -> None:
    for start in range(0, num, _BATCH):
      seeds = range(seed + start, seed + min(start + _BATCH, num))
      batches.append(Batch(mechanism, rule, tuple(seeds)))

  for name in correct.CORRECT:
    add(name, None, 2 * runs if name in _PUBLISH else runs)
  for name, degrees in DEGREES.items():
    for value in degrees.values:
      add(f'{name} {value}', degrees.rule, max(20, math.ceil(runs / 10)))
  # Some seeds of all first: a study that is cut short is one of fewer runs.
  return sorted(batches, key=lambda batch: batch.seeds[0])


def tabulate_alarms(
  checks: Mapping[str, Sequence[Row]],
) -> tuple[pd.DataFrame, list[str]]:
  """False alarms by rule over all correct mechanisms, and rules with too many."""
  body, bad = [], []
  for rule in conformance.RULES:
    checked = [
      (name, row)
      for name in correct.CORRECT
      for row in checks[name]
      if row.rule == rule and row.status in ('passed', 'broken')
    ]
    if not checked:
      continue
    alarms = [pair for pair in checked if pair[1].status == 'broken']
    if alarms:
      print('False alarms:', *alarms)
    ps = np.array([x.p_value for _, x in checked if x.p_value is not None])
    small = f'{np.mean(ps < 0.01):.2%}' if ps.size else 'no chance in it'
    least = f'{ps.min():.1e}' if ps.size else ''
    body.append([rule, f'{len(checked):,}', str(len(alarms)), small, least])
    if study.fails_too_often(len(alarms), len(checked), _ALLOWED, 1e-3):
      bad.append(rule)
  print(
    f'{len(correct.CORRECT)} correct mechanisms, twice as many checks of '
    f'{", ".join(_PUBLISH)}. A rule breaks at p < {laws.ALPHA:g}; p < 0.01 should '
    'come in 1 % of checks at most.'
  )
  head = ['rule', 'checks', 'false alarms', 'p < 0.01', 'smallest p']
  return pd.DataFrame(body, columns=head), bad


def tabulate_power(checks: Mapping[str, Sequence[Row]]) -> pd.DataFrame:
  """Share of checks in which each degree of a fault is detected."""
  body = []
  for name, (_, rule, unit, values) in DEGREES.items():
    for value in values:
      results = [row.status == 'broken' for row in checks[f'{name} {value}']]
      body.append([rule, unit.format(value), f'{np.mean(results):.0%}'])
  return pd.DataFrame(body, columns=['rule', 'fault', 'detected'])


def tabulate_bugs() -> pd.DataFrame:
  """What the report names for each seeded bug."""
  body = []
  for bug, (rule, cause) in seeded_bugs.EXPECTED.items():
    report = conformance.check(bug, seeded_bugs.change_claim(bug, CLAIM))
    named = [(f.rule, f.cause) for f in report.findings]
    is_found = any(r == rule for r, _ in named)
    is_named = (rule, cause) in named
    others = ', '.join(f'`{r}`' for r, c in named if (r, c) != (rule, cause))
    text = ' '.join((bug.__doc__ or '').split())
    marks = ['yes' if x else '**no**' for x in (is_found, is_named)]
    body.append([text, f'`{rule}`', f'`{cause}`', *marks, others])
  head = ['bug', 'rule', 'cause', 'found', 'named', 'also broken']
  return pd.DataFrame(body, columns=head)


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  if _OUT.value:
    # Before hours of work, not after them.
    pathlib.Path(_OUT.value).mkdir(parents=True, exist_ok=True)
  start = time.monotonic()
  batches = make_batches(_RUNS.value, _SEED.value)
  # Every process has one thread: matrices are small. It keeps the memory that it
  # has, or half of its time is the system's.
  os.environ |= {
    'OPENBLAS_NUM_THREADS': '1',
    'OMP_NUM_THREADS': '1',
    'MALLOC_MMAP_THRESHOLD_': f'{2**30}',
    'MALLOC_TRIM_THRESHOLD_': f'{2**32}',
  }
  simulations = [
    study.Simulation(
      f'{b.mechanism} {b.rule or "all"} {b.seeds[0]}-{b.seeds[-1]}',
      Row,
      functools.partial(run_batch, b),
    )
    for b in batches
  ]
  done = study.run_simulations(
    simulations,
    workers=_WORKERS.value,
    folder=pathlib.Path(_FOLDER.value) if _FOLDER.value else None,
    progress=functools.partial(tqdm.tqdm, unit='batch', mininterval=30),
  )
  checks: dict[str, list[Row]] = {}
  for batch, some in zip(batches, done):
    checks.setdefault(batch.mechanism, []).extend(some)
  alarms, bad = tabulate_alarms(checks)
  made = {
    'conformance_alarms': alarms,
    'conformance_power': tabulate_power(checks),
    'conformance_bugs': tabulate_bugs(),
  }
  for table in made.values():
    print(table.to_string(index=False))
  if _OUT.value:
    study.write_data(pathlib.Path(_OUT.value), made, start)
  if bad:
    raise SystemExit(f'Too many false alarms: {", ".join(bad)}.')


if __name__ == '__main__':
  app.run(main)
