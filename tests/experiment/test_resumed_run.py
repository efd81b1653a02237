"""A run that was killed goes on to the same scores, bit for bit."""

import json
import pathlib
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from epe_jax import io
from epe_jax.experiment import audited_run, metrics
from tests import helpers
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
_RING = {
  'clipping.kind': 'fixed',
  'secure_aggregation.bits': 6,
  # So coarse that coordinates wrap around the ring in rounds before and after.
  'secure_aggregation.granularity': 0.05,
}
_KINDS: dict[str, dict[str, Any]] = {
  'independent': {},
  'changes, scored one by one': {
    'audit.view': 'server_update',
    'audit.buffer': 1,
  },
  'no trace': {'audit.trace': False},
  'no canaries': {'canaries.observed': 0, 'canaries.unobserved': 0},
  'no unobserved canaries': {'canaries.unobserved': 0},
  'coins': {'canaries.schedule': 'coin_flip'},
  'claim': {'clipping.kind': 'fixed', 'audit.claim': 60.0},
  'Poisson': {'participation.kind': 'poisson'},
  'adam': {
    'server.optimizer': 'adam',
    'server.momentum': 0.0,
    'noise_multiplier': 0.5,
  },
  **{
    f'{kind}, {name}={size}, restart={restart}': _CORRELATED
    | {
      'noise.correlation': kind,
      f'noise.{name}': size,
      'noise.restart': restart,
    }
    for kind, name, size, restart in (
      ('banded', 'bands', 4, 7),
      ('bisr', 'bands', 4, None),
      ('blt', 'buffers', 2, 7),
    )
  },
  **{
    f'tree, restart={restart}': _CORRELATED
    | {'noise.correlation': 'tree', 'noise.restart': restart}
    for restart in (None, 7)
  },
  **{
    f'ring, {noise}, {rounding}': _RING
    | {
      'secure_aggregation.noise': noise,
      'secure_aggregation.rounding': rounding,
    }
    for noise, rounding in (
      ('skellam', 'stochastic'),
      ('discrete_gaussian', 'conditional'),
    )
  },
}


@pytest.mark.integration
@pytest.mark.usefixtures('small_task', 'unestimated')
def test_a_killed_run_goes_on_to_the_same_scores_bit_for_bit(tmp_path):
  changes: dict[str, Any] = {'rounds': 12, 'checkpoint_every': 3}
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


@pytest.mark.integration
@pytest.mark.usefixtures('small_task', 'unestimated', 'quick_compilation')
@pytest.mark.parametrize('kind', _KINDS)
def test_a_run_of_any_kind_that_ends_early_goes_on_to_the_same_scores(
  kind, tmp_path, monkeypatch
):
  """Its checkpoint is written and read, with all that the kind keeps of rounds."""
  config = helpers.quick_digits(
    rounds=12, evaluate_every=12, checkpoint_every=9, **_KINDS[kind]
  )
  whole, ended = tmp_path / 'whole', tmp_path / 'ended'
  audited_run.run(config, whole)
  append = metrics.append_line

  def append_and_end(path, record):
    append(path, record)
    if record['round'] == 10:
      raise InterruptedError

  monkeypatch.setattr(metrics, 'append_line', append_and_end)
  with pytest.raises(InterruptedError):
    audited_run.run(config, ended)
  monkeypatch.setattr(metrics, 'append_line', append)
  assert [x.name for x in (ended / 'private/checkpoints').iterdir()] == [
    '9.npz'
  ]
  audited_run.run(config, ended)
  same_metrics(whole, ended)
  one, two = (io.read_arrays(x / 'model.npz') for x in (whole, ended))
  for name in one:
    np.testing.assert_array_equal(one[name], two[name], err_msg=name)
  if (whole / 'private/scores.npz').exists():
    same_scores(whole, ended)
