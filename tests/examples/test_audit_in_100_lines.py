"""The example of a whole audit is short, and its ε is that of the mechanism."""

import importlib
import pathlib
import re
import subprocess
import sys

import pytest

from epe_jax import accounting

ROOT = pathlib.Path(__file__).parents[2]
CORE = [
  'accounting',
  'audit',
  'canaries',
  'epsilon',
  'sampling',
  'training',
  'types',
]


@pytest.mark.integration
def test_the_estimates_are_those_of_a_mechanism_that_keeps_its_claim(
  monkeypatch,
):
  monkeypatch.syspath_prepend(ROOT)
  example = importlib.import_module('examples.audit_in_100_lines')
  estimates = example.estimate(example.train_and_observe(seed=1))
  limit = accounting.epsilon_of_releases(
    example.NOISE_MULTIPLIER, delta=example.DELTA
  ).epsilon
  largest, own, residual = estimates.values()
  # A mean of 100 scores N(1/z, 1): ε is off by 0.5 for each standard error.
  assert residual[0] == pytest.approx(limit, abs=2)
  assert 0 < largest[0] < own[0] < limit + 2
  assert all(bound < limit for _, bound in estimates.values())


def test_it_is_short_and_needs_the_core_alone():
  text = (ROOT / 'examples' / 'audit_in_100_lines.py').read_text()
  assert len(text.splitlines()) < 100
  modules = re.findall(r'^from epe_jax import (.+)$', text, flags=re.M)
  modules += re.findall(r'^from epe_jax\.(\w+)', text, flags=re.M)
  names = {name.strip() for line in modules for name in line.split(',')}
  assert names == set(CORE)


# Loads what each name of the example is in, as running it does.
_TRACE = """
import ast, pathlib, sys
from examples import audit_in_100_lines as example
for node in ast.walk(ast.parse(pathlib.Path(example.__file__).read_text())):
  if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
    module = vars(example).get(node.value.id)
    if getattr(module, '__name__', '').startswith('epe_jax.'):
      getattr(module, node.attr)
for name, module in sys.modules.items():
  if name.startswith('epe_jax') or module is example:
    print(module.__file__)
"""


def test_the_reading_list_is_what_it_runs_through():
  traced = subprocess.run(
    [sys.executable, '-c', _TRACE],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
    timeout=300,
  ).stdout.split()
  files = [pathlib.Path(x) for x in traced if not x.endswith('__init__.py')]
  page = (ROOT / 'docs' / 'design.md').read_text()
  section = page.split('## Read it in this order')[1].split('\n## ')[0]
  listed = [
    ROOT / ('' if name.startswith('examples') else 'epe_jax') / name
    for name in re.findall(r'`([\w/]+\.py)`', section)
  ]
  assert set(listed) <= set(files)
  # Eight hours at ten lines a minute, and all that it is made of.
  assert sum(len(x.read_text().splitlines()) for x in listed) <= 4600
  assert len(files) <= 32
  assert sum(len(x.read_text().splitlines()) for x in files) <= 6540
