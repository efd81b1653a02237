"""Ctrl-C and SIGTERM let a run finish its round, save, and say how to go on."""

import contextlib
from io import StringIO
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from epe_jax import io, progress
from epe_jax.data import cohort
from epe_jax.experiment import (
  audited_run,
  chunk_size,
  loop,
  metrics,
  programs,
  stopping,
  workdirs,
)
from epe_jax.experiment.sweeps import (
  sweep,
  sweep_points,
  sweep_process,
  sweep_status,
)
from epe_jax.parallel import hosts
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


@pytest.mark.integration
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
  said = capsys.readouterr().err
  assert 'Finishing the round, and scoring' in said
  assert 'stops at once; nothing is saved yet.' in said
  (done,) = (int(word) for word in str(error.value).split() if word in '2345')
  files = workdirs.workdir_at(stopped)
  assert (files.checkpoints / f'{done}.npz').is_file()
  assert not files.result.exists()
  audited_run.run(config, stopped)
  assert f'Continuing from round {done} of 11' in capsys.readouterr().err
  one, two = (
    io.read_arrays(tmp_path / name / 'private/scores.npz')
    for name in ('whole', 'stopped')
  )
  for name in one:
    np.testing.assert_array_equal(one[name], two[name], err_msg=name)


@pytest.mark.integration
@pytest.mark.usefixtures('small_task', 'unestimated')
@pytest.mark.parametrize(
  ('signum', 'code'), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_the_program_says_how_to_go_on_and_exits_as_shells_have_it(
  tmp_path, monkeypatch, signum, code
):
  monkeypatch.setattr(programs, 'keep_programs', lambda: None)
  signal_after(monkeypatch, 2, signum)
  ended = run_script(
    'train', '--config=configs/digits.py:smoke', f'--workdir={tmp_path}'
  )
  assert ended.returncode == code
  assert 'Traceback' not in ended.stderr
  assert f'is saved in {tmp_path}. To resume: ' in ended.stderr


@pytest.mark.integration
@pytest.mark.usefixtures('small_task', 'unestimated')
@pytest.mark.parametrize(
  ('module', 'name', 'said'),
  [
    (loop, 'fetch_metrics', 'ork on rounds 5 to 6|Round 5'),
    (cohort, 'gather', 'Reading what round 5 needs'),
  ],
)
def test_a_run_that_hangs_ends_with_what_it_waits_for(
  tmp_path, monkeypatch, module, name, said
):
  release, calls = threading.Event(), []
  function = getattr(module, name)

  def hang(*args, **kwargs):
    calls.append(0)
    if len(calls) == 5:
      release.wait(30)
    return function(*args, **kwargs)

  monkeypatch.setattr(module, name, hang)
  monkeypatch.setattr(progress, 'MAX_WAIT', 1.0)
  config = load_config('digits', **CONFIG, rounds_per_dispatch=1)
  try:
    with pytest.raises(stopping.Stopped, match=said) as error:
      audited_run.run(config, tmp_path)
    # The end of Python would wait for the thread, so the program has to leave.
    assert error.value.is_abrupt
    assert error.value.signum == signal.SIGALRM
    assert 'has not ended within' in str(error.value)
    assert f'saved in {tmp_path} are kept' in str(error.value)
  finally:
    release.set()


def test_nothing_that_takes_long_is_waited_for_when_asked_to_stop(capsys):
  ended = threading.Event()
  with stopping.listen() as requests:
    assert requests.wait_for(lambda: 3, 'no') == 3
    with pytest.raises(ZeroDivisionError):
      requests.wait_for(lambda: 1 // 0, 'no')
    threading.Timer(0.1, signal.raise_signal, [signal.SIGTERM]).start()
    with pytest.raises(stopping.Stopped, match='while it was compiled') as stop:
      requests.wait_for(ended.wait, 'Stopped while it was compiled.')
  # The end of Python would wait for the thread, so the program has to leave.
  assert stop.value.is_abrupt
  # Nothing is finished, and nothing says so.
  assert capsys.readouterr().err == ''
  ended.set()


class Discarded:
  """Python prints what is raised in its destructor, and goes on."""

  def __del__(self):
    signal.raise_signal(signal.SIGINT)


@pytest.mark.integration
@pytest.mark.usefixtures('small_task')
def test_a_signal_whose_exception_python_discards_stops_before_the_first_round(
  tmp_path, monkeypatch
):
  function, discarded = chunk_size.set_chunk_size, []

  def signal_and_call(*args, **kwargs):
    Discarded()
    return function(*args, **kwargs)

  monkeypatch.setattr(chunk_size, 'set_chunk_size', signal_and_call)
  monkeypatch.setattr(sys, 'unraisablehook', discarded.append)
  monkeypatch.setattr(os, '_exit', exit_at_once)
  with pytest.raises(SystemExit) as stop:
    stopping.exit_on_signal(audited_run.run)(
      load_config('digits', **CONFIG), tmp_path
    )
  assert stop.value.code == 130
  (lost,) = discarded
  assert isinstance(lost.exc_value, stopping.Stopped)


def exit_at_once(code):
  """In place of `os._exit`, which would end the tests."""
  raise SystemExit(code)


def test_sigterm_lets_a_program_end_what_it_started(capsys, monkeypatch):
  monkeypatch.setattr(os, '_exit', exit_at_once)
  before, ended = signal.getsignal(signal.SIGTERM), []

  @stopping.exit_on_signal
  def main() -> None:
    try:
      signal.raise_signal(signal.SIGTERM)
    finally:
      ended.append('a process')

  with pytest.raises(SystemExit) as stop:
    main()
  assert stop.value.code == 143
  assert ended == ['a process']
  assert 'Stopped. To resume: ' in capsys.readouterr().err
  assert signal.getsignal(signal.SIGTERM) == before


_COMPUTING = """
import os, signal, time
import jax
import jax.numpy as jnp
from epe_jax.experiment import stopping

@stopping.exit_on_signal
def main():
  loop = lambda x: jax.lax.fori_loop(0, 10**9, lambda i, y: jnp.sin(y @ y), x)
  started = jax.jit(loop)(jnp.ones((50, 50)))
  os.kill(os.getpid(), signal.SIGTERM)
  time.sleep(60)

main()
"""


@pytest.mark.integration
def test_a_program_that_is_stopped_does_not_wait_for_what_jax_computes():
  environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
  ended = subprocess.run(
    [sys.executable, '-c', _COMPUTING],
    env=environment,
    capture_output=True,
    text=True,
    timeout=45,
    check=False,
  )
  assert ended.returncode == 143
  assert 'Stopped. To resume: ' in ended.stderr


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
  is_module = typed[1] == '-m'
  program = ['epe_jax/__main__.py'] if is_module else [typed[1]]
  monkeypatch.setattr('sys.argv', [*program, *typed[2 + is_module :]])
  assert stopping.command_line() == shown


def test_a_point_of_a_sweep_that_is_stopped_names_the_command_of_the_sweep(
  tmp_path, monkeypatch, capsys
):
  def stop(config, workdir):
    raise stopping.Stopped(f'Stopped; round 3 is saved in {workdir}.')

  monkeypatch.setattr(audited_run, 'run', stop)
  monkeypatch.setattr(programs, 'keep_programs', lambda: None)
  monkeypatch.setattr(hosts, 'use_cores', lambda num_clients: None)
  monkeypatch.setattr(stopping, 'end_with_parent', lambda: None)
  config = load_config('digits', **CONFIG)
  monkeypatch.setattr('sys.stdin', StringIO(config.to_json()))
  workdir, command = f'{tmp_path}', 'epe-jax sweep digits --axis=seed=0,1'
  monkeypatch.setattr('sys.argv', ['sweep', 'run', workdir, command])
  with pytest.raises(SystemExit) as ended:
    sweep_process.main()
  assert ended.value.code == 143
  assert capsys.readouterr().err == (
    f'Stopped; round 3 is saved in {workdir}. '
    f'To resume, repeat the sweep, which was started by: {command}\n'
  )


def test_a_point_that_another_process_runs_is_waited_for(
  tmp_path, monkeypatch, capsys
):
  def run(config, workdir):
    runs.append(workdir)
    with workdirs.lock(workdirs.workdir_at(workdir)):
      pass

  def sleep(seconds):
    # The other process ends.
    stack.close()

  runs = []
  monkeypatch.setattr(audited_run, 'run', run)
  monkeypatch.setattr(sweep_process.time, 'sleep', sleep)
  monkeypatch.setattr(programs, 'keep_programs', lambda: None)
  monkeypatch.setattr(hosts, 'use_cores', lambda num_clients: None)
  monkeypatch.setattr(stopping, 'end_with_parent', lambda: None)
  config = load_config('digits', **CONFIG)
  monkeypatch.setattr('sys.stdin', StringIO(config.to_json()))
  monkeypatch.setattr('sys.argv', ['sweep', 'run', str(tmp_path), ''])
  with contextlib.ExitStack() as stack:
    stack.enter_context(workdirs.lock(workdirs.workdir_at(tmp_path)))
    sweep_process.main()
  assert len(runs) == 2
  assert 'Waiting: workdir=' in capsys.readouterr().err


def test_a_point_that_succeeded_is_not_said_to_have_failed(tmp_path):
  point = sweep_points.Point('a', {}, load_config('digits'))
  (tmp_path / 'a').mkdir()
  io.write_json(tmp_path / 'a' / 'config.json', point.config.to_dict())
  (tmp_path / 'a' / 'result.json').touch()
  failure = tmp_path / f'a{sweep_status.FAILED}'
  failure.write_text('in use by another process')
  outcome = sweep.run_sweep([point], tmp_path)
  assert list(outcome.finished) == ['a']
  assert not failure.exists()


_PARENT = """
import pathlib, sys
from epe_jax.experiment.sweeps import launch
from tests.helpers import load_config

sys.executable = sys.argv[1]
folder = pathlib.Path(sys.argv[2])
config = load_config('digits').to_dict()
work = launch.JobSpec(config, folder / 'a', folder / 'a.log', '')
launch.start_point(work, {}).wait()
"""
_CHILD = """#!{python}
import json, os, pathlib, sys, time
from epe_jax.experiment import stopping

config = json.loads(sys.stdin.readline())
stopping.end_with_parent()
draft = pathlib.Path(sys.argv[-2] + '.draft')
draft.write_text(json.dumps([os.getpid(), config['task']]))
draft.rename(sys.argv[-2])
time.sleep(60)
"""


@pytest.mark.integration
def test_a_point_ends_with_its_sweep_even_if_that_is_killed(tmp_path):
  child, told = tmp_path / 'child', tmp_path / 'a'
  child.write_text(_CHILD.format(python=sys.executable))
  child.chmod(0o700)
  environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
  command = [sys.executable, '-c', _PARENT, str(child), str(tmp_path)]
  with subprocess.Popen(command, cwd=ROOT, env=environment) as parent:
    while not told.exists() and parent.poll() is None:
      time.sleep(0.1)
    parent.kill()
  pid, task = json.loads(told.read_text())
  assert task == 'digits'
  for _ in range(200):
    # It is not a child of this process, and is not waited for.
    try:
      os.kill(pid, 0)
    except ProcessLookupError:
      return
    time.sleep(0.1)
  os.kill(pid, signal.SIGKILL)
  pytest.fail('the point runs on')


@pytest.mark.integration
def test_ctrl_c_while_compiling_ends_without_a_traceback(tmp_path):
  command = [
    sys.executable,
    'scripts/train.py',
    '--config=configs/digits.py',
    f'--workdir={tmp_path / "run"}',
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
    'Stopped while the round was compiled; nothing is saved yet. To resume: '
    in rest
  )
