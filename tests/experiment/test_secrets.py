"""What a run gives away: to its auditor, and to those who have what is public."""

import functools
import json
import os
import re
import secrets
import shutil

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np
import pytest

from epe_jax import io
from epe_jax.audit.record import respond_to_rounds
from epe_jax.data import cohort, federated, store
from epe_jax.experiment import (
  arithmetic,
  audited_run,
  inputs,
  loop,
  metrics,
  programs,
  run_result,
  workdirs,
)
from epe_jax.experiment.setup import build, participation, randomness, workloads
from epe_jax.experiment.setup import config as config_lib
from epe_jax.report import report
from epe_jax.training import aggregation, exact_noise, fedavg
from tests import naming_attack, processes, recorded_runs
from tests.helpers import load_config

pytestmark = pytest.mark.usefixtures('quick_compilation')

ROUNDS = 8
CANDIDATES = 16


def small_config(**changes):
  """A model of 650 parameters, whose clients take a step each."""
  step = {'client.epochs': 1, 'client.batch_size': 8, 'client.max_examples': 8}
  step['evaluate_every'] = 4
  return load_config(
    'digits',
    **(processes.SETTINGS | step | changes),
    rounds=ROUNDS,
    checkpoint_every=4,
  )


@pytest.fixture
def softmax(monkeypatch):
  """A model that compiles in no time is trained."""
  load, task = workloads.load_workload, processes.softmax_task()
  monkeypatch.setattr(
    workloads, 'load_workload', lambda c: load(c)._replace(task=task)
  )


@pytest.fixture
def put_in(monkeypatch, softmax):
  """('clients' or 'canaries', round) -> their sum over the divisor m.

  Fills up while a run trains.
  """
  sums, train, watch = {}, fedavg.dp_fedavg, build.all_iterates

  def keep(who, t, vector):
    # All that was put in comes behind what clients did.
    others = sums['clients', int(t)] if who == 'canaries' else 0
    sums[who, int(t)] = np.array(vector, np.float64) - others

  def trained(*arguments, **options):
    algorithm = train(*arguments, **options)

    def step(state, *rest):
      new, info = algorithm.step(state, *rest)
      keep_clients = functools.partial(keep, 'clients')
      jax.debug.callback(
        keep_clients, state.round, info.client_part, ordered=True
      )
      return new, info

    return algorithm._replace(step=step)

  def watched(*arguments, **options):
    observer = watch(*arguments, **options)

    def update(trace, seen):
      keep_all = functools.partial(keep, 'canaries')
      jax.debug.callback(keep_all, trace.round, seen.noiseless, ordered=True)
      return observer.update(trace, seen)

    return observer._replace(update=update)

  monkeypatch.setattr(fedavg, 'dp_fedavg', trained)
  monkeypatch.setattr(build, 'all_iterates', watched)
  # It has observers see what no client sent.
  monkeypatch.setattr(arithmetic, 'check_arithmetic', lambda *x: {})
  return sums


@pytest.fixture
def drawn(monkeypatch):
  """Secrets that were drawn: the operating system always says the same."""
  said, rng = [], np.random.default_rng(5)

  def token_bytes(size=None):
    found = rng.bytes(size)
    said.extend([found] * (size != 4))
    return found

  monkeypatch.setattr(secrets, 'token_bytes', token_bytes)
  return said


class Asked:
  """Which of some sums is that of the clients of a round?

  What canaries add to it is known.
  They differ from each other by a twentieth of the standard deviation of the
  noise, far less than one client makes: who has no more than what noise hides is
  right in one of CANDIDATES rounds, nearly. One digit of the sum tells them.
  """

  def __init__(self, sums, noise_std):
    rng = np.random.default_rng(0)
    self.right = rng.integers(CANDIDATES, size=ROUNDS)
    true, self.canaries = (
      np.stack([sums[who, t] for t in range(ROUNDS)])
      for who in ('clients', 'canaries')
    )
    moved = rng.standard_normal((ROUNDS, CANDIDATES, true.shape[1]))
    moved /= np.linalg.norm(moved, axis=-1, keepdims=True)
    moved *= 0.05 * np.asarray(noise_std)[:, None, None]
    moved[np.arange(ROUNDS), self.right] = 0
    self.true, self.sums = true, true[:, None] + moved

  def hits(self, distances):
    """Rounds in which the least of the distances [T, C] is that of the sum."""
    return int(np.sum(np.argmin(distances, axis=1) == self.right))


