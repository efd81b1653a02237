"""Imports: each is made once, and has a cache path of its own."""

import os

import numpy as np
import pytest

from epe_jax.data import decoding, imports, sources, store


def test_a_cache_path_is_that_of_a_file_a_part_and_a_key(tmp_path, monkeypatch):
  file = tmp_path / 'f.sqlite'
  file.write_bytes(b'x')

  def choose(part='train', key=1, cache='c'):
    return imports.choose_cache_path(file, part, key=key, cache=cache)

  first = choose()
  assert first == choose()
  assert str(first.parent) == 'c'
  assert first.name.startswith('f-train-')
  assert first.suffix == '.arrow'
  paths = {first, choose(part='test'), choose(key=2)}
  os.utime(file, ns=(1, 1))
  paths.add(choose())
  file.write_bytes(b'xy')
  os.utime(file, ns=(1, 1))
  paths.add(choose())
  assert len(paths) == 5
  monkeypatch.setenv('XDG_CACHE_HOME', '/xdg')
  assert str(choose(cache=None).parent) == '/xdg/epe_jax'
  monkeypatch.delenv('XDG_CACHE_HOME')
  monkeypatch.setenv('HOME', '/home')
  assert str(choose(cache=None).parent) == '/home/.cache/epe_jax'


def test_a_folder_is_another_when_a_file_in_it_is(tmp_path):
  (tmp_path / 'a').mkdir()
  (tmp_path / 'a' / 'x').write_text('x')
  found = {imports.compute_fingerprint(tmp_path)}
  (tmp_path / 'a' / 'x').rename(tmp_path / 'a' / 'y')
  found.add(imports.compute_fingerprint(tmp_path))
  os.utime(tmp_path / 'a' / 'y', ns=(1, 1))
  found.add(imports.compute_fingerprint(tmp_path))
  assert len(found) == 3
  assert imports.compute_fingerprint(tmp_path) in found
  with pytest.raises(FileNotFoundError, match='nowhere does not exist'):
    imports.compute_fingerprint(tmp_path / 'nowhere')


def _source(*client_ids):
  def read(split):
    for client_id in client_ids:
      yield client_id, {'x': np.arange(3)}

  splits = {'train': sources.Split(len(client_ids), None)}
  return sources.Source('a test', splits, read, sources.decode_columns)


_RECIPE = decoding.Recipe({'x': (np.int64, ())}, dict, {'recipe': 'numbers'})


def test_the_owner_alone_reads_what_was_imported(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  cache = tmp_path / 'epe_jax'
  # Of an older version.
  cache.mkdir(mode=0o755)
  path = imports.choose_cache_path(_source('a'), 'train', key=0)
  assert path.parent == cache
  modes = []

  def read(split):
    for client_id in ('a', 'b'):
      modes.extend(
        p.stat().st_mode & 0o777 for p in cache.iterdir() if p.is_dir()
      )
      yield client_id, {'x': np.arange(3)}

  imports.import_split(path, _source('a')._replace(read=read), 'train', _RECIPE)
  assert set(modes) == {0o700}
  assert path.stat().st_mode & 0o777 == 0o600
  assert cache.stat().st_mode & 0o777 == 0o700


def test_the_header_says_what_was_imported_and_how(tmp_path):
  path = tmp_path / 'train.arrow'
  imports.import_split(path, _source('a'), 'train', _RECIPE, meta={'more': 1})
  header = store.read_header(path)
  assert header.source == "a test, split 'train'"
  assert header.meta == {'recipe': 'numbers', 'more': 1}
  # What is there is not read again.
  again = imports.import_split(path, _source('b'), 'train', _RECIPE)
  assert again.client_ids.tolist() == ['a']


def test_a_prepared_folder_is_one_of_stores_with_what_is_expected(tmp_path):
  assert not imports.is_prepared(tmp_path)
  imports.import_split(tmp_path / 'train.arrow', _source('a'), 'train', _RECIPE)
  assert imports.is_prepared(tmp_path)
  data = imports.load_prepared(tmp_path, 'train', {'recipe': 'numbers'})
  assert data.client_ids.tolist() == ['a']
  with pytest.raises(ValueError, match=r"no split 'test', only \['train'\]"):
    imports.load_prepared(tmp_path, 'test', {})
  message = "with recipe='numbers', not 'words'.*prepare the data again"
  with pytest.raises(ValueError, match=message):
    imports.load_prepared(tmp_path, 'train', {'recipe': 'words'})
