"""What trackers of experiments are sent of a finished run, read back from their files."""

import json
import math
import pathlib
import re
import sys

import pytest

from epe_jax.cli import program, run, trackers
from epe_jax.experiment import run_result
from epe_jax.report import leaks

RESULT = pathlib.Path(__file__).parents[2] / 'docs/runs/digits/result.json'


@pytest.fixture(scope='module')
def result():
  return run_result.load_result(RESULT)


def test_metrics_are_the_three_numbers_of_the_first_page(result):
  metrics = trackers.list_metrics(result)
  model, rounds, worst = leaks.find_leaks(result)
  assert metrics['epsilon/worst_case/at_least'] == worst.at_least.epsilon
  assert metrics['epsilon/every_round/about'] == rounds.about.epsilon
  assert metrics['epsilon/final_model/at_most'] == model.at_most
  assert metrics['epsilon/client/at_most'] == result.clients_analytic_epsilon
  assert all(math.isfinite(x) for x in metrics.values())


def test_mlflow_has_the_metrics_and_the_result(result, tmp_path, monkeypatch):
  mlflow = pytest.importorskip('mlflow', reason='mlflow is not installed')
  monkeypatch.setenv('MLFLOW_ALLOW_FILE_STORE', 'true')
  monkeypatch.setenv('MLFLOW_DISABLE_TELEMETRY', 'true')
  mlflow.set_tracking_uri((tmp_path / 'store').as_uri())
  trackers.log(['mlflow'], result, RESULT)
  (found,) = mlflow.MlflowClient().search_runs(['0'])
  assert found.data.metrics == trackers.list_metrics(result)
  assert found.info.status == 'FINISHED'
  (artifact,) = tmp_path.rglob('artifacts/result.json')
  assert artifact.read_bytes() == RESULT.read_bytes()


@pytest.mark.integration  # It starts a service of its own.
def test_wandb_has_the_metrics_and_the_result(result, tmp_path, monkeypatch):
  pytest.importorskip('wandb', reason='wandb is not installed')
  for name in ('DIR', 'DATA_DIR', 'CACHE_DIR', 'CONFIG_DIR'):
    monkeypatch.setenv(f'WANDB_{name}', str(tmp_path))
  monkeypatch.setenv('WANDB_MODE', 'offline')
  trackers.log(['wandb'], result, RESULT)
  # Of which the package has no reader; texts are in it as they are.
  (file,) = tmp_path.rglob('*.wandb')
  written = file.read_bytes()
  for name, value in trackers.list_metrics(result).items():
    assert name.encode() in written
    assert json.dumps(value).encode() in written
  assert b'result.json' in written
  contents = [x.read_bytes() for x in tmp_path.rglob('*') if x.is_file()]
  assert RESULT.read_bytes() in contents


@pytest.mark.parametrize('name', trackers.TRACKERS)
def test_a_missing_tracker_is_named_before_training(
  name, tmp_path, monkeypatch, capsys
):
  monkeypatch.setitem(sys.modules, name, None)
  workdir = tmp_path / 'run'
  status = program.main(
    ['run', 'digits:smoke', f'--{name}', f'--workdir={workdir}']
  )
  assert status != 0
  assert f"extra '{name}': pip install '.[{name}]'" in capsys.readouterr().err
  assert not workdir.exists()


def test_a_report_does_not_ask_for_a_tracker_to_repeat_its_run():
  words = ['digits', '--mlflow', '--nowandb', '--wandb=true', '--seed=1']
  assert run._leave_out_places(words) == ['digits', '--seed=1']


def test_the_page_for_reviewers_names_fields_that_a_result_has():
  page = RESULT.parents[2].joinpath('filing.md').read_text('utf-8')
  rows = [line.split('|')[3] for line in page.splitlines() if line[:1] == '|']
  named = [name for row in rows for name in re.findall('`([^`]+)`', row)]
  assert len(named) > 20
  for name in {*named} - {'result.json'}:
    values = json.loads(RESULT.read_text('utf-8'))
    for key in name.split('.'):
      # What is said of attackers is said of each.
      values = values[0] if isinstance(values, list) else values
      assert key in values, name
      values = values[key]
