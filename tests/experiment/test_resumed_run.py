"""A run that was killed goes on to the same scores, bit for bit."""

import json
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from epe_jax import io
from epe_jax.experiment import audited_run, metrics
from tests.helpers import load_config

ROOT = pathlib.Path(__file__).parents[2]


def same_scores(a, b):
  one, two = (io.read_arrays(w / 'private/scores.npz') for w in (a, b))
  assert one.keys() == two.keys()
  for name in one:
    np.testing.assert_array_equal(one[name], two[name], err_msg=name)


def same_metrics(a, b):
  def lines(workdir):
    text = (workdir / 'private/metrics.jsonl').read_text().splitlines()
    timed = {'seconds': 0, 'waited': 0}
    return [{**json.loads(line), **timed} for line in text]

  assert lines(a) == lines(b)


_KILLED = """
import json, os, signal, sys
from epe_jax.experiment import audited_run, metrics
from epe_jax.tasks import digits
from tests import helpers

digits.task = lambda width: helpers.softmax_regression()
append = metrics.append_line

def append_and_die(path, record):
  append(path, record)
  if record['round'] == 8:
    os.kill(os.getpid(), signal.SIGKILL)

metrics.append_line = append_and_die
config = helpers.load_config('digits', **json.loads(sys.argv[2]))
audited_run.run(config, sys.argv[1])
"""

_CORRELATED = {
  'clipping.kind': 'fixed',
  'participation.kind': 'one_order',
  # What is kept from round to round has something in it when the run is killed.
  'noise.restart': 7,
}


@pytest.mark.integration
@pytest.mark.usefixtures('small_task', 'unestimated')
@pytest.mark.parametrize(
  'noise',
  [
    {},
    _CORRELATED | {'noise.correlation': 'tree'},
    _CORRELATED | {'noise.correlation': 'banded'},
    _CORRELATED | {'noise.correlation': 'blt', 'noise.buffers': 2},
    # A grid so coarse that coordinates go round the ring in rounds before and after.
    {
      'clipping.kind': 'fixed',
      'secure_aggregation.bits': 6,
      'secure_aggregation.granularity': 0.05,
    },
  ],
  ids=['independent', 'tree', 'banded', 'blt', 'ring'],
)
def test_a_killed_run_goes_on_to_the_same_scores_bit_for_bit(noise, tmp_path):
  changes = {'rounds': 12, 'checkpoint_every': 3, **noise}
  config = load_config('digits', **changes)
  whole, killed = tmp_path / 'whole', tmp_path / 'killed'
  audited_run.run(config, whole)
  command = [sys.executable, '-c', _KILLED, killed, json.dumps(changes)]
  done = subprocess.run(command, cwd=ROOT, check=False)
  assert done.returncode == -signal.SIGKILL
  assert any((killed / 'private/checkpoints').iterdir())
  assert len(metrics.read_lines(killed / 'private/metrics.jsonl')) == 9
  assert not (killed / 'result.json').exists()
  audited_run.run(config, killed)
  same_scores(whole, killed)
  same_metrics(whole, killed)