PUBLISHED = {
  *('schema', 'task', 'data', 'config', 'versions', 'rounds', 'dim', 'delta'),
  *('num_observed', 'num_unobserved', 'participations', 'audit'),
  *('noise_multiplier', 'noise', 'analytic_epsilon', 'analytic_assumes'),
  *('clients_analytic_epsilon', 'clients_analytic_assumes', 'amplification'),
  *('clients_participations', 'arithmetic', 'argv'),
  *('effective_dimension', 'accuracy', 'loss', 'baseline_accuracy', 'date'),
  # Of the aggregates of own rounds, as estimates are.
  *('claim', 'leaks_by_round'),
  # Of the law by which rounds are drawn, and what is published of them.
  'clients_shifts',
  # Of files that are published, of and of this one.
  *('model_sha256', 'record_sha256', 'sha256'),
}

# More hits have a chance of 5e-5 without knowing anything: Binomial(8, 1/16).
LUCK = 4


def files_of(folder, *, private):
  """All files, or those that the docs call publishable."""
  return [
    path
    for path in sorted(folder.rglob('*'))
    if path.is_file()
    and (private or 'private' not in path.relative_to(folder).parts)
  ]


def vectors(paths, dim):
  """Whatever may be read from files as vectors [n, d], and all differences."""
  leaves = []
  for path in paths:
    if path.suffix == '.npz':
      with np.load(path) as arrays:
        leaves += [x for x in arrays.values() if x.dtype.kind == 'f']
  found = []
  for leaf in leaves:
    x = np.ravel(leaf)
    if x.dtype.kind == 'f' and x.size and x.size % dim == 0:
      found.append(np.asarray(x, np.float64).reshape(-1, dim))
  if not found:
    return np.zeros((1, dim))
  rows = np.concatenate(found)
  pairs = (rows[:, None] - rows[None]).reshape(-1, dim)
  return np.concatenate([rows, pairs])


def by_vectors(asked, paths):
  """A file has the sum, or two vectors whose difference it is."""
  known = vectors(paths, asked.sums.shape[-1])
  distances = np.full(asked.sums.shape[:2], np.inf)
  for row in known:
    for others in (0, asked.canaries[:, None]):
      distance = np.linalg.norm(asked.sums + others - row, axis=-1)
      distances = np.minimum(distances, distance)
  return asked.hits(distances)


def by_numbers(asked, paths, divisor):
  """A text or a small array has the norm of the sum, to six digits."""
  numbers = [0.0]
  for path in paths:
    text = path.read_text(errors='replace')
    numbers += [float(x) for x in re.findall(r'-?\d+\.\d+(?:e-?\d+)?', text)]
    if path.suffix == '.npz':
      with np.load(path) as arrays:
        for name in arrays.files:
          if arrays[name].dtype.kind == 'f':
            numbers += np.ravel(arrays[name]).tolist()
  known = np.array([x for x in numbers if np.isfinite(x)])
  norms = np.linalg.norm(asked.sums, axis=-1)
  distances = [
    np.abs(known - scale * norms[..., None]).min(axis=-1) / (scale * norms)
    for scale in (1.0, divisor)
  ]
  return asked.hits(np.minimum(*distances))


def by_noise(asked, paths, noise_key, noise_std, config):
  """The model is a sum of aggregates, whose noise is known, less that.

  The sums of all other rounds are known too, and the initial model, of zeros.
  """
  (path,) = [path for path in paths if path.name == 'model.npz']
  with np.load(path) as arrays:
    params = {name: arrays[name] for name in arrays.files}
  change = np.asarray(ravel_pytree(params)[0], np.float64)
  change /= config.server.learning_rate
  weights = respond_to_rounds(ROUNDS, momentum=config.server.momentum)[-1]
  noise = []
  for t in range(ROUNDS):
    key, _ = jax.random.split(jax.random.fold_in(noise_key, t))
    drawn = exact_noise.draw_integers(
      key, asked.true.shape[1], always=jnp.ones((), bool)
    )
    noise.append(noise_std[t] * np.asarray(drawn) / exact_noise.STD)
  rest = change - weights @ (np.stack(noise) + asked.canaries + asked.true)
  left = rest + weights[:, None] * asked.true
  distances = np.linalg.norm(
    left[:, None] - weights[:, None, None] * asked.sums, axis=-1
  )
  return asked.hits(distances)


