"""Runs tests in forks of a process that has imported what all of them need.

  python -P benchmarks/studies/forks.py FOLDER PACKAGES

is a server: it imports the packages, separated by commas, but nothing of FOLDER, reads a
job per line from the standard input and answers each with a line of the standard output,
both JSON. A fork has the packages at once, and the sources that FOLDER has by then.
"""

import importlib
import json
import math
import os
import pathlib
import resource
import signal
import sys
import time
from typing import Any

# So that no faulty program takes the memory of others.
_MAX_BYTES = 8 * 2**30
# Plugins among the packages are imported before pytest can rewrite their asserts.
_OPTIONS = (
  *('-q', '--no-header', '-p', 'no:cacheprovider'),
  *('-W', 'ignore::pytest.PytestAssertRewriteWarning'),
)


class Listener:
  """A plugin of pytest: which tests run, in which order, and what became of them."""

  def __init__(self, tests: list[str] | None, coverage: Any = None):
    self.order = None if tests is None else {t: i for i, t in enumerate(tests)}
    self.coverage = coverage
    self.seconds: dict[str, float] = {}
    self.failed: list[str] = []
    self._begun = 0.0

  def pytest_collection_modifyitems(self, items: list[Any]) -> None:
    if (order := self.order) is not None:
      items[:] = [item for item in items if item.nodeid in order]
      items.sort(key=lambda item: order[item.nodeid])

  def pytest_runtest_logstart(self, nodeid: str) -> None:
    self._begun = time.process_time()
    if self.coverage is not None:
      self.coverage.switch_context(nodeid)

  def pytest_runtest_logfinish(self, nodeid: str) -> None:
    self.seconds[nodeid] = time.process_time() - self._begun
    # Imports of the next module are nobody's.
    if self.coverage is not None:
      self.coverage.switch_context('')

  def pytest_runtest_logreport(self, report: Any) -> None:
    if report.failed:
      self.failed.append(report.nodeid)

  def pytest_collectreport(self, report: Any) -> None:
    if report.failed:
      self.failed.append(report.nodeid)


def run_job(job: dict[str, Any]) -> None:
  """Runs tests in this process, and ends it with pytest's exit status.

  Args:
    job: `arguments` of pytest; `tests`, the ids to run in their order, or None for all;
      `out`, a file for seconds of the processor by test, and for the tests that failed;
      `log`; `sources` and `data`, the folders to measure the coverage of and the file
      for it, or None; `processor_limit`, seconds of the processor after which the
      process is killed, or None.
  """
  os.setsid()
  log = os.open(job['log'], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
  os.dup2(log, 1)
  os.dup2(log, 2)
  resource.setrlimit(resource.RLIMIT_DATA, (_MAX_BYTES, _MAX_BYTES))
  if job['processor_limit'] is not None:
    limit = math.ceil(job['processor_limit'])
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
  import pytest

  coverage = None
  if job['sources']:
    coverage = make_coverage(job['data'], job['sources'])
    coverage.start()
  listener = Listener(job['tests'], coverage)
  status = pytest.main(
    [*_OPTIONS, *job['arguments']],
    plugins=[listener],
  )
  if coverage is not None:
    coverage.stop()
    coverage.save()
  result = {'seconds': listener.seconds, 'failed': listener.failed}
  pathlib.Path(job['out']).write_text(json.dumps(result))
  sys.stdout.flush()
  os._exit(status)


def make_coverage(data: str, sources: list[str]) -> Any:
  """Line and branch coverage of some folders of the working directory."""
  from coverage import Coverage

  coverage = Coverage(data, branch=True, source=sources, config_file=False)
  coverage.set_option('run:relative_files', True)
  return coverage


def write_report(job: dict[str, Any]) -> None:
  """Writes the coverage of several runs, with the tests that execute each line.

  Args:
    job: `sources`; `parts`, the files of the runs; `data`, for all of them; `out`.
  """
  coverage = make_coverage(job['data'], job['sources'])
  coverage.combine(job['parts'], keep=True)
  coverage.set_option('json:show_contexts', True)
  coverage.json_report(outfile=job['out'])


def wait_for(child: int, limit: float) -> int | None:
  """The exit status of a process; None if it took too long and was killed."""
  end = time.monotonic() + limit
  while time.monotonic() < end:
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
      return os.waitstatus_to_exitcode(status)
    time.sleep(0.02)
  os.killpg(child, signal.SIGKILL)
  os.waitpid(child, 0)
  return None


def main(folder: str, packages: str) -> None:
  os.chdir(folder)
  sys.path[:0] = [folder]
  for name in filter(None, packages.split(',')):
    importlib.import_module(name)
  answers = os.fdopen(os.dup(1), 'w')
  os.dup2(2, 1)
  for line in sys.stdin:
    job = json.loads(line)
    begun = time.monotonic()
    if not (child := os.fork()):
      try:
        (write_report if 'parts' in job else run_job)(job)
      except BaseException as error:
        print(f'{error!r}', file=sys.stderr, flush=True)
        os._exit(70)
      os._exit(0)
    status = wait_for(child, job['limit'])
    answer = {'status': status, 'seconds': time.monotonic() - begun}
    print(json.dumps(answer), file=answers, flush=True)


if __name__ == '__main__':
  main(*sys.argv[1:])
