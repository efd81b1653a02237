"""A data set is one file and one line, and everything else follows from it."""

import re
import sys

import numpy as np
import pytest

from epe_jax.cli import program
from epe_jax.data import data_sets, imports, sources
from epe_jax.experiment import audited_run
from epe_jax.experiment.setup import config as config_lib
from epe_jax.experiment.setup import workloads

# The one file: clients measure temperatures, and a model tells whether it is warm.
WEATHER = """
import jax.numpy as jnp
import numpy as np

from epe_jax.data import data_sets, decoding, federated, fields, sources, workload
from epe_jax.tasks.classifier import classifier

FEATURES = {'celsius': (np.float32, (2,)), 'warm': (np.int32, ())}


def load(config):
  rng = np.random.default_rng(config.seed)
  def draw(names):
    x = rng.normal(size=(8 * len(names), 100)).astype(np.float32)
    columns = {'x': x, 'y': (x[:, 0] > 0).astype(np.int32)}
    return federated.from_arrays(columns, np.repeat(names, 8))
  task = classifier(
    lambda key: {'w': jnp.zeros((100, 2))}, lambda params, x, key: x @ params['w']
  )
  names = [f's{i:02}' for i in range(config.data.num_stations)]
  return workload.Workload(
    task, draw(names), draw(['test']), f'{len(names)} stations'
  )


def make_recipes(source, *options):
  keep = decoding.Recipe(FEATURES, dict, {'recipe': 'weather'})
  return lambda split: keep


DATA_SET = data_sets.Federated(
  load=load,
  fields={'data.num_stations': fields.integer(1, 100)},
  features=FEATURES,
  make_recipes=make_recipes,
  downloads={
    'weather_2020': data_sets.Download(
      (data_sets.PublicFile('weather.npz'),), {'train': sources.Split(2, 3)}
    )
  },
)
"""


CONFIG = """
from epe_jax.configs import common


def get_config():
  return common.make_config(
    task='weather', data=dict(num_stations=12), model=dict(),
    rounds=4, clients_per_round=6,
    client=dict(learning_rate=0.1, batch_size=8, epochs=1),
    server=dict(learning_rate=1.0, momentum=0.0), noise_multiplier=0.5,
    canaries=dict(observed=12, unobserved=12),
    evaluate_every=2, checkpoint_every=2,
  )
"""


@pytest.fixture
def weather(tmp_path, monkeypatch):
  (tmp_path / 'weather_data.py').write_text(WEATHER)
  # The one line.
  monkeypatch.setitem(data_sets.MODULES, 'weather', 'weather_data')
  monkeypatch.delitem(sys.modules, 'weather_data', raising=False)
  monkeypatch.syspath_prepend(tmp_path)
  path = tmp_path / 'weather.py'
  path.write_text(CONFIG)
  return config_lib.load_config(path)


@pytest.mark.integration
def test_a_new_data_set_is_run_by_its_name(weather, tmp_path):
  result = audited_run.run(weather, tmp_path / 'run')
  assert 'RunResult of weather' in str(result)
  assert '12 stations' in (tmp_path / 'run' / 'result.json').read_text()


def test_the_config_of_a_new_data_set_is_checked(weather):
  config = weather
  assert config_lib.check_config(config).data.num_stations == 12
  found = workloads.load_workload(config)
  assert found.train.num_clients == 12
  assert found.baseline is not None
  assert 0.2 < found.baseline < 0.9
  config.data.num_stations = 101
  with pytest.raises(ValueError, match=r'num_stations=101; give .* to 100'):
    config_lib.check_config(config)


@pytest.mark.usefixtures('weather')
def test_a_new_data_set_is_in_the_help_and_is_imported_by_its_recipe(
  tmp_path, capsys
):
  assert program.main(['data', '--help']) == 0
  # Where a line is broken does not matter.
  text = ''.join(capsys.readouterr().out.split())
  assert 'weather_2020' in text
  file = tmp_path / 'weather.npz'
  np.savez(
    file,
    client_id=['b', 'a', 'b'],
    celsius=np.ones((3, 2), np.float32),
    warm=[0, 1, 1],
  )
  (written,) = imports.import_(file, tmp_path / 'out', public='weather_2020')
  assert written[:3] == ('train', 2, 3)
  meta = imports.read_meta(tmp_path / 'out', 'train')
  assert meta['recipe'] == 'weather'


def test_an_unknown_data_set_is_refused_with_those_there_are():
  with pytest.raises(ValueError, match=r"no data 'random'.*'emnist'"):
    data_sets.find_federated('random')


@pytest.mark.parametrize('name', data_sets.list_downloads())
def test_counts_are_accepted_when_equal_and_refused_when_one_differs(name):
  right = data_sets.list_downloads()[name].splits
  data_sets.check_counts(name, right)
  for split, (clients, num_examples) in right.items():
    for wrong in (
      (clients - 1, num_examples),
      (clients, num_examples + 1),
      (clients, None),
    ):
      found = sources.Split(*wrong)
      both = re.escape(f'{split!r}: {found}, not {right[split]}')
      with pytest.raises(ValueError, match=both):
        data_sets.check_counts(name, {**right, split: found})
    missing = {s: n for s, n in right.items() if s != split}
    with pytest.raises(ValueError, match=f"'{split}': None, not"):
      data_sets.check_counts(name, missing)
  with pytest.raises(ValueError, match=r'more.* should not be there'):
    data_sets.check_counts(name, {**right, 'more': sources.Split(1, 1)})
