"""Progress as a terminal, a pipe and a log have it."""

import errno
import io
import threading
import time

import pytest

from epe_jax import progress


class Terminal(io.StringIO):
  """A standard error that says that it is a terminal."""

  def isatty(self):
    return True


def test_a_log_has_lines_and_no_carriage_return(capsys, monkeypatch):
  monkeypatch.setattr(progress, '_PATIENCE', 0.0)
  with progress.bar(
    total=100, initial=40, desc='digits', unit=' rounds', mininterval=0, delay=0
  ) as bar:
    bar.set_postfix(accuracy='0.9', refresh=False)
    bar.update(10)
    bar.update(50)
  text = capsys.readouterr().err
  lines = text.splitlines()
  assert lines[1].startswith('digits:  50%|')
  assert '| 100/100 [00:00<' in lines[-1]
  assert lines[-1].endswith(', accuracy=0.9]')
  assert not {'\r', '\x1b'} & set(text)


def test_rounds_that_are_repeated_leave_a_time_to_wait(capsys):
  with progress.bar(total=100, initial=40, unit=' rounds') as bar:
    bar.start_t -= 10
    progress.set_done(bar, 4)
    progress.set_done(bar, 24)
    bar.refresh()
  assert '24/100 [00:10<00:38, ' in capsys.readouterr().err


def test_a_log_has_no_line_for_each_step(capsys):
  for _ in progress.bar(range(1000), desc='import', unit=' examples'):
    pass
  assert len(capsys.readouterr().err.splitlines()) <= 1


@pytest.mark.parametrize('columns', [40, 160])
def test_a_terminal_of_any_width_has_one_line_without_colors(
  monkeypatch, columns
):
  file = Terminal()
  monkeypatch.setattr('sys.stderr', file)
  monkeypatch.setattr(
    'tqdm.std._screen_shape_wrapper', lambda: lambda fp: (columns, 24)
  )
  with progress.bar(
    total=100, desc='digits', unit=' rounds', mininterval=0
  ) as bar:
    bar.update(50)
  states = file.getvalue().split('\r')
  assert len(states) > 1
  assert max(len(state.rstrip('\n')) for state in states) <= columns
  assert '\x1b[3' not in file.getvalue()


def test_progress_in_a_notebook_is_one_line_that_moves(monkeypatch):
  kernel = {'__module__': 'ipykernel.iostream'}
  file = type('OutStream', (io.StringIO,), kernel)()
  monkeypatch.setattr('sys.stderr', file)
  monkeypatch.setattr(progress, '_PATIENCE', 0.02)
  with progress.bar(total=100, desc='digits', mininterval=0) as bar:
    with progress.phase('compiling the round'):
      time.sleep(0.2)
    for _ in range(100):
      bar.update()
  text = file.getvalue()
  assert 'compiling the round: still running after 0 s' in text
  assert text.count('\r') > 100
  assert text.index('\n') == len(text) - 1
  assert '\x1b' not in text
  assert max(len(state.strip()) for state in text.split('\r')) <= 88


def test_a_phase_says_for_how_long_it_goes_on(capsys, monkeypatch):
  monkeypatch.setattr(progress, '_PATIENCE', 0.02)
  with progress.phase('compiling the round'):
    time.sleep(0.2)
  assert capsys.readouterr().err == (
    'compiling the round: still running after 0 s\n'
  )


@pytest.mark.parametrize('name', ['write', 'flush'])
def test_a_full_disk_below_the_log_holds_up_no_work(monkeypatch, name):
  """A thread that dies while it draws would keep the lock of all bars."""
  log = io.StringIO()

  def fail(*_):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(log, name, fail)
  monkeypatch.setattr('sys.stderr', log)
  monkeypatch.setattr(progress, '_PATIENCE', 0.0)

  def work():
    with progress.bar(total=2, desc='rounds') as shown:
      with progress.phase('compiling'):
        time.sleep(0.1)
      shown.update()

  thread = threading.Thread(target=work, daemon=True)
  thread.start()
  thread.join(10)
  assert not thread.is_alive()


def test_nothing_is_said_of_what_takes_no_time(capsys):
  with progress.phase('compiling the round'):
    pass
  with progress.phase('compiling the round', disable=True):
    pass
  assert capsys.readouterr().err == ''
