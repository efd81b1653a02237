"""Reports of these tests are written in a fraction of the time."""

import functools

import pytest


@pytest.fixture(scope='package', autouse=True)
def short_over_rounds():
  """What leaked by round is shown of two rounds, and with rough intervals."""
  from epe_jax.watch import by_round

  short = {
    '_NUM_ROUNDS': 2,
    'evaluate_by_round': functools.partial(
      by_round.evaluate_by_round, resamples=20
    ),
  }
  with pytest.MonkeyPatch.context() as patch:
    for name, value in short.items():
      patch.setattr(by_round, name, value)
    yield
