"""Preparing data: any source becomes a folder of stores, once."""

import functools
import lzma
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from epe_jax.data import (
  data_sets,
  emnist,
  imports,
  sources,
  store,
  vocabulary,
)
from tests import tff_files
from tests.in_process import run_command

_IMAGES = [
  ('all_train', 'b', tff_files.image(3, 0.25)),
  ('all_test', 'a', tff_files.image(60)),
  ('all_train', 'a', tff_files.image(61, 0.5)),
  ('digits_only_train', 'a', tff_files.image(9)),
]


def _files(path):
  return {
    str(file.relative_to(path)): file.read_bytes()
    for file in sorted(path.rglob('*'))
    if file.is_file()
  }


def test_every_split_becomes_a_store_that_runs_are_fed_from(tmp_path):
  file = tff_files.write(tmp_path / 'f.sqlite', _IMAGES)
  written = list(imports.import_(file, tmp_path / 'out'))
  found = {w.split: (w.clients, w.examples) for w in written}
  assert found == {
    'all_test': (1, 1),
    'all_train': (2, 2),
    'digits_only_train': (1, 1),
  }
  for w in written:
    assert w.seconds > 0
    assert w.bytes == (tmp_path / 'out' / f'{w.split}.arrow').stat().st_size
  train, test = emnist.load(tmp_path / 'out', only_digits=False)
  assert train.columns['label'].tolist() == [61, 3]
  assert test.columns['label'].tolist() == [60]
  with pytest.raises(ValueError, match="has no split 'digits_only_test'"):
    emnist.load(tmp_path / 'out', only_digits=True)


def test_finished_splits_are_left_and_missing_ones_are_added(tmp_path):
  file = tff_files.write(tmp_path / 'f.sqlite', _IMAGES)
  list(imports.import_(file, tmp_path / 'out', splits=['all_test']))
  before = (tmp_path / 'out' / 'all_test.arrow').stat().st_mtime_ns
  written = list(imports.import_(file, tmp_path / 'out'))
  assert [w.seconds > 0 for w in written] == [False, True, True]
  assert (tmp_path / 'out' / 'all_test.arrow').stat().st_mtime_ns == before


def test_another_file_or_recipe_is_not_taken_for_the_same(tmp_path):
  rows = [('train', 'a', tff_files.example(tokens=tff_files.strings([b'a b'])))]
  file = tff_files.write(tmp_path / 'f.sqlite', rows)
  list(imports.import_(file, tmp_path / 'out', text=vocabulary.Text(1, 4)))
  with pytest.raises(ValueError, match='exists, but max_words was another'):
    list(imports.import_(file, tmp_path / 'out', text=vocabulary.Text(1, 5)))
  os.utime(file, ns=(1, 1))
  with pytest.raises(ValueError, match='exists, but the file was another'):
    list(imports.import_(file, tmp_path / 'out', text=vocabulary.Text(1, 4)))


@pytest.mark.parametrize('split', ['../all_train', '.x', ''])
def test_a_split_cannot_lead_out_of_the_folder(tmp_path, split):
  rows = [(split, 'a', tff_files.image(1))]
  file = tff_files.write(tmp_path / 'f.sqlite', rows)
  with pytest.raises(ValueError, match=r'cannot be the name of a file'):
    list(imports.import_(file, tmp_path / 'out'))
  assert not (tmp_path / 'out').exists()


def test_a_split_that_is_not_there_is_refused(tmp_path):
  file = tff_files.write(tmp_path / 'f.sqlite', _IMAGES)
  with pytest.raises(ValueError, match=r"no split 'x', only \['all_test',"):
    list(imports.import_(file, tmp_path / 'out', splits=['x']))


def test_arrays_are_written_as_they_are(tmp_path):
  path = tmp_path / 'f.npz'
  age = np.arange(6, dtype=np.int16).reshape(3, 2)
  np.savez(path, client_id=np.array([7, 5, 7]), age=age, ok=age[:, 0] > 0)
  (written,) = imports.import_(path, tmp_path / 'out')
  assert written[:3] == ('train', 2, 3)
  data = store.load(tmp_path / 'out' / 'train.arrow')
  assert data.client_ids.tolist() == ['5', '7']
  assert data.client(1)['age'].tolist() == [[0, 1], [4, 5]]
  assert data.columns['age'].dtype == np.int16
  assert data.columns['ok'].tolist() == [True, False, True]


def test_a_source_that_knows_no_features_is_asked_for_an_example(tmp_path):
  # The first row of the file is damaged, and that of the first client is not.
  rows = [('all_train', 'b', tff_files.image(1)[:-1]), *_IMAGES[2:3]]
  file = tff_files.write(tmp_path / 'f.sqlite', rows)
  with sources.open_source(file) as source:
    assert source.features is None
  with pytest.raises(ValueError, match="'all_train', client 'b', row 0"):
    list(imports.import_(file, tmp_path / 'out'))


