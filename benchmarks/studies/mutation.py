"""Mutants of a package: cosmic-ray makes them, and the tests that execute them run."""

import ast
from collections.abc import Iterable, Mapping, Sequence
import difflib
import functools
import hashlib
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from typing import Any, NamedTuple

from studies import forks

# An operator is replaced by one that the same operands have: a TypeError is no test's
# merit. What is left of a mutation within these groups is a law that may go unnoticed.
_GROUPS = (
  {'Add', 'Sub', 'Mul', 'Div', 'FloorDiv', 'Mod', 'Pow'},
  {'RShift', 'LShift', 'BitOr', 'BitAnd', 'BitXor'},
  {'Eq', 'NotEq', 'Lt', 'LtE', 'Gt', 'GtE'},
  {'Is', 'IsNot'},
)
# Decorators that change the time of a call and not its value.
_SPEED = re.compile(r'cache|\bjit\b')
# Seconds of the processor that a fork may take before its tests begin, and how often
# those that tests are planned to take: the load of the machine does not matter. One that
# only waits is killed by the clock, later.
_START, _SLOWER, _WAITING = 30.0, 5.0, 20.0
_NO_TESTS, _SERVER_FAILED = 5, 70
_TIMEOUTS = None, -signal.SIGXCPU, -signal.SIGKILL


class Mutant(NamedTuple):
  """One change of one file.

  Attributes:
    file: path from the root of the checkout.
    operator: of cosmic-ray, which makes the change.
    occurrence: which of the places in the file where the operator can be used.
    line: of the change, from 1.
  """

  file: str
  operator: str
  occurrence: int
  line: int


class Coverage(NamedTuple):
  """What tests execute.

  Attributes:
    files: path -> `summary`, and `contexts`: line -> tests; a test '' is an import.
    seconds: test -> its time, of the processor.
  """

  files: Mapping[str, Mapping[str, Any]]
  seconds: Mapping[str, float]


class Verdict(NamedTuple):
  """What became of a mutant.

  Attributes:
    status: 'killed', 'timeout', 'survived' or 'not covered'.
    test: that failed; empty if none did.
    seconds: that it took.
  """

  status: str
  test: str
  seconds: float


@functools.cache
def _load_operators() -> dict[str, Any]:
  # When it is used, so that a page can be written without it.
  from cosmic_ray import plugins

  operators = {
    name: plugins.get_operator(name) for name in plugins.operator_names()
  }
  return {
    name.removeprefix('core/'): operator()
    for name, operator in sorted(operators.items())
    if not operator.arguments() and _keeps_types(name)
  }  # fmt: skip


def _keeps_types(operator: str) -> bool:
  kind, *change = operator.removeprefix('core/').split('_')
  if kind == 'ReplaceUnaryOperator':
    return change[0] == 'Delete'
  return not change or any(set(change) <= group for group in _GROUPS)


def list_mutants(root: pathlib.Path, file: str) -> list[Mutant]:
  """All mutants of a file that count.

  Neither annotations nor errors are mutated, nor what only saves time; cosmic-ray leaves
  strings as they are.
  """
  from cosmic_ray import ast as cosmic_ast

  tree = cosmic_ast.get_ast((root / file).read_text(encoding='utf-8'))
  nodes = [(node, _counts(node)) for node in cosmic_ast.ast_nodes(tree)]
  mutants = []
  for name, operator in _load_operators().items():
    occurrence = 0
    for node, counts in nodes:
      for start, _ in operator.mutation_positions(node):
        if counts:
          mutants.append(Mutant(file, name, occurrence, start[0]))
        occurrence += 1
  return mutants


def _counts(node: Any) -> bool:
  """Whether a change of a node of parso's tree can be a fault."""
  if node.parent is not None and node.parent.type in ('parameters', 'lambdef'):
    return node.type != 'operator'  # The bare * and / of signatures.
  child = node
  while child is not None:
    parent = child.parent
    if child.type in ('raise_stmt', 'tfpdef'):
      return False
    if child.type == 'decorator' and _SPEED.search(child.get_code()):
      return False
    if (
      child.type == 'if_stmt'
      and 'TYPE_CHECKING' in child.children[1].get_code()
    ):
      return False
    if parent is not None:
      if parent.type == 'annassign' and child is parent.children[1]:
        return False
      if parent.type == 'funcdef' and child is parent.annotation:
        return False
      # NullLaw = Sphere | Gaussian
      if parent.type == 'expr_stmt' and child.type == 'expr':
        return parent.parent.parent.type != 'file_input'
    child = parent
  return True  # fmt: skip


