"""Ctrl-C and SIGTERM let a run finish its round, save, and say how to go on."""

from io import StringIO
import pathlib
import signal
import subprocess
import sys
import threading
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from epe_jax import canaries, io
from epe_jax.audit import observers, wrapper
from epe_jax.experiment import (
  audited_run,
  compiled_programs,
  metrics,
  stopping,
  sweep,
  workdirs,
)
from epe_jax.parallel import sharding
from tests.helpers import load_config
from tests.in_process import run_script

ROOT = pathlib.Path(__file__).parents[2]
CONFIG: dict[str, Any] = {
  'rounds': 11,
  'checkpoint_every': 6,
  'audit.buffer': 4,
}


def signal_after(monkeypatch, rounds, signum):
  """Sends this process a signal when the line of a round is written."""
  append, handlers = metrics.append_line, []

  def append_and_signal(path, record):
    append(path, record)
    if record['round'] == rounds and not handlers:
      signal.raise_signal(signum)
      handlers.append(signal.getsignal(signal.SIGINT))

  monkeypatch.setattr(metrics, 'append_line', append_and_signal)
  return handlers


@pytest.mark.usefixtures('small_task', 'unestimated')
def test_a_stopped_run_is_saved_and_goes_on_to_the_same_bits(
  tmp_path, monkeypatch, capsys
):
  config = load_config('digits', **CONFIG)
  audited_run.run(config, tmp_path / 'whole')
  before = signal.getsignal(signal.SIGINT)
  handlers = signal_after(monkeypatch, 2, signal.SIGINT)
  stopped = tmp_path / 'stopped'
  with pytest.raises(stopping.Stopped, match=r'after round \d of 11') as error:
    audited_run.run(config, stopped)
  assert error.value.signum == signal.SIGINT
  # The second signal ends the process, and nobody listens behind a run.
  assert handlers == [signal.SIG_DFL]
  assert signal.getsignal(signal.SIGINT) is before
  assert 'Finishing the round' in capsys.readouterr().err
  (done,) = (int(word) for word in str(error.value).split() if word in '2345')
  files = workdirs.workdir_at(stopped)
  assert (files.checkpoints / str(done)).is_dir()
  assert not files.result.exists()
  audited_run.run(config, stopped)
  assert f'Continuing from round {done} of 11' in capsys.readouterr().err
  one, two = (
    io.read_arrays(tmp_path / name / 'private/scores.npz')
    for name in ('whole', 'stopped')
  )
  for name in one:
    np.testing.assert_array_equal(one[name], two[name], err_msg=name)


