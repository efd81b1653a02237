"""Imports: each is made once, and its folder says of what."""

import os

import numpy as np
import pytest

from epe_jax.data import decoding, imports, sources, store


def _read(split):
  yield 'a', {'x': np.arange(3)}
  yield 'b', {'x': np.arange(2)}


_SOURCE = sources.Source(
  name='a test',
  splits={'train': sources.Split(2, 5), 'test': sources.Split(2, 5)},
  read=_read,
  decode=sources.decode_columns,
  features={'x': (np.int64, ())},
)


def _make_recipes(*options):
  recipe = decoding.Recipe({'x': (np.int64, ())}, dict, {'recipe': 'numbers'})
  return lambda split: recipe


def test_a_run_has_a_folder_in_its_cache_for_a_file_and_its_settings(
  tmp_path, monkeypatch
):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'xdg'))
  file = tmp_path / 'f.npz'
  np.savez(file, client_id=[1, 2], x=[3, 4])

  def locate(**settings):
    return imports.locate(file, ['train'], _make_recipes, **settings)

  first = locate(cache=tmp_path / 'c')
  assert first.parent == tmp_path / 'c'
  assert first.name.startswith('f-')
  assert first == locate(cache=tmp_path / 'c')
  data = imports.load_split(first, 'train', {'recipe': 'numbers'})
  assert data.columns['x'].tolist() == [3, 4]
  os.utime(file, ns=(1, 1))
  assert locate(cache=tmp_path / 'c') != first
  assert locate().parent == tmp_path / 'xdg' / 'epe_jax'
  assert imports.locate(first, ['train'], _make_recipes) == first


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


def test_the_owner_alone_reads_what_was_imported(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  cache = tmp_path / 'epe_jax'
  # Of an older version.
  cache.mkdir(mode=0o755)
  modes = []

  def read(split):
    for client in _read(split):
      (staging,) = cache.glob('*/.*.staging')
      modes.append(staging.stat().st_mode & 0o777)
      yield client

  source = _SOURCE._replace(read=read)
  folder = imports.locate(source, ['train'], _make_recipes)
  assert set(modes) == {0o700}
  path = imports.locate_split(folder, 'train')
  assert path.stat().st_mode & 0o777 == 0o600
  assert cache.stat().st_mode & 0o777 == 0o700


def test_the_header_says_what_was_imported_and_how(tmp_path):
  written = list(imports.import_(_SOURCE, tmp_path, splits=['train']))
  assert [w[:3] for w in written] == [('train', 2, 5)]
  header = store.read_header(tmp_path / 'train.arrow')
  assert header.source == "a test, split 'train'"
  assert header.meta['recipe'] == 'arrays'
  # What is there is not read again.
  unread = _SOURCE._replace(read=lambda split: pytest.fail('read'))
  ((*_, seconds),) = imports.import_(unread, tmp_path, splits=['train'])
  assert not seconds


def test_a_prepared_folder_is_one_of_stores_with_what_is_expected(tmp_path):
  assert not imports.is_prepared(tmp_path)
  list(imports.import_(_SOURCE, tmp_path, splits=['train']))
  assert imports.is_prepared(tmp_path)
  data = imports.load_split(tmp_path, 'train', {'recipe': 'arrays'})
  assert data.client_ids.tolist() == ['a', 'b']
  with pytest.raises(ValueError, match=r"no split 'test', only \['train'\]"):
    imports.load_split(tmp_path, 'test', {})
  message = "with recipe='arrays', not 'words'.*prepare the data again"
  with pytest.raises(ValueError, match=message):
    imports.load_split(tmp_path, 'train', {'recipe': 'words'})
