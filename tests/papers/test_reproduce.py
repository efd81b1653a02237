"""scripts/reproduce.py: every item, at smoke scale, from runs to pictures."""

import os
import pathlib
import subprocess
import sys

import pytest

from epe_jax import io
from epe_jax.audit import threat_models
from epe_jax.experiment import finished_runs
from epe_jax.papers.one_shot import files, items, reported
from tests.in_process import run_script

ROOT = pathlib.Path(__file__).parents[2]
# Items that share runs are made by one call.
GROUPS = {
  'mechanism': ['algorithm1', 'd_sweep'],
  'emnist': ['emnist', 'emnist_densities', 'emnist_bars', 'emnist_anderson'],
  'stackoverflow': ['stackoverflow', 'densities', 'bars', 'anderson'],
  'emnist_5x34': ['emnist_5x34'],
  'runs': ['runs'],
  'accuracy': ['accuracy'],
  'canife': ['canife'],
  'emnist_accuracy': ['emnist_accuracy'],
}
# At smoke scale programs take longer to compile than to run.
ENVIRONMENT = os.environ | {
  'XLA_FLAGS': '--xla_backend_optimization_level=0 '
  '--xla_llvm_disable_expensive_passes=true'
}


def reproduce(*args):
  return subprocess.run(
    [sys.executable, ROOT / 'scripts' / 'reproduce.py', *args],
    env=ENVIRONMENT,
    capture_output=True,
    text=True,
    timeout=600,
  )


def test_every_item_is_in_a_group():
  assert sorted(n for g in GROUPS.values() for n in g) == sorted(items.ITEMS)


def test_list_names_everything():
  done = run_script('reproduce', '--list')
  assert done.returncode == 0
  named = [line.split()[0] for line in done.stdout.splitlines()]
  assert named == list(items.ITEMS)


def test_an_unknown_item_is_an_error_that_names_the_others():
  done = run_script('reproduce', 'table9')
  assert done.returncode != 0
  assert "'table9' is no item" in done.stderr
  assert 'emnist_bars' in done.stderr


def test_without_data_the_flag_is_named(tmp_path):
  done = run_script('reproduce', 'emnist', f'--workdir={tmp_path}')
  assert done.returncode == 1
  assert '--emnist is not given' in done.stderr


# What others test too: 'stackoverflow' with another model or without canaries,
# and the script that compares runs.
_SLOW = dict.fromkeys(
  ('emnist', 'runs', 'accuracy', 'emnist_accuracy'), pytest.mark.slow
)


@pytest.mark.integration
@pytest.mark.parametrize(
  'group', [pytest.param(g, marks=_SLOW.get(g, ())) for g in GROUPS]
)
def test_every_item_is_made_at_smoke_scale(group, tmp_path):
  done = reproduce(*GROUPS[group], '--scale=smoke', f'--workdir={tmp_path}')
  assert done.returncode == 0, done.stderr
  made = tmp_path / 'smoke'
  for name in GROUPS[group]:
    assert items.ITEMS[name].title in done.stdout
    record = io.read_json(made / name / 'item.json')
    assert record['scale'] == 'smoke'
    assert record['tables']
    for table in record['tables']:
      assert table['body']
      assert {len(row) for row in table['body']} == {len(table['head'])}
    for suffix in ('txt', 'md', 'tex'):
      assert (made / name / f'table.{suffix}').stat().st_size > 200
    for drawn in record['figures']:
      assert (made / name / f'{drawn}.png').read_bytes()[:4] == b'\x89PNG'
      assert (made / name / f'{drawn}.pdf').read_bytes()[:4] == b'%PDF'
  page = files.format_page(made, link='somewhere')
  for name in GROUPS[group]:
    assert f'reproduce.py {name} --scale=smoke' in page
  if group == 'emnist':
    check_the_laws(made)


def check_the_laws(made):
  """What must hold of any grid, however small."""
  rows = io.read_json(made / 'emnist' / 'item.json')['tables'][0]['body']
  quiet, noisy = rows
  assert quiet[:2] == ['0', '∞ (∞)']
  assert noisy[1].endswith('(300.0)')
  for folder in (made / 'runs' / 'emnist').glob('*repetitions=1'):
    run = finished_runs.load_finished_run(folder)
    expected = finished_runs.predict_own_round(run)
    own = finished_runs.estimate_first(run, threat_models.OWN)
    low, high = own.interval
    # Twice as wide as the interval: eight canaries, one draw.
    half = (high - low) / 2
    assert low - half < expected < high + half, folder


def test_the_papers_tables_have_the_noise_levels_of_the_configs():
  spec = {}
  exec((ROOT / 'configs' / 'paper.py').read_text(), spec)
  config = spec['get_config']('paper')
  for name in ('stackoverflow', 'emnist', 'emnist_5x34', 'accuracy'):
    noises = [row['noise'] for row in reported.load_rows(name)]
    assert list(config[name].axes[0][1]) == noises
  for row in reported.load_rows('anderson'):
    assert row['noise'] in config.stackoverflow.axes[0][1]
    assert row['repetitions'] in config.stackoverflow.axes[1][1]


def test_the_paper_scale_changes_nothing_of_the_papers_settings():
  spec = {}
  exec((ROOT / 'configs' / 'paper.py').read_text(), spec)
  config = spec['get_config']('paper')
  for name in ('stackoverflow', 'emnist', 'emnist_5x34', 'accuracy'):
    assert all(not some for some in config[name].sets)
