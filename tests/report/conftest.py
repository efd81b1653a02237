"""Reports of these tests are written in a fraction of the time."""

import functools

import pytest


@pytest.fixture(scope='package', autouse=True)
def short_over_rounds():
  """What leaked by round is shown of two rounds, and with rough intervals."""
  from epe_jax.audit import over_rounds

  short = {
    'choose_rounds': functools.partial(over_rounds.choose_rounds, num=2),
    'evaluate_by_round': functools.partial(
      over_rounds.evaluate_by_round, resamples=20
    ),
  }
  with pytest.MonkeyPatch.context() as patch:
    for name, function in short.items():
      patch.setattr(over_rounds, name, function)
    yield
