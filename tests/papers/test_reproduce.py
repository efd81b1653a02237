"""scripts/reproduce.py: every item, at smoke scale, from runs to pictures."""

import os
import pathlib
import subprocess
import sys

import pytest

from epe_jax import io
from epe_jax.audit import attackers
from epe_jax.experiment import finished_runs
from epe_jax.experiment.sweeps import sweep
from epe_jax.report import tables
from papers import files, registry, reported
from papers.item import Product, from_training
from papers.one_shot import noise_tables
from tests.in_process import run_script

_REPORTED = reported.Reported('papers.one_shot')
ROOT = pathlib.Path(__file__).parents[2]
# What other tests cover too, by the experiment.
_SLOW = {
  *('emnist', 'runs', 'accuracy', 'emnist_accuracy'),
  *(
    f'tight_{name}'
    for name in (
      *('table1_simulated', 'table1', 'gradient_canaries', 'input_canaries'),
      *('inputs_by_epsilon', 'clipped_black_box', 'black_box', 'depths'),
      *('augmentations', 'trained_bugs', 'convnet'),
    )
  ),
}


def group_items():
  """Items that share runs, and those of a paper that need none: one call each."""
  groups = {}
  for name, item in registry.ITEMS.items():
    experiment = item.experiment
    alone = experiment.data or experiment.name in _SLOW
    key = experiment.name if alone else name.rpartition(':')[0]
    groups.setdefault(key, []).append(name)
  return [
    pytest.param(
      names, id=key or 'one_shot', marks=[pytest.mark.slow] * (key in _SLOW)
    )
    for key, names in groups.items()
  ]


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


def test_list_names_everything():
  done = run_script('reproduce', '--list')
  assert done.returncode == 0
  named = [line.split()[0] for line in done.stdout.splitlines()]
  assert named == list(registry.ITEMS)


def test_an_unknown_item_is_an_error_that_names_the_others():
  done = run_script('reproduce', 'table9')
  assert done.returncode != 0
  assert "'table9' is not an item" in done.stderr
  assert 'emnist_bars' in done.stderr


def test_items_of_both_papers_are_known_by_their_names():
  assert registry.select_items(['one_shot:all']) == [
    name for name in registry.ITEMS if ':' not in name
  ]
  assert registry.select_items(['all']) == list(registry.ITEMS)
  tight = registry.select_items(['tight:all'])
  assert tight[0] == 'tight:figure3'
  assert all(name.startswith('tight:') for name in tight)
  for wrong in ('figure3', 'tight:algorithm1', 'other:figure3', 'other:all'):
    with pytest.raises(ValueError, match='is not an item'):
      registry.select_items([wrong])


def test_an_item_that_trains_does_so_in_the_folder_of_its_experiment(
  monkeypatch, tmp_path
):
  calls = []

  def train(settings, folder, data):
    calls.append((settings.num, folder, data))
    return 'scores of a game'

  def make(runs):
    table = tables.Table('Scores', ['what'], [[runs]])
    return Product([table], {})

  experiment = registry.ITEMS['tight:figure4'].experiment
  item = from_training(
    'A game',
    'Figure 6',
    experiment._replace(data=('cifar10',)),
    train,
    make,
  )
  monkeypatch.setitem(registry.ITEMS, 'tight:figure4', item)
  arguments = (
    'reproduce',
    'tight:figure4',
    '--scale=smoke',
    f'--workdir={tmp_path}',
    '--data=cifar10=/there/images.tar',
  )
  done = run_script(*arguments)
  assert done.returncode == 0, done.stderr
  (call,) = calls
  assert call == (
    5000,
    tmp_path / 'smoke' / 'runs' / 'tight_figure4',
    {'cifar10': pathlib.Path('/there/images.tar')},
  )
  made = tmp_path / 'smoke' / 'tight' / 'figure4' / 'item.json'
  record = io.read_json(made)
  assert record['tables'][0]['body'] == [['scores of a game']]
  assert record['command'].endswith('--data=cifar10=images.tar')
  assert record['processor']
  assert {'commit', 'minutes'} <= record.keys()
  # The same command again adds to the minutes that its runs took.
  io.write_json(made, {**record, 'minutes': 7.25})
  assert run_script(*arguments).returncode == 0
  assert io.read_json(made)['minutes'] == pytest.approx(7.25, abs=0.3)
  done = run_script('reproduce', 'tight:figure4', '--data=cifar10')
  assert 'give NAME=PATH' in done.stderr
  done = run_script('reproduce', 'tight:figure4', '--data=cifar=/there')
  assert "tight:figure4 reads no 'cifar'; give one of cifar10." in done.stderr


def test_a_table_needs_the_runs_of_its_own_lines_alone(monkeypatch, tmp_path):
  grids = []

  def run_sweep(points, folder, **_):
    grids.append((points, folder))
    raise ValueError('enough')

  monkeypatch.setattr(sweep, 'run_sweep', run_sweep)
  given = ('--scale=paper', '--emnist=digits.sqlite', '--emnist_only_digits')
  for name in ('emnist', 'emnist_bars'):
    done = run_script('reproduce', name, *given, f'--workdir={tmp_path}')
    assert 'enough' in done.stderr
  (once, folder), (several, shared) = grids
  assert folder == shared
  assert [p.config.canaries.repetitions for p in once] == [1, 1, 1, 1]
  assert len({p.config.noise_multiplier for p in once}) == 4
  assert {p.name for p in once} < {p.name for p in several}
  assert all(p.config.data.only_digits for p in several)


