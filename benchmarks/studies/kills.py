"""Commands that are killed at random instants, and repeated until they have ended."""

from collections.abc import Sequence
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import tempfile

import numpy as np

from studies import trials
from studies.trials import Trial

# Of those that end a process, twice the one that nothing can defer.
_SIGNALS = ('SIGKILL', 'SIGKILL', 'SIGTERM', 'SIGINT', 'SIGHUP', 'SIGQUIT')
# What a terminal sends to all processes in it.
_OF_TERMINAL = ('SIGINT', 'SIGHUP', 'SIGQUIT')
# Kills in a row, before the command may end.
_IN_A_ROW = 3


def kill_in_a_row(subject: str, seed: int) -> list[Trial]:
  """Kills a command at random instants, three times; then it may end.

  Args:
    subject: a key of `trials.SUBJECTS`.
    seed: of signals and instants.

  Returns:
    A trial for each kill, with one outcome. A command that ends before it is killed
    has none.
  """
  rng = np.random.default_rng([seed, sum(map(ord, subject))])
  longest = trials.make_undisturbed(subject).seconds
  killed: list[tuple[str, float, str]] = []
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    log = folder / 'log'
    for _ in range(_IN_A_ROW):
      signum, after = str(rng.choice(_SIGNALS)), float(rng.uniform(0, longest))
      process = trials.start(subject, folder, log)
      try:
        process.wait(after)
        break
      except subprocess.TimeoutExpired:
        pass
      killed.append((signum, after, trials.find_reason(log.read_text())))
      _send(process, signal.Signals[signum])
      if not _has_ended(process):
        break
    else:
      process = trials.start(subject, folder, log)
    outcome, reason = _judge_end([process], subject, folder, log)
  return [
    Trial(
      'kill',
      subject,
      f'{signum} after {after:.2f} s, seed {seed}: {line}',
      outcome,
      reason,
    )
    for signum, after, line in killed
  ]


def kill_processes(seed: int) -> list[Trial]:
  """Kills one of several processes of a run, three times; then it may end.

  Each time 2 or 4 processes go on, and in the end 1, 2 or 4. The others have to end by
  themselves. Sums of other numbers of processes are equal to rounding.

  Args:
    seed: of the numbers of processes, those that are killed, and instants.

  Returns:
    A trial for each kill, with one outcome.
  """
  rng = np.random.default_rng([seed, 4])
  longest = 2 * trials.make_undisturbed('run').seconds
  killed: list[str] = []
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    for _ in range(_IN_A_ROW):
      num, after = int(rng.choice([2, 4])), float(rng.uniform(0, longest))
      processes = _start_several(num, folder)
      victim = processes[rng.integers(num)]
      try:
        victim.wait(after)
        break
      except subprocess.TimeoutExpired:
        pass
      killed.append(f'one of {num} after {after:.2f} s, seed {seed}')
      victim.kill()
      if not all(map(_has_ended, processes)):
        break
    else:
      processes = _start_several(int(rng.choice([1, 2, 4])), folder)
    outcome, reason = _judge_end(processes, 'run', folder, folder / 'log0')
  return [
    Trial('kill', 'run of several processes', detail, outcome, reason)
    for detail in killed
  ]


def _start_several(
  num: int, folder: pathlib.Path
) -> list[subprocess.Popen[bytes]]:
  """Starts processes that share a run."""
  with socket.create_server(('localhost', 0)) as server:
    port = server.getsockname()[1]
  shared = (f'--coordinator=localhost:{port}', f'--num_processes={num}')
  return [
    trials.start(
      'run',
      folder,
      folder / f'log{i}',
      *((*shared, f'--process_id={i}') if num > 1 else ()),
    )
    for i in range(num)
  ]


def _judge_end(
  processes: Sequence[subprocess.Popen[bytes]],
  subject: str,
  folder: pathlib.Path,
  log: pathlib.Path,
) -> tuple[str, str]:
  """The outcome once the last processes have ended, and the reason of a bad one."""
  if all(map(_has_ended, processes)):
    text = log.read_text()
    code = max(abs(process.returncode) for process in processes)
    outcome = trials.judge(subject, folder, code, text)
  else:
    outcome, text = trials.LOST, 'It hangs.'
  for process in processes:
    _end(process)
  is_whole = outcome in (trials.SAME, trials.CLOSE)
  return outcome, '' if is_whole else trials.find_reason(text)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
  """Waits for a process; False if it hangs."""
  try:
    process.wait(trials.MAX_SECONDS)
  except subprocess.TimeoutExpired:
    return False
  return True


def _send(process: subprocess.Popen[bytes], signum: signal.Signals) -> None:
  if signum.name in _OF_TERMINAL:
    os.killpg(process.pid, signum)
  else:
    process.send_signal(signum)


def _end(process: subprocess.Popen[bytes]) -> None:
  """Ends all processes of the group."""
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, signal.SIGKILL)
  process.wait()
