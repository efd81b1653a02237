"""What a run warns of before its first round, and that no config that ships does."""

from absl import logging
import pytest

from epe_jax.epsilon import checks
from epe_jax.experiment.setup import build
from epe_jax.experiment.setup import config as config_lib


@pytest.fixture
def check(monkeypatch):
  """Checks a config with other fields; gives the warnings."""

  def of(name, **fields):
    said = []
    monkeypatch.setattr(
      logging, 'warning', lambda text, *values: said.append(text % values)
    )
    config = config_lib.load_config(name)
    config.update_from_flattened_dict(fields)
    build.check(config)
    return said

  return of


@pytest.mark.parametrize(
  ('name', 'fields'),
  [
    ('digits', {}),
    ('digits:smoke', {}),
    ('emnist:smoke', {'data.synthetic': True}),
    ('stackoverflow:smoke', {'data.synthetic': True}),
  ],
)
def test_a_config_that_ships_gives_no_warning(check, name, fields):
  assert check(name, **fields) == []


def test_a_run_warns_where_canaries_outnumber_clients(check):
  # As many as clients, 20 in each of 20 rounds, and one more.
  assert check('digits', **{'canaries.observed': 400}) == []
  (warning,) = check('digits', **{'canaries.observed': 401})
  assert warning.startswith('canaries.observed=401 in rounds=20 of clients_per')
  # Each in two rounds.
  fields = {'canaries.observed': 201, 'canaries.repetitions': 2}
  assert len(check('digits', **fields)) == 1
  # In place of clients they cannot.
  replace = {'canaries.schedule': 'replace', 'canaries.observed': 100}
  assert check('digits', **replace) == []


def test_a_run_warns_of_a_delta_above_one_over_its_clients(check):
  assert check('digits', **{'audit.delta': 1 / 400}) == []
  (warning,) = check('digits', **{'audit.delta': 1.01 / 400})
  assert warning.startswith(
    'audit.delta: δ = 0.002525 is above 1/n for n = 400'
  )


def test_what_a_delta_allows_is_said_of_people_that_are_not_counted():
  assert checks.warn_of_delta(0.01) is None
  assert 'one person in a hundred' in (checks.warn_of_delta(0.011) or '')
  # Of so few a larger one is as it should be.
  assert checks.warn_of_delta(0.011, 50) is None
