"""Many devices and many processes: the same results, and who sends what."""

import os
import re
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

from epe_jax.audit.record_file import load_record
from epe_jax.data import cohort, federated
from epe_jax.experiment import audited_run
from epe_jax.parallel import hosts, sharding
from tests import processes
from tests.helpers import load_config

COUNTS = (1, 2, 4, 8)


@pytest.fixture(scope='module')
def found(tmp_path_factory):
  out = tmp_path_factory.mktemp('devices') / 'out.npz'
  subprocess.run(
    [sys.executable, '-m', 'tests.devices', str(out)],
    check=True,
    cwd=processes.ROOT,
  )
  return dict(np.load(out))


@pytest.mark.integration
@pytest.mark.parametrize(
  ('family', 'devices'),
  [('sphere', 2), ('sphere', 4), ('sphere', 8), ('hadamard', 8)],
)
def test_any_number_of_devices_gives_the_same_round(found, family, devices):
  names = [x.split('/')[2] for x in found if x.startswith(f'{family}/1/')]
  assert {'params', 'aggregate', 'final', 'loss', 'clip_norm'} < set(names)
  for name in names:
    if name == 'buffer_split':
      continue
    one = found[f'{family}/1/{name}']
    several = found[f'{family}/{devices}/{name}']
    np.testing.assert_allclose(several, one, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.integration
@pytest.mark.parametrize('devices', [2, 8])
def test_exact_noise_is_the_same_on_any_number_of_devices(found, devices):
  np.testing.assert_array_equal(found[f'noise/{devices}'], found['noise/1'])
  assert len(np.unique(found['noise/1'])) > 4000


@pytest.mark.integration
def test_vectors_that_are_kept_are_split_if_the_devices_divide_them(found):
  # Two views of four rounds.
  split = [bool(found[f'sphere/{n}/buffer_split']) for n in COUNTS]
  assert split == [False, True, True, False]


@pytest.mark.integration
def test_an_audit_of_a_split_vector_sends_a_few_thousand_numbers(found):
  program = str(found['sent/program'])
  kinds = set(re.findall(r'(all-[a-z-]+|collective-[a-z-]+)\(', program))
  assert kinds == {'all-reduce'}
  lines = re.findall(r'= (.*) all-reduce\(', program)
  sizes = [
    int(np.prod([int(n) for n in shape.split(',') if n]))
    for line in lines
    for shape in re.findall(r'f32\[([\d,]*)\]', line)
  ]
  assert sum(sizes) == 4096 + 1
  assert len(set(found['sent/parts'])) == 1
  assert len(found['sent/parts']) == 8


@pytest.mark.integration
def test_a_split_vector_is_audited_as_a_whole_one(found):
  after, expected = found['sent/after'], found['sent/after_expected']
  dim = len(expected)
  np.testing.assert_allclose(after[:dim], expected, atol=1e-6)
  np.testing.assert_array_equal(after[dim:], 0)
  np.testing.assert_allclose(
    found['sent/scores'], found['sent/scores_expected'], atol=1e-6
  )


def _dealt(sizes, *, devices, chunk):
  data = federated.from_clients(
    {f'{i:03}': {'x': np.zeros(n)} for i, n in enumerate(sizes)}
  )
  plan = cohort.Plan(
    batch_size=2, epochs=1, max_examples=None, chunk=chunk, slots=len(sizes)
  )
  gather = lambda parts: cohort.gather(
    data,
    np.arange(len(sizes)),
    plan,
    seed=0,
    round=0,
    parts=parts,
    of=devices,
  )
  return data, gather


@pytest.mark.parametrize('chunk', [1, 3])
def test_each_client_is_dealt_to_one_device_and_loads_are_even(chunk):
  rng = np.random.default_rng(0)
  sizes = rng.integers(1, 60, 29)
  data, gather = _dealt(sizes, devices=4, chunk=chunk)
  own = [gather((p,)).clients.ravel() for p in range(4)]
  real = [c[c >= 0] for c in own]
  np.testing.assert_array_equal(np.sort(np.concatenate(real)), np.arange(29))
  assert len({len(c) for c in own}) == 1
  loads = [data.sizes[c].sum() for c in real]
  # Back and forth, two devices differ by no more than the largest client.
  assert max(loads) - min(loads) <= sizes.max()


def test_a_process_gathers_the_clients_of_its_own_devices():
  _, gather = _dealt([5, 3, 9, 1, 1, 7], devices=4, chunk=1)
  parts = [gather((p,)) for p in range(4)]
  for together, alone in (((1, 2), parts[1:3]), (range(4), parts)):
    joined = jax.tree.map(lambda *x: np.concatenate(x), *alone)
    jax.tree.map(np.testing.assert_array_equal, gather(together), joined)


def test_one_device_has_no_mesh():
  assert sharding.mesh(jax.devices()[:1]) is None
  assert sharding.num_devices(None) == 1
  assert hosts.local_devices_of(None) == [0]


def test_what_is_restored_is_committed_to_devices_where_the_template_is():
  x = np.arange(3.0, dtype=np.float32)
  free, device = jax.numpy.zeros(3), jax.devices()[0]
  for template in (free, jax.device_put(free, device)):
    restored = hosts.shard_like(x, template)
    assert restored.committed == template.committed
    assert restored.sharding == template.sharding
    np.testing.assert_array_equal(restored, x)


@pytest.mark.parametrize(
  ('given', 'message'),
  [
    (('host:1', 2, None), 'give all three'),
    (('host:1', 2, 2), 'process_id=2 of num_processes=2'),
  ],
)
def test_half_a_description_of_processes_is_refused(given, message):
  with pytest.raises(ValueError, match=message):
    hosts.initialize_distributed(*given)


def _free_port():
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    return s.getsockname()[1]


def _processes(workdir, *, num, stop):
  """Runs scripts/train.py in several processes until a round is saved."""
  port = _free_port()
  settings = [f'--config.{k}={v}' for k, v in processes.SETTINGS.items()]
  started = [
    subprocess.Popen(
      [
        *(sys.executable, '-m', 'tests.processes', str(stop)),
        f'--config={processes.ROOT}/configs/digits.py:smoke',
        f'--workdir={workdir}',
        f'--coordinator=127.0.0.1:{port}',
        f'--num_processes={num}',
        f'--process_id={i}',
        *settings,
      ],
      cwd=processes.ROOT,
      env={
        **os.environ,
        'JAX_NUM_CPU_DEVICES': '1',
        # The compiler need not try hard: programs run for milliseconds.
        'XLA_FLAGS': '--xla_backend_optimization_level=0',
      },
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    for i in range(num)
  ]
  try:
    outputs = [p.communicate()[0] for p in started]
  finally:
    for p in started:
      p.kill()
  assert all(p.returncode == 0 for p in started), outputs
  return outputs


class _Stopped(Exception):
  pass


@pytest.mark.slow
def test_a_run_goes_on_with_any_number_of_processes(tmp_path, monkeypatch):
  def stopped():
    raise _Stopped

  config = load_config('digits', **processes.SETTINGS)
  alone, shared = tmp_path / 'alone', tmp_path / 'shared'
  for workdir in (alone, shared):
    # The same noise in both, which the first process has to tell the others.
    (workdir / 'private').mkdir(parents=True)
    (workdir / 'private/secret').write_bytes(bytes(range(32)))
  _processes(shared, num=2, stop=2)
  assert [p.name for p in (shared / 'private/checkpoints').iterdir()] == ['2']
  processes.patched(monkeypatch.setattr, 4, stopped)
  with pytest.raises(_Stopped):
    audited_run.run(config, shared)
  outputs = _processes(shared, num=4, stop=0)
  # The first one alone prints.
  assert 'Report: ' in outputs[0]
  assert not any('Report' in text for text in outputs[1:])

  monkeypatch.undo()
  processes.patched(monkeypatch.setattr, 0, stopped)
  audited_run.run(config, alone)
  for workdir in (alone, shared):
    lines = (workdir / 'private/metrics.jsonl').read_text().splitlines()
    assert len(lines) == 7
  names = lambda folder: sorted(p.name for p in folder.iterdir())
  assert names(shared) == names(alone)
  one, several = (
    load_record(w / 'private/scores.npz') for w in (alone, shared)
  )
  assert np.abs(one.trace).max() > 0.1
  assert several.cosines.keys() == one.cosines.keys()
  for mine, theirs in (
    (several.expected, one.expected),
    *((several.cosines[name], x) for name, x in one.cosines.items()),
  ):
    np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)


_SETTLED = ('XLA_FLAGS', 'JAX_NUM_CPU_DEVICES')
_CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
  ('variables', 'updates'),
  [
    ({}, [('jax_num_cpu_devices', min(3, _CORES))]),
    ({'JAX_NUM_CPU_DEVICES': '5'}, []),
    ({'XLA_FLAGS': '--xla_force_host_platform_device_count=4'}, []),
  ],
)
def test_cores_are_devices_unless_another_number_is_asked_for(
  variables, updates, monkeypatch
):
  for name in _SETTLED:
    monkeypatch.delenv(name, raising=False)
  for name, value in variables.items():
    monkeypatch.setenv(name, value)
  calls = []
  monkeypatch.setattr(jax.config, 'update', lambda *args: calls.append(args))
  hosts.use_cores(3)
  assert calls == updates


@pytest.mark.integration
@pytest.mark.parametrize(
  ('variables', 'devices'), [({}, min(3, _CORES)), ({_SETTLED[1]: '5'}, 5)]
)
def test_a_program_has_the_devices_that_it_asked_for(variables, devices):
  program = (
    'import jax; from epe_jax.parallel import hosts; hosts.use_cores(3); '
    'print(jax.device_count())'
  )
  without = {k: v for k, v in os.environ.items() if k not in _SETTLED}
  done = subprocess.run(
    [sys.executable, '-c', program],
    env={**without, **variables},
    cwd=processes.ROOT,
    capture_output=True,
    text=True,
    check=True,
  )
  assert int(done.stdout) == devices
