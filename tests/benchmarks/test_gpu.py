"""The unattended benchmark of a GPU: it runs here, at toy sizes."""

import json
import os
import pathlib
import subprocess
import sys
import time

from gpu_parts import profiles, schedule
import pytest

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = ROOT / 'benchmarks' / 'gpu.py'


def run(folder, *flags, **environment):
  command = [sys.executable, str(PROGRAM), '--quick', f'--out={folder}']
  return subprocess.run(
    [*command, *flags],
    capture_output=True,
    text=True,
    check=True,
    env={**os.environ, **environment},
  ).stdout


def read(folder, part):
  return json.loads((folder / f'gpu_{part}.json').read_text())


def test_every_part_has_its_functions():
  for part in schedule.PARTS:
    for name in part.functions:
      module, function = name.split(':')
      source = ROOT / 'benchmarks' / 'gpu_parts' / f'{module}.py'
      assert f'def {function}(context: Context, results' in source.read_text()
    assert part.least <= part.limit


def test_every_gpu_target_is_of_a_part(load_benchmark):
  names = {f'gpu_{part.name}' for part in schedule.PARTS}
  for target in load_benchmark('targets').GPU_TARGETS:
    assert target.file in names


def test_a_part_that_has_no_figures_yet_is_not_measured(load_benchmark):
  page, targets = load_benchmark('page'), load_benchmark('targets')
  for figures in ({}, {'digits': {'not_measured': 'out of memory'}}):
    for target in targets.GPU_TARGETS:
      records = {target.file: figures}
      assert page.measured(target, records) is None


def test_kernels_that_overlap_are_busy_once():
  events = [('a', 0.0, 10.0), ('b', 5.0, 10.0), ('a', 30.0, 10.0)]
  found = profiles.summarize_events(events)
  assert found['idle_share'] == pytest.approx(15 / 40)
  assert found['longest_kernels'][0] == {
    'kernel': 'a',
    'calls': 2,
    'seconds': pytest.approx(20e-9),
    'share': pytest.approx(2 / 3),
  }


@pytest.mark.integration
def test_a_part_is_not_run_again_and_one_without_time_is_not_begun(tmp_path):
  out = run(tmp_path, '--parts=device', '--minutes=2')
  assert 'device: finished in' in out
  before = read(tmp_path, 'device')
  assert before['finished']
  out = run(tmp_path, '--parts=device,variants', '--minutes=0.1')
  assert 'device: finished before' in out
  assert 'variants: no time left' in out
  assert read(tmp_path, 'device') == before


@pytest.mark.integration
def test_a_part_that_hangs_is_stopped_and_keeps_what_it_measured(
  tmp_path, load_benchmark
):
  gpu = load_benchmark('gpu')
  process = subprocess.Popen(
    [sys.executable, '-c', 'import time; time.sleep(100)'],
    start_new_session=True,
  )
  begun = time.monotonic()
  gpu.stop(process)
  assert process.returncode is not None
  assert time.monotonic() - begun < 20
  part = schedule.PARTS[0]
  path = gpu.path_of(part, tmp_path)
  path.write_text('{"measured": 3, "finished": false}')
  gpu.note(path, 'stopped after 5 s')
  assert read(tmp_path, part.name) == {
    'measured': 3,
    'stopped': 'stopped after 5 s',
    'finished': False,
  }


# In a minute of a core each, or as another part does; see test-slow.
SLOW = (
  'audited_round',
  'canary_kernels',
  'memory',
  'precision',
  'stackoverflow',
  'variants',
)


@pytest.mark.integration
@pytest.mark.parametrize(
  'part',
  [
    pytest.param(part.name, marks=[pytest.mark.slow] * (part.name in SLOW))
    for part in schedule.PARTS
  ],
)
def test_every_part_runs_to_its_end_at_toy_size(tmp_path, part):
  run(tmp_path, f'--parts={part}', '--minutes=5')
  found = read(tmp_path, part)
  assert found['finished'], (tmp_path / f'{part}.log').read_text()[-3000:]
  assert 'not_measured' not in json.dumps(found)
  assert found['machine']['device'].endswith('cpu')