def log_of(folder):
  (path,) = folder.rglob('metrics.jsonl')
  lines = path.read_text().splitlines()
  return [json.loads(line) for line in lines][1:]


@pytest.mark.integration
def test_nothing_publishable_of_a_run_with_fresh_noise_tells_a_sum_of_updates(
  tmp_path, put_in, drawn, undrawn
):
  config = small_config(**{'audit.claim': 0.5})
  audited_run.run(config, tmp_path)
  report.write_report(tmp_path)
  jax.effects_barrier()
  log = log_of(tmp_path)
  noise_std = np.array([line['noise_std'] for line in log])
  divisor = np.median([x['clip_norm'] / x['canary_norm'] for x in log])
  asked = Asked(put_in, noise_std)
  public = files_of(tmp_path, private=False)
  assert by_vectors(asked, public) <= LUCK
  assert by_numbers(asked, public, divisor) <= LUCK
  seeded = randomness.derive_key(config.seed, 'noise')
  assert by_noise(asked, public, seeded, noise_std, config) <= LUCK
  names = {path.name for path in public}
  assert names == {
    'config.json',
    'result.json',
    'report.md',
    'report.html',
    'model.npz',
  }
  page = (processes.ROOT / 'docs' / 'secrets.md').read_text()
  rows = {who: '' for who in ('anybody', 'the auditor')}
  for line in page.splitlines():
    for who in rows:
      rows[who] += line * (f'| {who}' in line)
  assert all(f'`{name}`' in rows['anybody'] for name in names)
  kept = {p.name for p in files_of(tmp_path, private=True)} - names
  assert all(f'`private/{name}`' in rows['the auditor'] for name in kept)
  # Who adds to what is published has to think of what hides it.
  assert io.read_json(tmp_path / 'result.json').keys() == PUBLISHED
  # The auditor has the norms, and a thief of the secret would have the noise.
  private = files_of(tmp_path, private=True)
  assert by_numbers(asked, private, divisor) > LUCK
  (secret,) = drawn
  stolen = randomness.derive_randomness(secret).noise
  assert by_noise(asked, public, stolen, noise_std, config) == ROUNDS
  assert all(secret not in path.read_bytes() for path in private)


@pytest.mark.integration
@pytest.mark.parametrize('kind', ['exact', 'float32'])
def test_a_published_model_tells_no_sum_to_the_last_bit(
  tmp_path, put_in, drawn, unestimated, monkeypatch, kind
):
  """Of one round, whose candidates the attacker names; float32 noise tells it."""
  if kind == 'float32':
    monkeypatch.setattr(
      exact_noise, 'exact', lambda *a, **k: aggregation.float32
    )
  config = small_config(**{'server.momentum': 0.0})
  config.rounds = config.evaluate_every = config.checkpoint_every = 1
  audited_run.run(config, tmp_path)
  jax.effects_barrier()
  (line,) = log_of(tmp_path)
  with np.load(tmp_path / 'model.npz') as arrays:
    params = {name: arrays[name] for name in arrays.files}
  # The initial model is of zeros.
  change = np.asarray(ravel_pytree(params)[0], np.float64)
  seen = change / config.server.learning_rate - put_in['canaries', 0]
  rng = np.random.default_rng(0)
  moved = rng.standard_normal((CANDIDATES, len(seen)))
  moved *= 0.05 / np.linalg.norm(moved, axis=1, keepdims=True)
  moved[0] = 0
  sums = put_in['clients', 0] / line['noise_std'] + moved
  if kind == 'exact':
    sums = np.rint(sums * exact_noise.STD) / exact_noise.STD
  residual = seen / line['noise_std'] - sums
  right, *wrong = naming_attack.distance_to_normals(residual)
  assert min(wrong) > 0.18
  assert right < 0.1 if kind == 'float32' else 0.18 < right < 0.32
  if kind == 'exact':
    assert np.ptp(naming_attack.distance_to_steps(residual)) < 0.05


