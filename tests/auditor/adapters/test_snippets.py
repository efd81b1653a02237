"""What an audit adds to the quickstart of a framework is short, and the page has it."""

import ast
import pathlib
import textwrap

import pytest

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / 'examples' / 'frameworks').glob('*.py'))
NAMES = [path.stem.removesuffix('_quickstart') for path in EXAMPLES]


def read_statements(path):
  """The simple statements of an example: the audit's, and the others."""
  source = path.read_text(encoding='utf-8')
  lines = source.splitlines()
  statements = [
    '\n'.join(lines[node.lineno - 1 : node.end_lineno])
    for node in ast.walk(ast.parse(source))
    if isinstance(node, ast.stmt) and not hasattr(node, 'body')
  ]
  added = [s for s in statements if '# epe_jax' in s.splitlines()[0]]
  # The first of the others is the docstring.
  return added, [s for s in statements if s not in added][1:]


def strip_mark(statement):
  return textwrap.dedent(statement.replace('  # epe_jax', ''))


@pytest.mark.parametrize('path', EXAMPLES, ids=NAMES)
def test_an_audit_adds_six_statements_at_most(path):
  added, kept = read_statements(path)
  assert 1 <= len(added) <= 6, added
  marks = path.read_text(encoding='utf-8').count('  # epe_jax')
  assert len(added) == marks, 'a mark is not on the first line of a statement'
  for statement in added:
    assert all(len(line) <= 80 for line in statement.splitlines()), statement
  # The others are the loop alone, and what keeps its audit for the docs.
  assert not any('epe_jax' in statement for statement in kept)


@pytest.mark.parametrize('path', EXAMPLES, ids=NAMES)
def test_the_page_of_a_framework_has_the_statements_of_its_example(path):
  added, _ = read_statements(path)
  name = path.stem.removesuffix('_quickstart').removesuffix('_loop')
  page = (ROOT / f'docs/frameworks/{name}.md').read_text(encoding='utf-8')
  code = page.split('```py\n')[1].split('```')[0]
  shown = [ast.unparse(statement) for statement in ast.parse(code).body]
  assert len(shown) == len(added)
  for statement in map(strip_mark, added):
    assert statement in code
    assert len(ast.parse(statement).body) == 1, statement
