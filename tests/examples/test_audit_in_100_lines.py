"""The example of a whole audit is short, and its ε is that of the mechanism."""

import importlib
import pathlib
import re

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