def test_whoever_has_two_vectors_has_their_difference(tmp_path):
  """What the attack above would find in a checkpoint with its buffers."""
  rng = np.random.default_rng(0)
  clients, canaries, noise = rng.standard_normal((3, ROUNDS, 650))
  sums = {('clients', t): x for t, x in enumerate(clients)}
  sums |= {('canaries', t): x for t, x in enumerate(canaries)}
  asked = Asked(sums, np.ones(ROUNDS))
  aggregate = clients + canaries + noise
  for others, hits in ((0, ROUNDS), (rng.standard_normal(650), 0)):
    kept = np.stack([aggregate, noise + others]).astype(np.float32)
    np.savez(tmp_path / 'a.npz', buffer=kept)
    assert by_vectors(asked, [tmp_path / 'a.npz']) in range(hits, hits + 4)


class Killed(Exception):
  pass


@pytest.fixture
def killed(monkeypatch):
  """A function (config, workdir, round): the run dies behind that line."""
  append = metrics.append_line

  def run(config, workdir, number):
    def dies(path, record):
      append(path, record)
      if record['round'] == number:
        raise Killed

    monkeypatch.setattr(metrics, 'append_line', dies)
    with pytest.raises(Killed):
      audited_run.run(config, workdir)
    monkeypatch.setattr(metrics, 'append_line', append)

  return run


@pytest.mark.integration
def test_a_run_that_goes_on_repeats_noise_and_cohorts_and_keeps_no_secret(
  tmp_path, softmax, unestimated, drawn, killed, monkeypatch
):
  config = small_config(
    **{
      'participation.kind': 'poisson',
      'canaries.family': 'hadamard',
      'clipping.kind': 'fixed',
    }
  )
  files = workdirs.workdir_at(tmp_path / 'run')
  gather, orders = cohort.gather, set()
  note = lambda *a, seed, **k: orders.add(seed) or gather(*a, seed=seed, **k)
  monkeypatch.setattr(cohort, 'gather', note)
  make, made = programs.make_programs, []
  monkeypatch.setattr(
    programs, 'make_programs', lambda *a: made.append(make(*a)) or made[-1]
  )
  killed(config, files.folder, 6)
  assert files.private.stat().st_mode & 0o777 == 0o700
  for path in files.private.rglob('*'):
    mode = 0o700 if path.is_dir() else 0o600
    assert path.stat().st_mode & 0o777 == mode, path
  (secret,) = drawn
  assert files.secret.read_bytes() == secret
  assert orders == {randomness.derive_randomness(secret).order}
  # There is a checkpoint, with room for no more than one vector in an array.
  (path,) = files.checkpoints.iterdir()
  assert max(x.size for x in io.read_arrays(path).values()) == 650
  # No result depends on the log: a line and a half of it are gone.
  log = log_of(files.folder)
  lines = files.metrics.read_text().splitlines()
  files.metrics.write_text('\n'.join([lines[0], lines[1][:40], *lines[3:]]))

  result = audited_run.run(config, files.folder)
  again = log_of(files.folder)
  assert [line['round'] for line in again] == [3, 4, 5, 6, 7, 8]
  assert again[-1]['test_accuracy'] == result.accuracy
  # Rounds 5 and 6 were made twice.
  for name in ('aggregate_norm', 'num_clients', 'num_canaries', 'loss'):
    assert [x[name] for x in again[2:4]] == [x[name] for x in log[4:6]]
  assert len({line['num_clients'] for line in again}) > 1
  # A restored state is of the shapes and the place of one that was trained.
  assert [x.advance._cache_size() for x in made] == [1, 1]
  assert not files.secret.exists()
  assert not files.checkpoints.exists()
  for path in files.folder.rglob('*'):
    assert path.is_dir() or secret not in path.read_bytes()


@pytest.mark.parametrize('size', [None, 0, 33])
def test_a_run_without_its_secret_is_not_gone_on_with(tmp_path, size):
  config, files = small_config(), workdirs.workdir_at(tmp_path)
  files.checkpoints.mkdir(parents=True)
  io.write_json(files.config, config.to_dict())
  if size is not None:
    files.secret.write_bytes(b'x' * size)
  message = 'is missing' if size is None else f'has {size} bytes and not 32'
  with pytest.raises(
    ValueError, match=f'private/secret {message}.* start again'
  ):
    audited_run.run(config, tmp_path)
  assert files.secret.exists() == (size is not None)