@pytest.mark.usefixtures('small_task', 'unestimated')
@pytest.mark.parametrize(
  ('signum', 'code'), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_the_program_says_how_to_go_on_and_exits_as_shells_have_it(
  tmp_path, monkeypatch, signum, code
):
  monkeypatch.setattr(compiled_programs, 'keep_programs', lambda: None)
  signal_after(monkeypatch, 2, signum)
  ended = run_script(
    'train', '--config=configs/digits.py:smoke', f'--workdir={tmp_path}'
  )
  assert ended.returncode == code
  assert 'Traceback' not in ended.stderr
  assert f'is saved in {tmp_path}. To go on: ' in ended.stderr


def test_nothing_that_takes_long_is_waited_for_when_asked_to_stop(capsys):
  ended = threading.Event()
  with stopping.listen('Stopping.') as requests:
    requests.can_defer = True
    assert requests.wait_for(lambda: 3, 'no') == 3
    with pytest.raises(ZeroDivisionError):
      requests.wait_for(lambda: 1 // 0, 'no')
    threading.Timer(0.1, signal.raise_signal, [signal.SIGTERM]).start()
    wait = requests.start(ended.wait)
    with pytest.raises(stopping.Stopped, match='while it was compiled'):
      wait('Stopped while it was compiled.')
  # Nothing is finished, and nothing says so.
  assert capsys.readouterr().err == ''
  ended.set()
  # A program would not end by itself while this thread is alive.
  assert wait(None)


def test_a_signal_before_there_is_anything_to_finish_ends_at_once():
  with (
    pytest.raises(stopping.Stopped, match='before the first round'),
    stopping.listen('Stopping.'),
  ):
    signal.raise_signal(signal.SIGINT)


def test_sigterm_lets_a_program_end_what_it_started(capsys):
  before, ended = signal.getsignal(signal.SIGTERM), []

  @stopping.end_politely
  def main() -> None:
    try:
      signal.raise_signal(signal.SIGTERM)
    finally:
      ended.append('a process')

  with pytest.raises(SystemExit) as stop:
    main()
  assert stop.value.code == 143
  assert ended == ['a process']
  assert 'Stopped. To go on: ' in capsys.readouterr().err
  assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
  ('typed', 'shown'),
  [
    (['bin/python', '{program}', 'run', 'a b'], "epe-jax run 'a b'"),
    (['python', '-m', 'epe_jax', 'run'], 'python -m epe_jax run'),
    (['bin/python', 'other/epe-jax', 'run'], 'other/epe-jax run'),
  ],
)
def test_the_command_to_go_on_is_the_one_that_was_typed(
  tmp_path, monkeypatch, typed, shown
):
  monkeypatch.chdir(tmp_path)
  for folder in ('bin', 'other'):
    program = tmp_path / folder / 'epe-jax'
    program.parent.mkdir()
    program.touch(mode=0o700)
  monkeypatch.setenv('PATH', f'{tmp_path}/bin')
  typed = [x.format(program=f'{tmp_path}/bin/epe-jax') for x in typed]
  monkeypatch.setattr('sys.orig_argv', typed)
  script = typed[1] if typed[1] != '-m' else 'epe_jax/__main__.py'
  monkeypatch.setattr('sys.argv', [script])
  assert stopping.name_command() == shown


def test_a_point_of_a_sweep_that_is_stopped_names_the_command_of_the_sweep(
  tmp_path, monkeypatch, capsys
):
  def stop(config, workdir):
    raise stopping.Stopped(f'Stopped; round 3 is saved in {workdir}.')

  monkeypatch.setattr(audited_run, 'run', stop)
  monkeypatch.setattr(compiled_programs, 'keep_programs', lambda: None)
  monkeypatch.setattr(sharding, 'use_cores', lambda num_clients: None)
  config = load_config('digits', **CONFIG)
  monkeypatch.setattr('sys.stdin', StringIO(config.to_json()))
  workdir, command = f'{tmp_path}', 'epe-jax sweep digits --axis=seed=0,1'
  monkeypatch.setattr('sys.argv', ['sweep', workdir, command])
  with pytest.raises(SystemExit) as ended:
    sweep.main()
  assert ended.value.code == 143
  assert capsys.readouterr().err == (
    f'Stopped; round 3 is saved in {workdir}. '
    f'To go on, repeat the sweep, which was started by: {command}\n'
  )


@pytest.mark.parametrize('stop', [1, 2, 3, 5])
def test_vectors_keep_their_places_in_a_run_that_was_stopped(stop):
  """Six rounds by fours: a vector is scored in the place that it always has."""
  made = canaries.from_matrix(jnp.eye(16)[:3])

  observer = observers.all_iterates(made, rounds=6, buffer=4)
  vectors = np.random.default_rng(0).normal(size=(6, 16)).astype(np.float32)

  def step(trace, t):
    view = observers.RoundView(*[jnp.asarray(vectors[t])] * 4)
    return observer.update(trace, view)

  fresh = observer.init({'w': jnp.zeros(16)})
  whole = fresh
  for t in range(6):
    whole = step(whole, t)
  expected = observer.scores(whole, {})['aggregate']
  trace = fresh
  for t in range(stop):
    trace = step(trace, t)
  algorithm: Any = None
  saved = wrapper.AuditState(algorithm, {'rounds': observer.flush(trace)}, None)
  state = wrapper.restore_buffers(
    wrapper.drop_buffers(saved),
    wrapper.AuditState(algorithm, {'rounds': fresh}, None),
    since_flush=stop,
  )
  trace = state.observers['rounds']
  assert int(trace.pending) == stop % 4
  for t in range(stop, 6):
    trace = step(trace, t)
  np.testing.assert_array_equal(
    observer.scores(trace, {})['aggregate'], expected
  )


@pytest.mark.integration
def test_ctrl_c_while_compiling_ends_without_a_traceback(tmp_path):
  command = [
    sys.executable,
    'scripts/train.py',
    '--config=configs/digits.py',
    f'--workdir={tmp_path}',
  ]
  environment = {'PATH': '/bin', 'PYTHONPATH': str(ROOT)}
  environment |= {'XDG_CACHE_HOME': str(tmp_path / 'cache')}
  with subprocess.Popen(
    command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=environment
  ) as process:
    assert process.stderr is not None
    line = process.stderr.readline()
    while line and 'compiling the round' not in line:
      line = process.stderr.readline()
    assert line, 'it ended before it compiled'
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait() == 130
  assert 'Traceback' not in rest
  assert 'Finishing' not in rest
  assert (
    'Stopped while the round was compiled; nothing is saved yet. To go on: '
    in rest
  )
