"""What an audit adds to the quickstart of a framework is short, and the page has it."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / 'examples' / 'frameworks').glob('*.py'))
NAMES = [path.stem.removesuffix('_quickstart') for path in EXAMPLES]


def read_lines(path):
  """The lines of an example behind its docstring: the audit's, and the others."""
  code = path.read_text(encoding='utf-8').split('"""', 2)[2].splitlines()
  added = [line for line in code if '# epe_jax' in line]
  return added, [line for line in code if line not in added]


def strip_mark(line):
  return line.split('# epe_jax')[0].strip()


@pytest.mark.parametrize('path', EXAMPLES, ids=NAMES)
def test_an_audit_adds_six_lines_at_most(path):
  added, kept = read_lines(path)
  assert 1 <= len(added) <= 6, added
  # Whole statements, and none too long to be read.
  for line in map(strip_mark, added):
    assert len(ast.parse(line).body) == 1, line
    assert len(line) < 140, line
  # The others are the loop alone, and what keeps its audit for the docs.
  assert not any('epe_jax' in line for line in kept)


@pytest.mark.parametrize('path', EXAMPLES, ids=NAMES)
def test_the_page_of_a_framework_has_the_lines_of_its_example(path):
  added, _ = read_lines(path)
  name = path.stem.removesuffix('_quickstart').removesuffix('_loop')
  page = (ROOT / f'docs/frameworks/{name}.md').read_text(encoding='utf-8')
  code = page.split('```py\n')[1].split('```')[0]
  shown = [line for line in code.splitlines() if line]
  assert shown == [strip_mark(line) for line in added]
