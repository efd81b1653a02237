"""Imports: each is made once, and has a place of its own."""

import os

import numpy as np
import pytest

from epe_jax.data import decoding, imports, sources, store


def test_an_import_has_its_place_by_file_part_and_key(tmp_path, monkeypatch):
  file = tmp_path / 'f.sqlite'
  file.write_bytes(b'x')

  def place(part='train', key=1, cache='c'):
    return imports.place(file, part, key=key, cache=cache)

  first = place()
  assert first == place()
  assert str(first.parent) == 'c'
  assert first.name.startswith('f-train-')
  places = {first, place(part='test'), place(key=2)}
  os.utime(file, ns=(1, 1))
  places.add(place())
  file.write_bytes(b'xy')
  os.utime(file, ns=(1, 1))
  places.add(place())
  assert len(places) == 5
  monkeypatch.setenv('XDG_CACHE_HOME', '/xdg')
  assert str(place(cache=None).parent) == '/xdg/epe_jax'
  monkeypatch.delenv('XDG_CACHE_HOME')
  monkeypatch.setenv('HOME', '/home')
  assert str(place(cache=None).parent) == '/home/.cache/epe_jax'


def test_a_folder_is_another_when_a_file_in_it_is(tmp_path):
  (tmp_path / 'a').mkdir()
  (tmp_path / 'a' / 'x').write_text('x')
  found = {imports.fingerprint(tmp_path)}
  (tmp_path / 'a' / 'x').rename(tmp_path / 'a' / 'y')
  found.add(imports.fingerprint(tmp_path))
  os.utime(tmp_path / 'a' / 'y', ns=(1, 1))
  found.add(imports.fingerprint(tmp_path))
  assert len(found) == 3
  assert imports.fingerprint(tmp_path) in found
  with pytest.raises(FileNotFoundError, match='nowhere does not exist'):
    imports.fingerprint(tmp_path / 'nowhere')


def _source(*client_ids):
  def read(split, features, after):
    for client_id in client_ids:
      yield client_id, {'x': np.arange(3)}

  splits = {'train': sources.Split(len(client_ids), None)}
  return sources.Source('a test', splits, read, sources.decode_columns)


_RECIPE = decoding.Recipe({'x': (np.int64, ())}, dict, {'recipe': 'numbers'})


def test_the_manifest_says_what_was_imported_and_how(tmp_path):
  path = tmp_path / 'train'
  imports.written(path, _source('a'), 'train', _RECIPE, meta={'more': 1})
  manifest = store.manifest(path)
  assert manifest['source'] == "a test, split 'train'"
  assert manifest['meta'] == {'recipe': 'numbers', 'more': 1}
  # What is there is not read again.
  again = imports.written(path, _source('b'), 'train', _RECIPE)
  assert again.client_ids.tolist() == ['a']


def test_a_prepared_folder_is_one_of_stores_with_what_is_expected(tmp_path):
  assert not imports.is_prepared(tmp_path)
  imports.written(tmp_path / 'train', _source('a'), 'train', _RECIPE)
  assert imports.is_prepared(tmp_path)
  data = imports.prepared(tmp_path, 'train', {'recipe': 'numbers'})
  assert data.client_ids.tolist() == ['a']
  with pytest.raises(ValueError, match=r"no split 'test', only \['train'\]"):
    imports.prepared(tmp_path, 'test', {})
  message = "with recipe='numbers', not 'words'.*prepare the data anew"
  with pytest.raises(ValueError, match=message):
    imports.prepared(tmp_path, 'train', {'recipe': 'words'})
