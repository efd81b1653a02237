"""Benchmarks on a GPU, in order: they run here, at toy sizes."""

import json
import pathlib
import subprocess
import sys
import time

import pytest

from benchmarks.speed import profiles

ROOT = pathlib.Path(__file__).parents[2]


def run(folder, *given):
  return subprocess.run(
    [
      *(sys.executable, ROOT / 'benchmarks' / 'gpu.py', '--quick'),
      *('--device=cpu', f'--out={folder}', *given),
    ],
    capture_output=True,
    text=True,
    check=True,
  ).stdout


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


def test_every_gpu_target_is_of_a_step(load_benchmark, tmp_path):
  gpu, pages = load_benchmark('gpu'), load_benchmark('pages')
  steps = gpu.list_steps(tmp_path, quick=True)
  names = [step.name for step in steps]
  assert len(names) == len({*names})
  asked = {x for x in pages.TARGETS.file if x.startswith('gpu_')}
  assert asked
  assert {x.removeprefix('gpu_') for x in asked} <= {*names}
  for step in steps:
    first = step.arguments[0]
    assert first == '-m' or pathlib.Path(first).is_file()


def test_a_step_that_hangs_is_stopped(load_benchmark):
  gpu = load_benchmark('gpu')
  process = subprocess.Popen(
    [sys.executable, '-c', 'import time; time.sleep(100)'],
    start_new_session=True,
  )
  begun = time.monotonic()
  gpu.stop(process)
  assert process.returncode is not None
  assert time.monotonic() - begun < 20


@pytest.mark.integration
def test_steps_end_with_a_record_and_are_not_repeated(tmp_path):
  names = 'device_agreement', 'emnist_rounds', 'words_float32'
  steps = f'--steps={",".join(names)}'
  run(tmp_path, steps, '--minutes=9')
  states = json.loads((tmp_path / 'states.json').read_text())
  logs = [(tmp_path / f'{name}.log').read_text()[-2000:] for name in names]
  assert {*states} == {*names}, states
  assert all(x.startswith('finished') for x in states.values()), logs
  same, rounds, words = (
    json.loads((tmp_path / f'gpu_{name}.json').read_text()) for name in names
  )
  assert same['same_canaries_in_rounds']
  assert same['cosines_moved_in_std']['largest'] < 1e-3
  for found in (rounds, words):
    assert found['round']['seconds'] > 0
    assert found['ratio']['audited_over_unaudited'] > 0
    assert found['profile']['kernels'] > 0
    assert found['machine']['device'].endswith('cpu')
  assert run(tmp_path, steps) == ''
  assert 'no time left' in run(tmp_path, '--steps=emnist', '--minutes=0.2')