def mutate(source: str, mutant: Mutant) -> str:
  """The text of the file with the change."""
  from cosmic_ray import mutating

  operator = _load_operators()[mutant.operator]
  changed = mutating.mutate_code(source, operator, mutant.occurrence)
  if changed is None:
    raise ValueError(f'{mutant} is not a mutant of this file.')
  return changed


def describe_change(before: str, after: str) -> tuple[str, str]:
  """The lines in which two texts differ, each as one line.

  >>> describe_change('a\\nx = 1\\nb', 'a\\nx = 2\\nb')
  ('x = 1', 'x = 2')
  """
  old, new = before.splitlines(), after.splitlines()
  pairs = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
  first, *_, last = [pair for pair in pairs if pair[0] != 'equal'] * 2
  cut = lambda lines: ' '.join(' '.join(lines).split())
  return cut(old[first[1] : last[2]]), cut(new[first[3] : last[4]])


def find_statement(source: str, line: int) -> range:
  """Lines of the smallest statement around a line, without those of its body.

  >>> find_statement('if (a and\\n    b):\\n  c = 1', 2)
  range(1, 3)
  """
  lines = range(line, line + 1)
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.stmt | ast.excepthandler):
      body = getattr(node, 'body', None)
      # A decorator precedes the line of its function.
      start = min(
        [node.lineno, *(d.lineno for d in getattr(node, 'decorator_list', []))]
      )
      end = body[0].lineno - 1 if body else node.end_lineno or node.lineno
      if start <= line <= max(start, end):
        lines = range(start, max(start, end) + 1)
  return lines


def choose_tests(
  mutant: Mutant,
  source: str,
  coverage: Coverage,
  near: Sequence[str],
  limit: float,
) -> tuple[list[str], list[str]] | None:
  """The tests that can kill a mutant, the fastest first.

  Those near it execute its statement. Further away are others that do, and then those
  that execute another line of its file or are next to one that executes this line: what
  they use may have been computed by the import, by a fixture or for an earlier test.

  Args:
    mutant: the change.
    source: its file, unchanged.
    coverage: what tests execute.
    near: beginnings of the ids of the tests that are run first.
    limit: seconds of each of the two parts; the fastest test is in it anyway.

  Returns:
    Tests near the mutant and further away; None if nothing executes its line.
  """
  contexts = coverage.files.get(mutant.file, {}).get('contexts', {})
  lines = [str(line) for line in find_statement(source, mutant.line)]
  executed = {test for line in lines for test in contexts.get(line, ())}
  if not executed:
    return None
  files = {test.partition('::')[0] for test in executed}
  others = {test for tests in contexts.values() for test in tests} | {
    test for test in coverage.seconds if test.partition('::')[0] in files
  }
  seconds = coverage.seconds

  def sort(tests: Iterable[str]) -> list[str]:
    return sorted(tests, key=lambda test: (seconds[test], test))

  def cut(*groups: Iterable[str]) -> list[str]:
    chosen, total = [], 0.0
    for test in itertools.chain.from_iterable(map(sort, groups)):
      if total + seconds[test] <= limit:
        chosen.append(test)
        total += seconds[test]
    return chosen

  executed &= seconds.keys()
  here = {test for test in executed if test.startswith(tuple(near))}
  first = cut(here)
  rest = (others & seconds.keys()) - executed
  is_near = {test for test in rest if test.startswith(tuple(near))}
  far = cut(here.difference(first), executed - here, is_near, rest - is_near)
  return first, far if first or far else sort(executed)[:1]


