"""Reports of these tests are written in a fraction of the time."""

import functools

import pytest


@pytest.fixture(scope='package', autouse=True)
def few_resamples():
  """Intervals of what leaked by round are rough; nothing here reads them."""
  from epe_jax.audit import over_rounds

  rough = functools.partial(over_rounds.evaluate_by_round, resamples=20)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(over_rounds, 'evaluate_by_round', rough)
    yield
