"""What an audit adds to the quickstart of a framework is short, and the page has it."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / 'examples' / 'frameworks').glob('*.py'))
NAMES = [path.stem.rpartition('_')[0] for path in EXAMPLES]
MARK = '  # +'

# Of frameworks that know nothing of a claim: it takes lines to say it.
KNOW_NOTHING = {'nvflare', 'secagg'}
# Statements of the audit; 4 where an adapter makes the calls of each round.
MOST = {'secagg': 8}


def read_statements(path):
  """The lines of each statement of an example: of the audit, and of the others.

  A decorator is a statement of its own. The docstring is left out.
  """
  source = path.read_text(encoding='utf-8')
  lines = source.splitlines()
  tree = ast.parse(source)
  nodes = [
    node
    for node in ast.walk(tree)
    if isinstance(node, ast.stmt) and not hasattr(node, 'body')
  ]
  for node in ast.walk(tree):
    nodes += getattr(node, 'decorator_list', [])
  statements = [lines[x.lineno - 1 : x.end_lineno] for x in nodes]
  added = [s for s in statements if s[0].endswith(MARK)]
  others = [s for s in statements if s not in added]
  return added, others[1:]


def test_every_framework_has_an_example():
  assert set(NAMES) == {
    'dp_lora',
    'flower',
    'jax_privacy',
    'numpy',
    'nvflare',
    'opacus',
    'optax',
    'pfl',
    'secagg',
  }


@pytest.mark.parametrize('path', EXAMPLES, ids=NAMES)
def test_an_audit_adds_four_lines_at_most(path):
  added, others = read_statements(path)
  most = MOST.get(path.stem.rpartition('_')[0], 4)
  assert 3 <= len(added) <= most, added
  marks = path.read_text(encoding='utf-8').count(f'{MARK}\n')
  assert len(added) == marks, 'a mark is not on the first line of a statement'
  if path.stem.rpartition('_')[0] not in KNOW_NOTHING:
    assert all(len(statement) == 1 for statement in added), added
  # The others are the loop alone, and what keeps its audit for the docs.
  assert not any('epe_jax' in line for lines in others for line in lines)


@pytest.mark.parametrize('path', EXAMPLES, ids=NAMES)
def test_the_page_of_a_framework_has_the_statements_of_its_example(path):
  added, _ = read_statements(path)
  name = path.stem.rpartition('_')[0]
  page = (ROOT / f'docs/frameworks/{name}.md').read_text(encoding='utf-8')
  code = page.split('```py\n')[1].split('```')[0]
  shown = ast.parse(code).body
  assert len(shown) == len(added)
  for statement in added:
    text = '\n'.join(statement).replace(MARK, '')
    indent = len(text) - len(text.lstrip())
    for line in text.splitlines():
      assert line[indent:] in code.splitlines()
