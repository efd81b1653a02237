"""The study of runs of unequal numbers of canaries."""

import numpy as np
from studies import unequal_runs


def test_every_statement_of_a_case_has_its_stated_rate():
  for _, simulate in unequal_runs.CASES:
    said = simulate(np.random.default_rng(0))
    assert said.keys() == unequal_runs.STATED.keys()
