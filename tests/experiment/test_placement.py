"""Each run of several has devices of its own, and all devices are used."""

import os
import subprocess
import sys

import pytest

from epe_jax.experiment import placement
from epe_jax.experiment.placement import Devices


def see(slots, variable):
  return [slot.environment[variable] for slot in slots]


@pytest.mark.parametrize(
  ('kind', 'variable'),
  [
    ('cuda', 'CUDA_VISIBLE_DEVICES'),
    ('rocm', 'HIP_VISIBLE_DEVICES'),
    ('tpu', 'TPU_VISIBLE_CHIPS'),
  ],
)
@pytest.mark.parametrize(
  ('jobs', 'per_job', 'expected'),
  [
    (None, None, [*'01234567']),
    (2, None, ['0,1,2,3', '4,5,6,7']),
    (3, 2, ['0,1', '2,3', '4,5']),
    (None, 4, ['0,1,2,3', '4,5,6,7']),
    (1, None, ['0,1,2,3,4,5,6,7']),
  ],
)
def test_no_accelerator_is_seen_by_two_runs(
  kind, variable, jobs, per_job, expected
):
  devices = Devices(kind, [*'01234567'])
  slots = placement.make_slots(devices, jobs=jobs, devices_per_job=per_job)
  assert see(slots, variable) == expected


def test_accelerators_keep_the_names_that_a_scheduler_gave_them():
  slots = placement.make_slots(Devices('cuda', ['GPU-3f', 'GPU-9a']))
  assert see(slots, 'CUDA_VISIBLE_DEVICES') == ['GPU-3f', 'GPU-9a']


@pytest.mark.parametrize(
  ('jobs', 'share'), [(3, 0.375), (4, 0.375), (8, 0.188)]
)
def test_runs_that_share_a_device_share_its_memory(jobs, share, monkeypatch):
  monkeypatch.delenv('XLA_CLIENT_MEM_FRACTION', raising=False)
  monkeypatch.delenv('XLA_PYTHON_CLIENT_MEM_FRACTION', raising=False)
  slots = placement.make_slots(Devices('cuda', ['0', '1']), jobs=jobs)
  seen = see(slots, 'CUDA_VISIBLE_DEVICES')
  assert len(seen) == jobs
  assert abs(seen.count('0') - seen.count('1')) <= 1
  fractions = [*map(float, see(slots, 'XLA_CLIENT_MEM_FRACTION'))]
  assert fractions == [share] * jobs
  assert seen.count('0') * share < 0.8


@pytest.mark.parametrize(
  'name', ['XLA_CLIENT_MEM_FRACTION', 'XLA_PYTHON_CLIENT_MEM_FRACTION']
)
def test_a_share_of_memory_that_a_user_set_is_kept(name, monkeypatch):
  monkeypatch.setenv(name, '.1')
  slots = placement.make_slots(Devices('cuda', ['0']), jobs=2)
  assert all(
    slot.environment.keys() == {'CUDA_VISIBLE_DEVICES'} for slot in slots
  )


@pytest.mark.parametrize(
  ('jobs', 'per_job', 'expected'),
  [
    (None, None, [[]]),
    (1, None, [[4, 5, 6, 7]]),
    (2, None, [[4, 5], [6, 7]]),
    (None, 2, [[4, 5], [6, 7]]),
    (3, None, [[4], [5], [6]]),
    (5, None, [[]] * 5),
  ],
)
def test_no_core_has_two_runs_unless_cores_are_few(jobs, per_job, expected):
  devices = Devices('cpu', [*'4567'])
  slots = placement.make_slots(devices, jobs=jobs, devices_per_job=per_job)
  assert [[*slot.cores] for slot in slots] == expected
  assert not any(slot.environment for slot in slots)


@pytest.mark.parametrize(
  ('kind', 'jobs', 'per_job', 'message'),
  [
    ('cuda', 0, None, 'jobs=0'),
    ('cuda', None, 0, 'devices_per_job=0'),
    ('cuda', 3, 3, 'devices_per_job=3 for 3 jobs, but there are 8'),
    ('cpu', None, 9, 'there are 8 devices of kind cpu'),
    ('tpu', 9, None, 'one process alone'),
    ('tpu', 2, 3, r'devices_per_job=3 chips; give one of \[1, 2, 4, 8\]'),
  ],
)
def test_what_a_machine_does_not_have_is_refused(kind, jobs, per_job, message):
  with pytest.raises(ValueError, match=message):
    placement.make_slots(
      Devices(kind, [*'01234567']), jobs=jobs, devices_per_job=per_job
    )


def test_a_cpu_has_the_cores_that_this_process_may_use(monkeypatch):
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  kind, names = placement.find_devices()
  assert kind == 'cpu'
  assert {*map(int, names)} == os.sched_getaffinity(0)


def test_a_platform_that_is_not_there_is_named(monkeypatch):
  monkeypatch.setenv('JAX_PLATFORMS', 'nowhere')
  with pytest.raises(OSError, match=r'no device: .*nowhere'):
    placement.find_devices()


def test_a_process_has_the_cores_of_its_slot_and_this_one_keeps_its_own():
  before = os.sched_getaffinity(0)
  core = min(before)
  code = 'import os; print(*os.sched_getaffinity(0))'
  with placement.enter(placement.Slot({}, [core])):
    done = subprocess.run(
      [sys.executable, '-c', code], capture_output=True, text=True, check=True
    )
  assert done.stdout.split() == [str(core)]
  assert os.sched_getaffinity(0) == before
