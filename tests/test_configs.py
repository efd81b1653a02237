"""Every config end to end: its own model, all of its test data, all cores.

Smaller runs would not show what goes wrong in this size alone. Only rounds and
canaries are fewer, and clients where the stand-in data have not as many.
"""

import os
import pathlib
import subprocess
import sys

import pytest

from epe_jax.experiment import metrics, run_result

pytestmark = pytest.mark.integration

ROOT = pathlib.Path(__file__).parents[1]
TOOL = ROOT.parent / 'shared' / 'tools' / 'make_tff_files.py'
# It takes half a minute on two cores. One that hangs is ended here.
SECONDS = 600
SMALL = {
  'rounds': 2,
  'canaries.observed': 6,
  'canaries.unobserved': 6,
}


@pytest.fixture(scope='module')
def files(tmp_path_factory):
  """A folder with data files of the format of TensorFlow Federated."""
  if not TOOL.exists():
    pytest.skip(
      f'{TOOL} makes the data files of these tests, and it is not there'
    )
  folder = tmp_path_factory.mktemp('tff')
  subprocess.run([sys.executable, TOOL, '--out', folder], check=True)
  return folder


def train(config, workdir, **changes):
  """scripts/train.py with the devices it takes by default; the result."""
  settled = ('XLA_FLAGS', 'JAX_NUM_CPU_DEVICES')
  with subprocess.Popen(
    [
      sys.executable,
      ROOT / 'scripts' / 'train.py',
      f'--config={ROOT}/configs/{config}',
      f'--workdir={workdir}',
      *(f'--config.{name}={x}' for name, x in (SMALL | changes).items()),
    ],
    env={k: v for k, v in os.environ.items() if k not in settled},
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  ) as process:
    try:
      output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
      process.kill()
      output, _ = process.communicate()
      pytest.fail(f'{config} did not end within {SECONDS} s: {output[-2000:]}')
  assert process.returncode == 0, output
  assert 'Report: ' in output
  result = run_result.load_result(workdir / 'result.json')
  cores = min(len(os.sched_getaffinity(0)), result.config['clients_per_round'])
  assert result.versions['device'] == f'{cores} x cpu'
  evaluated = [
    record['round']
    for record in metrics.read_lines(workdir / 'private' / 'metrics.jsonl')
    if 'test_accuracy' in record
  ]
  assert evaluated == [0, SMALL['rounds']]
  return result


def test_the_default_job_ends_with_a_report(tmp_path):
  result = train('digits.py', tmp_path / 'run')
  assert result.dim == 55_210
  assert_counted(result, 359)


@pytest.mark.parametrize(
  ('config', 'changes', 'dim', 'num_examples'),
  [
    ('emnist.py', {'data.only_digits': True}, 1_199_882, 10_000),
    pytest.param(
      *('emnist.py:5x34', {}, 1_206_590, 124), marks=pytest.mark.slow
    ),
  ],
)
def test_images_of_emnist_end_with_a_report(
  files, tmp_path, config, changes, dim, num_examples
):
  data = {
    'data.path': files / 'emnist_all.sqlite',
    'data.cache': tmp_path / 'cache',
  }
  result = train(config, tmp_path / 'run', **data, **changes)
  assert result.dim == dim
  assert_counted(result, num_examples)


def test_next_words_of_stackoverflow_end_with_a_report(files, tmp_path):
  result = train(
    'stackoverflow.py',
    tmp_path / 'run',
    **{
      'data.path': files / 'stackoverflow.sqlite',
      'data.word_count': files / 'stackoverflow.word_count',
      'data.cache': tmp_path / 'cache',
      'clients_per_round': 8,
    },
  )
  assert result.dim == 4_050_748
  assert 0 <= result.accuracy < 1


def assert_counted(result, num_examples):
  """An accuracy is a number of examples out of all of them."""
  hits = result.accuracy * num_examples
  assert hits == pytest.approx(round(hits), abs=1e-6)
  assert 0 < hits < num_examples