def test_the_public_file_is_known_by_its_counts(tmp_path, monkeypatch):
  file = tff_files.write(tmp_path / 'f.sqlite', _IMAGES)
  with pytest.raises(ValueError, match=r"not the public file.*'all_test'"):
    next(imports.import_(file, tmp_path / 'out', public='emnist'))
  assert not (tmp_path / 'out').exists()
  counts = {
    'all_test': sources.Split(1, 1),
    'all_train': sources.Split(2, 2),
    'digits_only_train': sources.Split(1, 1),
  }
  public = data_sets.Download((data_sets.PublicFile('f'),), counts)
  monkeypatch.setitem(emnist.DATA_SET.downloads, 'emnist', public)
  assert len([*imports.import_(file, tmp_path / 'out', public='emnist')]) == 3


_GENERATOR = """
import numpy as np

def rows():
  for n in range(6):
    yield f'user{n % 3}', {'x': np.array([n, n + 10])}

number = 3
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
  """The working directory, which programs see as their users do."""
  monkeypatch.chdir(tmp_path)
  return tmp_path


def test_the_script_takes_a_function_and_says_what_it_wrote(here):
  (here / 'mine.py').write_text(_GENERATOR)
  done = run_command('data', 'mine:rows', '--out=out', '--workers=1')
  assert done.returncode == 0, done.stderr
  assert done.stdout.startswith('train: 3 clients, 12 examples, ')
  data = store.load(here / 'out' / 'train.arrow')
  assert data.client_ids.tolist() == ['user0', 'user1', 'user2']
  assert data.client(2)['x'].tolist() == [2, 12, 5, 15]
  again = run_command('data', 'mine:rows', '--out=out', '--workers=0')
  assert again.stdout.endswith('0.0 s (was there)\n')


def test_the_script_says_what_is_understood(here):
  (here / 'f.txt').write_text('no data')
  done = run_command('data', 'f.txt', '--out=out')
  assert done.returncode == 2
  assert done.stderr.startswith('error: f.txt has no known format. Give one of')
  for form in ('sqlite', '.h5', 'TFDS', '.npz', 'package.module:'):
    assert form in done.stderr
  assert not (here / 'out').exists()


def test_the_script_fetches_no_public_file_that_is_there(here):
  plain = tff_files.write(here / 'f.sqlite', _IMAGES)
  public = here / 'out' / 'public'
  public.mkdir(parents=True)
  raw = lzma.compress(plain.read_bytes(), lzma.FORMAT_ALONE)
  (public / 'emnist_all.sqlite.lzma').write_bytes(raw)
  fetch = functools.partial(run_command, 'data', '--download=emnist')
  done = fetch('--out=out')
  assert done.returncode == 2
  assert done.stderr.startswith('error: emnist: this is not the public file')
  both = fetch('--out=out', 'f.sqlite')
  assert 'give one source, or --download' in both.stderr


def test_an_import_that_was_killed_goes_on_and_ends_the_same(tmp_path):
  rows = [
    (
      'train',
      f'{i:03}',
      tff_files.example(tokens=tff_files.strings([b'a b c'])),
    )
    for i in range(300)
  ]
  file = tff_files.write(tmp_path / 'f.sqlite', rows)
  program = """
import os, signal, sys
from epe_jax import io
from epe_jax.data import imports, store, vocabulary
store.PART_BYTES = 100
write, saved = io.write_json, []

def killing(path, *args, **settings):
  write(path, *args, **settings)
  saved.append(path)
  if len(saved) == 3:
    os.kill(os.getpid(), signal.SIGKILL)

io.write_json = killing
if __name__ == '__main__':
  list(imports.import_(
    sys.argv[1], sys.argv[2], text=vocabulary.Text(3, 4), workers=1
  ))
"""
  (tmp_path / 'killed.py').write_text(program)
  out = tmp_path / 'out'
  command = [sys.executable, tmp_path / 'killed.py', file, out]
  assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
  assert not imports.is_prepared(out)
  assert (out / '.train.arrow.staging').exists()
  list(imports.import_(file, out, text=vocabulary.Text(3, 4)))
  list(imports.import_(file, tmp_path / 'whole', text=vocabulary.Text(3, 4)))
  assert _files(out) == _files(tmp_path / 'whole')


@pytest.mark.parametrize(
  ('name', 'content'),
  [
    ('sqlite', b'SQLite format 3\0'),
    ('lzma', b']\0\0'),
    ('h5', b'\x89HDF\r\n\x1a\n'),
    ('npz', b'PK\3\4'),
  ],
)
def test_a_file_is_opened_by_what_is_in_it(tmp_path, name, content):
  # Each module has its own words for a file that has a head and no more.
  path = tmp_path / f'f.{"lzma" if name == "lzma" else "data"}'
  path.write_bytes(content)
  with (
    pytest.raises(ValueError, match=str(path)) as caught,
    sources.open_source(path),
  ):
    pass
  assert 'no known format' not in str(caught.value)


def test_folders_and_functions_are_told_apart(tmp_path):
  with pytest.raises(ValueError, match='no known format'):
    sources.open_source(tmp_path)
  with pytest.raises(FileNotFoundError, match=r'does not exist\. Give one of'):
    sources.open_source(tmp_path / 'a:b')
  with pytest.raises(ValueError, match='no_such:f cannot be imported'):
    sources.open_source('no_such:f')
  with pytest.raises(ValueError, match='epe_jax:__version__ is a str, not'):
    sources.open_source('epe_jax:__version__')