def flip_a_bit(files):
  secret = bytearray(files.secret.read_bytes())
  secret[17] ^= 8
  files.secret.write_bytes(secret)


def draw_another(files):
  files.secret.write_bytes(randomness.draw_secret())


def draw_other_bits(files):
  del files
  jax.config.update('jax_threefry_partitionable', False)


def use_other_keys(files):
  del files
  jax.config.update('jax_default_prng_impl', 'rbg')


@pytest.fixture
def settings_restored():
  names = 'jax_threefry_partitionable', 'jax_default_prng_impl'
  before = {name: jax.config.values[name] for name in names}
  yield
  for name, value in before.items():
    jax.config.update(name, value)


@pytest.mark.integration
@pytest.mark.usefixtures('softmax', 'unestimated', 'settings_restored')
@pytest.mark.parametrize(
  ('simulation', 'change', 'message'),
  [
    (False, flip_a_bit, '^private/secret changed since this run began'),
    (False, draw_another, '^private/secret changed since this run began'),
    (
      False,
      draw_other_bits,
      'jax_threefry_partitionable changed since this run began',
    ),
    (True, draw_other_bits, 'jax_threefry_partitionable changed'),
    (
      True,
      use_other_keys,
      'jax_default_prng_impl changed since this run began',
    ),
  ],
)
def test_a_run_does_not_go_on_with_what_gives_other_bits(
  tmp_path, killed, simulation, change, message
):
  config = small_config(simulation=simulation)
  files = workdirs.workdir_at(tmp_path)
  killed(config, files.folder, 5)
  change(files)
  with pytest.raises(ValueError, match=f'{message}.*Resume with what'):
    audited_run.run(config, files.folder)
  # Nothing was lost by asking.
  assert files.checkpoints.exists()
  assert files.secret.exists() != simulation


@pytest.mark.integration
@pytest.mark.usefixtures('softmax', 'unestimated')
@pytest.mark.parametrize('other', [{}, {'simulation': True}])
def test_a_checkpoint_of_another_run_is_not_gone_on_with(
  tmp_path, killed, other
):
  config = small_config()
  own, others = (
    workdirs.workdir_at(tmp_path / name) for name in ('own', 'others')
  )
  killed(config, own.folder, 5)
  killed(small_config(**other), others.folder, 5)
  shutil.rmtree(own.checkpoints)
  shutil.copytree(others.checkpoints, own.checkpoints)
  with pytest.raises(
    ValueError, match=r'4.npz is a checkpoint of another run.*Remove'
  ):
    audited_run.run(config, own.folder)
  assert (own.checkpoints / '4.npz').exists()


def test_what_is_kept_of_a_secret_tells_nothing_of_it():
  secret = bytes(range(32))
  made = randomness.fingerprint_secret(secret)
  assert made == randomness.fingerprint_secret(secret)
  for byte in range(32):
    changed = bytearray(secret)
    changed[byte] ^= 1
    assert randomness.fingerprint_secret(bytes(changed)) != made
  # A key is another function of it, from which neither follows.
  keys = randomness.derive_randomness(secret)
  words = np.asarray(jax.random.key_data(keys.noise)).tobytes().hex()
  assert words not in made
  assert secret.hex() not in made