def test_a_scale_or_a_field_that_an_item_has_not_is_refused(tmp_path):
  workdir = f'--workdir={tmp_path}'
  done = run_script('reproduce', 'emnist', '--scale=medium', workdir)
  assert '--scale=medium has no emnist, but stackoverflow' in done.stderr
  done = run_script('reproduce', 'algorithm1', '--field=rounds=3', workdir)
  assert '--field=rounds=3, but algorithm1' in done.stderr
  done = run_script('reproduce', 'emnist', '--field=rounds', workdir)
  assert 'give NAME=VALUE' in done.stderr
  assert not list(tmp_path.iterdir())


def test_without_data_the_flag_is_named(tmp_path):
  done = run_script('reproduce', 'emnist', f'--workdir={tmp_path}')
  assert done.returncode == 1
  assert '--emnist is not given' in done.stderr


@pytest.mark.integration
@pytest.mark.parametrize('names', group_items())
def test_every_item_is_made_at_smoke_scale(names, tmp_path):
  done = reproduce(*names, '--scale=smoke', f'--workdir={tmp_path}')
  assert done.returncode == 0, done.stderr
  made = tmp_path / 'smoke'
  for name in names:
    assert registry.ITEMS[name].title in done.stdout
    folder = made / registry.folder_of(name)
    record = io.read_json(folder / 'item.json')
    assert record['scale'] == 'smoke'
    assert record['tables']
    for table in record['tables']:
      assert table['body']
      assert {len(row) for row in table['body']} == {len(table['head'])}
    for suffix in ('txt', 'md', 'tex'):
      assert (folder / f'table.{suffix}').stat().st_size > 200
    for drawn in record['figures']:
      assert (folder / f'{drawn}.png').read_bytes()[:4] == b'\x89PNG'
      assert (folder / f'{drawn}.pdf').read_bytes()[:4] == b'%PDF'
  index = files.format_index(made, link='somewhere')
  for name in names:
    assert f'](somewhere/{registry.folder_of(name)}/index.md)' in index
    record = io.read_json(made / registry.folder_of(name) / 'item.json')
    page = files.format_item(name, record)
    assert f'reproduce.py {name} --scale=smoke' in page
  if 'emnist' in names:
    check_the_laws(made)


def check_the_laws(made):
  """What must hold of any grid, however small."""
  rows = io.read_json(made / 'emnist' / 'item.json')['tables'][0]['body']
  quiet, noisy = rows
  assert quiet[:2] == ['0', '∞ (∞)']
  assert noisy[1].endswith('(300.0)')
  for folder in (made / 'runs' / 'emnist').glob('*repetitions=1'):
    run = finished_runs.load_finished_run(folder)
    expected = noise_tables.predict_own_round(run)
    own = run.result.audit.find_first(attackers.OWN)
    low, high = own.interval
    # Twice as wide as the interval: eight canaries, one draw.
    half = (high - low) / 2
    assert low - half < expected < high + half, folder


def test_a_page_begins_with_cautions_and_what_made_it():
  notes = ['Data: digits.', 'Caution: it did not learn.']
  record = {
    'scale': 'paper',
    'command': 'python scripts/reproduce.py emnist',
    'versions': {'epe_jax': '0.1.0', 'device': '1 x cpu'},
    'tables': [tables.Table('ε', ['z'], [['0']], notes)._asdict()] * 2,
    'figures': [],
  }
  page = files.format_item('emnist', record)
  title, caution, _, _, origin, *rest = page.split('\n\n')
  assert title.startswith('# ')
  assert caution == '**Caution: it did not learn.**'
  assert origin == 'Made by epe_jax 0.1.0.'
  assert 'Caution' not in ''.join(rest)
  record |= {'processor': 'Xeon', 'commit': 'abc', 'minutes': 3.5}
  made = 'Made by epe_jax 0.1.0, processor Xeon, commit abc, minutes 3.5.'
  assert made in files.format_item('emnist', record)


def test_the_paper_scale_has_the_noise_levels_and_settings_of_the_paper():
  settings = {
    name: registry.ITEMS[name].experiment.load('paper')
    for name in ('stackoverflow', 'emnist', 'emnist_5x34', 'accuracy')
  }
  for name, grid in settings.items():
    noises = [row['noise'] for row in _REPORTED.load_rows(name)]
    assert list(grid.axes[0][1]) == noises
    of_text = name in ('stackoverflow', 'accuracy')
    sphere = [{'canaries': {'family': 'sphere'}}] if of_text else []
    assert [some for some in grid.sets if some] == sphere
  noises, repetitions = settings['stackoverflow'].axes
  for row in _REPORTED.load_rows('anderson'):
    assert row['noise'] in noises[1]
    assert row['repetitions'] in repetitions[1]