class Server:
  """A copy of a checkout, and a process whose forks run its tests."""

  def __init__(
    self,
    tree: pathlib.Path,
    packages: Sequence[str] = (),
    compiled: pathlib.Path | None = None,
  ):
    """Starts the process.

    Args:
      tree: the copy, with sources that `judge` changes.
      packages: to import before forks, none of which imports from the tree.
      compiled: folder for programs that JAX has compiled.
    """
    self.tree = tree
    path = os.pathsep.join(
      [str(tree), *filter(None, [os.environ.get('PYTHONPATH')])]
    )
    environment = {**os.environ, 'PYTHONPATH': path}
    if compiled is not None:
      environment |= {
        'JAX_COMPILATION_CACHE_DIR': str(compiled),
        'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
      }
    self._process = subprocess.Popen(
      [sys.executable, '-P', forks.__file__, str(tree), ','.join(packages)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      env=environment,
    )
    self._changes = 0

  def close(self) -> None:
    """Ends the process."""
    self._process.communicate()

  def ask(self, **job: Any) -> dict[str, Any]:
    """Has a job done by a fork; see `forks`."""
    assert self._process.stdin
    assert self._process.stdout
    print(json.dumps(job), file=self._process.stdin, flush=True)
    answer = json.loads(self._process.stdout.readline())
    if answer['status'] == _SERVER_FAILED:
      raise RuntimeError(f'{job} failed; see {job.get("log")}.')
    return answer

  def run_tests(
    self,
    arguments: Sequence[str],
    tests: Sequence[str] | None,
    limit: float,
    **options: Any,
  ) -> dict[str, Any]:
    """Runs tests of the tree.

    Args:
      arguments: of pytest.
      tests: which of them, in their order; None for all.
      limit: seconds after which they are killed.
      **options: `sources` and `data`, to measure coverage; `processor_limit`.

    Returns:
      `status` of pytest, None if it was killed; `failed`, tests; `seconds`, by test.
    """
    out = self.tree.with_suffix('.json')
    out.unlink(missing_ok=True)
    answer = self.ask(
      arguments=list(arguments),
      tests=None if tests is None else list(tests),
      limit=limit,
      out=str(out),
      log=str(self.tree.with_suffix('.log')),
      **{'sources': None, 'data': None, 'processor_limit': None, **options},
    )
    result = {'seconds': {}, 'failed': []}
    if out.exists():
      result = json.loads(out.read_text(encoding='utf-8'))
    return {**result, 'status': answer['status'], 'wall': answer['seconds']}

  def judge(
    self,
    mutant: Mutant,
    coverage: Coverage,
    near: Sequence[str] = ('',),
    limit: float = 60.0,
  ) -> Verdict:
    """Runs the tests that a mutant can fail, until one does.

    Args:
      mutant: of a file of the tree.
      coverage: what tests execute.
      near: as for `choose_tests`.
      limit: as for `choose_tests`.
    """
    path = self.tree / mutant.file
    source, times = path.read_text(encoding='utf-8'), path.stat()
    parts = choose_tests(mutant, source, coverage, near, limit)
    if parts is None:
      return Verdict('not covered', '', 0.0)
    path.write_text(mutate(source, mutant), encoding='utf-8')
    # Bytecode is known by the time and the size of its source, in whole seconds.
    self._changes += 1
    changed = times.st_mtime + self._changes
    os.utime(path, (changed, changed))
    spent = 0.0
    try:
      for tests in filter(None, parts):
        planned = sum(coverage.seconds[test] for test in tests)
        files = sorted({test.partition('::')[0] for test in tests})
        seconds = _START + _SLOWER * planned
        result = self.run_tests(
          ['-x', *files], tests, _WAITING * seconds, processor_limit=seconds
        )
        spent += result['wall']
        if result['status'] in _TIMEOUTS:
          return Verdict('timeout', '', spent)
        if result['status'] not in (0, _NO_TESTS):
          return Verdict('killed', (*result['failed'], '')[0], spent)
      return Verdict('survived', '', spent)
    finally:
      path.write_text(source, encoding='utf-8')
      os.utime(path, (times.st_mtime, times.st_mtime))

  def measure_coverage(
    self,
    sources: Sequence[str],
    tests: Mapping[str, pathlib.Path],
    limit: float,
  ) -> None:
    """Runs tests once, with what they execute written to files.

    Args:
      sources: folders whose coverage is measured.
      tests: folder or file of tests -> the data file, which is left if it exists.
      limit: seconds of each.

    Raises:
      RuntimeError: a test failed.
    """
    for argument, data in tests.items():
      seconds = data.with_suffix('.json')
      if seconds.exists():
        continue
      result = self.run_tests(
        [argument], None, limit, sources=list(sources), data=str(data)
      )
      if result['status'] not in (0, _NO_TESTS):
        raise RuntimeError(
          f'Tests of {argument} fail without a mutant: {result["failed"]}; '
          f'see {self.tree.with_suffix(".log")}.'
        )
      seconds.write_text(json.dumps(result['seconds']), encoding='utf-8')

  def read_coverage(
    self,
    sources: Sequence[str],
    parts: Iterable[pathlib.Path],
    out: pathlib.Path,
  ) -> Coverage:
    """The coverage of all that `measure_coverage` wrote."""
    parts, data = list(parts), out.with_suffix('.data')
    data.unlink(missing_ok=True)
    self.ask(
      sources=list(sources),
      parts=[str(part) for part in parts if part.exists()],
      data=str(data),
      out=str(out),
      limit=3600.0,
    )
    seconds = {}
    for part in parts:
      seconds |= json.loads(part.with_suffix('.json').read_text('utf-8'))
    return Coverage(json.loads(out.read_text('utf-8'))['files'], seconds)


def copy_tree(source: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
  """A copy of a tree, with the times of its files, instead of an earlier one."""
  shutil.rmtree(target, ignore_errors=True)
  return pathlib.Path(shutil.copytree(source, target))


def hash_text(text: str) -> str:
  """A name for a text."""
  return hashlib.sha256(text.encode()).hexdigest()[:16]