@pytest.mark.integration
@pytest.mark.parametrize('kind', ['poisson', 'fixed_size', 'limited'])
@pytest.mark.parametrize('schedule', ['once_per_period', 'as_clients'])
def test_shapes_of_secret_cohorts_follow_from_public_numbers(
  monkeypatch, softmax, kind, schedule
):
  # One client is far larger than the others.
  rng, load = np.random.default_rng(0), workloads.load_workload
  pixels = rng.random((230, 8, 8), np.float32)
  train = federated.from_arrays(
    {'pixels': pixels, 'label': rng.integers(0, 10, 230)},
    np.array([f'c{max(0, i - 200):02}' for i in range(230)]),
  )
  monkeypatch.setattr(
    workloads, 'load_workload', lambda c: load(c)._replace(train=train)
  )
  changes = {
    'client.max_examples': None,
    'participation.kind': kind,
    'canaries.schedule': schedule,
  }

  def list_shapes(config, secret):
    setup = build.build(config, secret=secret)
    groups = list(loop.iterate_groups(config, setup, 0, None))
    shapes = {str(jax.tree.map(np.shape, cohorts)) for _, cohorts in groups}
    return shapes, [0 in setup.participants.clients(t) for t in range(ROUNDS)]

  secrets_ = [bytes([i] * 32) for i in range(6)]
  config = small_config(**changes)
  seen, has_large = zip(*(list_shapes(config, s) for s in secrets_))
  assert len({*map(tuple, has_large)}) > 1
  assert len(set().union(*seen)) == 1
  # A simulation has nothing to hide, and room for what its clients need.
  simulated = [
    small_config(**changes, simulation=True, seed=seed) for seed in range(6)
  ]
  seen, _ = zip(*(list_shapes(config, None) for config in simulated))
  assert len(set().union(*seen)) > 1


@pytest.mark.integration
def test_the_program_of_a_run_is_the_same_for_every_secret(softmax):
  config = small_config(
    **{'participation.kind': 'poisson', 'canaries.schedule': 'as_clients'}
  )

  def trace(secret):
    setup = build.build(config, secret=secret)
    _, cohorts = next(iter(loop.iterate_groups(config, setup, 0, None)))
    advance = functools.partial(programs.advance_run, setup.make_algorithm)
    text = str(jax.make_jaxpr(advance)(setup.draws, setup.state, cohorts))
    most = setup.participants.canaries.sum(axis=1).max()
    return re.sub(r'0x[0-9a-f]+', '', text), most

  one, other = (trace(bytes([i] * 32)) for i in (0, 1))
  assert one[1] != other[1]
  assert one[0] == other[0]


@pytest.mark.parametrize(
  ('kind', 'schedule'),
  [
    ('poisson', 'as_clients'),
    ('poisson', 'replace'),
    ('poisson', 'coin_flip'),
    ('shuffled', 'as_clients'),
    ('shuffled', 'worst_case'),
    ('limited', 'replace'),
    ('cyclic', 'as_clients'),
    ('log', 'replace'),
  ],
)
def test_room_for_canaries_is_public_and_hardly_ever_too_small(
  monkeypatch, tmp_path, kind, schedule
):
  log = tmp_path / 'log.csv'
  config = small_config(
    **{
      'participation.kind': kind,
      'participation.separation': 2 if kind == 'cyclic' else 1,
      'participation.log': str(log) if kind == 'log' else None,
      'canaries.schedule': schedule,
      'canaries.observed': 14,
      'canaries.unobserved': 14,
    }
  )
  train = workloads.load_workload(config).train
  ids = train.client_ids
  rows = [
    f'{t},{client_id}'
    for t in range(ROUNDS)
    for client_id in ids[t % 3 :: 4 if t % 2 else 2]
  ]
  log.write_text('\n'.join(['round,client_id', *rows]))
  # A bound that 2 % of runs may exceed is tight enough for a test to show so.
  monkeypatch.setattr(participation, '_TAIL', 0.02)

  def plan(seed, config=config):
    return participation.plan_participation(
      config, train, client_seed=seed, canary_seed=seed
    )

  found = [plan(seed) for seed in range(60)]
  room = min(x.max_canaries for x in found)
  # It grows where it would be too small; P(Poisson(1.2) > 6) < 2e-4.
  assert sum(x.max_canaries > room for x in found) <= 6
  assert sum(x.slots > min(x.slots for x in found) for x in found) <= 6
  needed = [x.canaries.sum(axis=1).max() for x in found]
  assert all(x.max_canaries >= n for x, n in zip(found, needed))
  assert room <= max(needed) + 2
  # A simulation has nothing to hide, and room for what its rounds have.
  simulated = config_lib.replace_fields(config, simulation=True)
  own = plan(0, simulated)
  assert own.max_canaries == own.canaries.sum(axis=1).max()


