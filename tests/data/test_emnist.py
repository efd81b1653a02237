"""EMNIST: imported once from TFF's file, then mapped."""

import os
import pathlib
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

from epe_jax.data import emnist, store
from epe_jax.data.formats import tff
from tests import tff_files

_ROWS = [
  ('all_train', 'b', tff_files.image(3, 0.25)),
  ('all_test', 'a', tff_files.image(60)),
  ('all_train', 'a', tff_files.image(61, 0.5)),
  ('all_train', 'b', tff_files.image(1)),
]


def test_emnist_is_imported_once_and_then_mapped(tmp_path, monkeypatch):
  path = tff_files.write(tmp_path / 'f.sqlite', _ROWS)
  cache = tmp_path / 'cache'
  train, test = emnist.load(path, only_digits=False, cache=cache)
  assert train.client_ids.tolist() == ['a', 'b']
  assert test.client_ids.tolist() == ['a']
  assert train.columns['label'].tolist() == [61, 3, 1]
  assert train.columns['pixels'].shape == (3, 28, 28)

  with monkeypatch.context() as patch:
    patch.setattr(sqlite3, 'connect', None)
    again, _ = emnist.load(path, only_digits=False, cache=cache)
  assert not again.columns['pixels'].flags.owndata
  np.testing.assert_array_equal(
    again.columns['pixels'], train.columns['pixels']
  )


def test_a_changed_file_is_imported_anew(tmp_path):
  path = tff_files.write(tmp_path / 'f.sqlite', _ROWS)
  emnist.load(path, only_digits=False, cache=tmp_path)
  path.unlink()
  rows = [*_ROWS, ('all_train', 'c', tff_files.image(7))]
  tff_files.write(path, rows)
  os.utime(path, ns=(1, 1))
  train, _ = emnist.load(path, only_digits=False, cache=tmp_path)
  assert train.num_clients == 3


@pytest.mark.parametrize(
  ('only_digits', 'label', 'bound'),
  [(True, 10, 10), (True, -1, 10), (False, 62, 62)],
)
def test_a_label_out_of_range_is_refused(tmp_path, only_digits, label, bound):
  kind = 'digits_only' if only_digits else 'all'
  splits = {f'{kind}_train': label, f'{kind}_test': 1}
  rows = [(split, 'a', tff_files.image(splits[split])) for split in splits]
  path = tff_files.write(tmp_path / 'f.sqlite', rows)
  message = rf"client 'a', row 0: label {label} is not in \[0, {bound}\)"
  with pytest.raises(ValueError, match=message):
    emnist.load(path, only_digits=only_digits, cache=tmp_path / 'cache')
  assert not list((tmp_path / 'cache').rglob('*.arrow'))


@pytest.mark.parametrize(
  ('value', 'said'),
  [
    (np.nan, "feature 'pixels' is nan, which is not finite"),
    (255.0, r'a pixel is 255\.0, not in \[0, 1\]'),
  ],
)
def test_pixels_that_are_none_are_refused_with_their_place(
  tmp_path, value, said
):
  rows = [
    ('digits_only_train', 'ann', tff_files.image(1)),
    ('digits_only_train', 'bob', tff_files.image(1)),
    ('digits_only_train', 'bob', tff_files.image(1, value=value)),
    ('digits_only_test', 'ann', tff_files.image(1)),
  ]
  path = tff_files.write(tmp_path / 'f.sqlite', rows)
  place = f"{path}, split 'digits_only_train', client 'bob', row 1: "
  with pytest.raises(ValueError, match=f'{place}{said}'):
    emnist.load(path, only_digits=True, cache=tmp_path / 'cache')
  assert not list((tmp_path / 'cache').rglob('*.arrow'))


@pytest.mark.integration
def test_processes_that_import_at_once_agree(tmp_path):
  rows = [
    (f'all_{part}', f'c{i:03}', tff_files.image(i % 62, i / 400))
    for part in ('train', 'test')
    for i in range(400)
  ]
  path = tff_files.write(tmp_path / 'f.sqlite', rows)
  program = (
    'import sys; from epe_jax.data import emnist; '
    'print("ready", flush=True); sys.stdin.readline(); '
    'a, b = emnist.load(sys.argv[1], only_digits=False, cache=sys.argv[2]); '
    'print(a.num_examples, b.num_examples)'
  )
  command = [sys.executable, '-c', program, path, tmp_path / 'cache']
  processes = [
    subprocess.Popen(
      command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    for _ in range(3)
  ]
  for process in processes:
    assert process.stdout.readline() == 'ready\n'
  for process in processes:
    process.stdin.write('go\n')
    process.stdin.flush()
  answers = [process.communicate()[0] for process in processes]
  assert answers == ['400 400\n'] * 3
  stores = list((tmp_path / 'cache').rglob('*.arrow'))
  assert len(stores) == 2
  for path in stores:
    store.verify(path)


@pytest.mark.slow
@pytest.mark.skipif('EMNIST_SQLITE' not in os.environ, reason='no such file')
@pytest.mark.parametrize('only_digits', [True, False])
def test_the_file_named_by_the_environment_is_read_in_full(
  tmp_path, only_digits
):
  path = pathlib.Path(os.environ['EMNIST_SQLITE'])
  train, test = emnist.load(path, only_digits=only_digits, cache=tmp_path)
  kind, classes = ('digits_only', 10) if only_digits else ('all', 62)
  with tff.open_source(path) as source:
    counts = source.splits
  assert (train.num_clients, train.num_examples) == counts[f'{kind}_train']
  assert (test.num_clients, test.num_examples) == counts[f'{kind}_test']
  assert set(np.unique(train.columns['label'])) <= set(range(classes))
  pixels = train.columns['pixels']
  assert pixels.min() >= 0
  # The background is 1, and it is most of an image's border.
  assert pixels.max() == 1
  assert np.median(pixels[:, 0]) == 1
