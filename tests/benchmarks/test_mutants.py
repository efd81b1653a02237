"""Mutants: which are made, which tests meet them, and what becomes of them."""

import pathlib
import subprocess

import pytest
from studies import mutation

from epe_jax.text import tables

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / 'docs'

SOURCE = """\
import functools

Size = int | float
LIMIT: int | None = 3


@functools.cache
def add(x: int | float, *, y: Size = 1) -> int | float:
  if x > LIMIT:
    raise ValueError(f'{x + 1} is above {LIMIT}.')
  return x + y


def double(x):
  return 2 * x


def is_large(x):
  while x < 0:
    x += 1
  return x > 10
"""
TESTS = """\
from epe_jax.toy import sums


def test_sums():
  assert sums.add(2, y=3) == 5


def test_large_numbers():
  assert sums.is_large(20)
  assert not sums.is_large(-3)
"""
FILE = 'epe_jax/toy/sums.py'


@pytest.fixture
def tree(tmp_path):
  pytest.importorskip('cosmic_ray')
  files = {
    'epe_jax/__init__.py': '',
    FILE: SOURCE,
    'tests/toy/test_sums.py': TESTS,
    'pyproject.toml': '[tool.pytest.ini_options]\n',
  }
  for name, text in files.items():
    path = tmp_path / 'tree' / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  return tmp_path / 'tree'


def list_changes(tree):
  changes = {}
  for mutant in mutation.list_mutants(tree, FILE):
    changed = mutation.mutate(SOURCE, mutant)
    compile(changed, FILE, 'exec')
    changes[mutation.describe_change(SOURCE, changed)] = mutant
  return changes


def test_a_mutant_is_a_change_that_a_test_of_the_law_can_notice(tree):
  changes = list_changes(tree)
  assert ('return x + y', 'return x - y') in changes
  assert ('if x > LIMIT:', 'if x >= LIMIT:') in changes
  assert ('if x > LIMIT:', 'if not x > LIMIT:') in changes
  changed = {before for before, _ in changes}
  # The default of an argument, and the constant with an annotation, are values.
  assert any(line.startswith('def add') for line in changed)
  assert any(line.startswith('LIMIT') for line in changed)
  assert not any(
    line.startswith(('Size', '@', 'raise', 'import')) for line in changed
  )
  after = {after for _, after in changes}
  assert not any('int + float' in line or '(x: int -' in line for line in after)
  # Operands of + may have no bits.
  assert ('return x + y', 'return x | y') not in changes


def test_the_tests_that_execute_a_line_are_run_first_and_the_fastest_of_them_before():
  mutant = mutation.Mutant('a.py', 'NumberReplacer', 0, 2)
  coverage = mutation.Coverage(
    {'a.py': {'contexts': {'2': ['t/far::a', 't/near::slow', 't/near::b'], '9': ['u::c']}}},
    {'t/far::a': 1.0, 't/near::slow': 9.0, 't/near::b': 2.0, 'u::c': 3.0, 't/near::d': 1.0, 'v::e': 0.1},
  )  # fmt: skip
  choose = lambda limit, line=2: mutation.choose_tests(
    mutant._replace(line=line),
    'x = 1\ny = 2\nz = 3',
    coverage,
    ['t/near'],
    limit,
  )
  assert choose(20.0) == (
    ['t/near::b', 't/near::slow'],
    ['t/far::a', 't/near::d', 'u::c'],
  )
  assert choose(5.0) == (['t/near::b'], ['t/far::a', 't/near::d', 'u::c'])
  assert choose(20.0, line=3) is None


def test_the_command_counts_mutants_and_asks_again_only_of_survivors(
  tree, load_benchmark, monkeypatch
):
  monkeypatch.setenv('PYTEST_DISABLE_PLUGIN_AUTOLOAD', '1')
  mutants = load_benchmark('mutants')
  monkeypatch.setattr(mutants, 'ROOMS', ('toy',))
  git = lambda *a: subprocess.run(
    ['git', '-c', 'user.name=x', '-c', 'user.email=x', *a], cwd=tree, check=True
  )
  git('init', '-q')
  git('add', '.')
  git('commit', '-q', '-m', 'x')
  # Of the sample, is one killed and one not covered.
  drawn = {'return x + y': 'return x - y', 'return 2 * x': 'return 2 - x'}
  chosen = [list_changes(tree)[change] for change in drawn.items()]
  monkeypatch.setattr(mutants, 'draw_mutants', lambda *a: (chosen, 30))
  plan = mutants.Plan(['toy'], ['tests/toy'], 2, 0, 60.0, 1, ['pytest'])
  folder = tree.parent / 'kept'
  (room,), rows = mutants.measure(tree, folder, plan)
  assert [row['status'] for row in rows] == ['killed', 'not covered']
  expected = {'mutants': '30', 'drawn': '2', 'score': '50%', 'not covered': '1'}
  assert room | expected == room
  monkeypatch.setattr(mutation.Server, 'judge', None)
  assert mutants.measure(tree, folder, plan) == ([room], rows)
  (tree / FILE).write_text('x = 1')
  with pytest.raises(SystemExit, match='commit first'):
    mutants.measure(tree, folder, plan)


def test_mutants_are_killed_survive_time_out_or_are_not_covered(
  tree, monkeypatch
):
  monkeypatch.setattr(mutation, '_START', 2.0)
  monkeypatch.setenv('PYTEST_DISABLE_PLUGIN_AUTOLOAD', '1')
  changes = list_changes(tree)
  server = mutation.Server(tree, ['pytest', 'coverage'])
  sources, part = ['epe_jax/toy'], tree.parent / 'part.data'
  server.measure_coverage(sources, {'tests/toy': part}, 60.0)
  coverage = server.read_coverage(
    sources, [part], tree.parent / 'coverage.json'
  )
  summary = coverage.files[FILE]['summary']
  assert summary['num_statements'] - summary['covered_lines'] == 2
  judge = lambda *change: server.judge(changes[change], coverage)
  killed = judge('return x + y', 'return x - y')
  assert killed.status == 'killed'
  assert killed.test == 'tests/toy/test_sums.py::test_sums'
  assert judge('return x > 10', 'return x >= 10').status == 'survived'
  assert judge('x += 1', 'x += 0').status == 'timeout'
  assert judge('return 2 * x', 'return 2 + x').status == 'not covered'
  assert (tree / FILE).read_text() == SOURCE
  server.close()


def test_the_page_shows_what_its_data_files_say(load_benchmark, tmp_path):
  mutants = load_benchmark('mutants')
  page = (DOCS / 'reliability.md').read_text(encoding='utf-8')
  assert tables.splice(page, mutants.make_blocks(DOCS / 'data')) == page
  rows = [
    {'file': 'a.py', 'line': 1, 'before': 'x', 'after': 'y', 'status': status}
    for status in ['killed'] * 8 + ['timeout', 'survived']
  ]
  files = [{'covered_lines': 3, 'num_statements': 4, 'covered_branches': 1, 'num_branches': 2}]  # fmt: skip
  room = mutants.summarize_room(rows, 1000, files)
  # Of 9 in 10, by Clopper and Pearson.
  expected = {'score': '90%', '95 % interval': '55% to 100%', 'lines': '75.0%'}
  assert room | expected == room
  mutants.write_data(tmp_path, [{'room': 'a', **room}], rows)
  block = mutants.make_blocks(tmp_path)['mutants']
  assert block.count('**to be killed**') == 1