@pytest.mark.integration
@pytest.mark.usefixtures('softmax', 'unestimated')
def test_times_of_public_files_do_not_tell_how_long_a_run_took(
  tmp_path, monkeypatch
):
  append = metrics.append_line

  def append_after_years(path, line):
    append(path, line)
    for file in tmp_path.iterdir():
      os.utime(file, (0, 0))

  monkeypatch.setattr(metrics, 'append_line', append_after_years)
  audited_run.run(small_config(), tmp_path)
  times = {p.name: p.stat().st_mtime for p in tmp_path.iterdir()}
  assert times.keys() == {'config.json', 'model.npz', 'private', 'result.json'}
  assert min(times[name] for name in times if name != 'private') > 0


def test_what_a_finished_run_should_not_have_is_removed_when_it_is_found(
  tmp_path,
):
  config, files = small_config(), workdirs.workdir_at(tmp_path)
  files.checkpoints.mkdir(parents=True)
  files.secret.write_bytes(bytes(32))
  io.write_json(files.config, config.to_dict())
  result = recorded_runs.result()
  run_result.write_result(files.result, result)
  assert audited_run.run(config, tmp_path) == result
  assert not files.secret.exists()
  assert not files.checkpoints.exists()


def test_a_workdir_that_is_in_use_is_left_alone(tmp_path):
  config = small_config()
  message = 'in use by process'
  with (
    workdirs.lock(workdirs.workdir_at(tmp_path)),
    pytest.raises(ValueError, match=message),
  ):
    audited_run.run(config, tmp_path)
  assert [p.name for p in tmp_path.rglob('*')] == ['private']


@pytest.mark.integration
def test_a_run_goes_on_with_what_it_began_with_or_not_at_all(
  tmp_path, softmax, killed
):
  log = tmp_path / 'log.csv'
  lines = [f'{t},client{t + i:02}' for t in range(ROUNDS) for i in range(5)]
  log.write_text('\n'.join(['round,client_id', *lines]))
  config = small_config(
    **{
      'canaries.family': 'hadamard',
      'participation.kind': 'log',
      'participation.log': str(log),
    }
  )
  workdir = tmp_path / 'run'
  killed(config, workdir, 5)
  # The same content is the same input.
  (tmp_path / 'new').write_bytes(log.read_bytes())
  (tmp_path / 'new').replace(log)
  killed(config, workdir, 5)
  log.write_text(log.read_text().replace('\n3,client03', '\n3,client00'))
  message = r'^participation\.log changed since this run began'
  with pytest.raises(ValueError, match=message):
    audited_run.run(config, workdir)
  # Nor is anything known if the digests are gone.
  (workdir / 'private/inputs.json').unlink()
  with pytest.raises(FileNotFoundError, match=r'inputs\.json'):
    audited_run.run(config, workdir)


def test_data_have_a_digest_of_their_own_or_that_of_their_store(tmp_path):
  clients = {
    'a': {'x': np.arange(3), 'y': np.ones(3)},
    'b': {'x': np.arange(2), 'y': np.ones(2)},
  }
  data = federated.from_clients(clients)
  config = small_config()
  first = inputs.compute_digests(config, data, data, observers={})
  assert first.keys() == {'the training data', 'the test data'}
  for other in (
    clients | {'b': {'x': np.array([1, 0]), 'y': np.ones(2)}},
    {'a': clients['a'], 'c': clients['b']},
    {'a': clients['b'], 'b': clients['a']},
  ):
    changed = federated.from_clients(other)
    found = inputs.compute_digests(config, changed, data, observers={})
    assert found['the training data'] != first['the training data']
    assert found['the test data'] == first['the test data']

  def stored(name, clients):
    written = store.write(tmp_path / name, clients.items(), source='clients')
    return written.digest

  # Wherever it lies, and however often it is written.
  assert stored('one', clients) == stored('two', clients)
  swapped = {'a': clients['b'], 'b': clients['a']}
  assert stored('four', clients) != stored('three', swapped)


def test_files_that_a_config_names_and_does_not_use_are_not_read():
  data = federated.from_clients({'a': {'x': np.arange(3)}})
  config = small_config(**{'participation.log': '/dev/zero'})
  digests = inputs.compute_digests(config, data, data, observers={})
  assert digests.keys() == {'the training data', 'the test data'}
