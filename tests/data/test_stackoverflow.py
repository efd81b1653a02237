"""StackOverflow: sentences as numbers of words, from any form of the data."""

import sqlite3

import numpy as np
import pytest

from epe_jax.data import imports, stackoverflow, store, vocabulary
from epe_jax.experiment.setup import config as config_lib
from tests import tff_files


def _sentence(tokens):
  return tff_files.example(
    creation_date=tff_files.strings([b'2009-03-01']),
    score=tff_files.ints([-3]),
    tokens=tff_files.strings([tokens.encode()]),
  )


_ROWS = [
  ('train', 'b', _sentence('to be or not to be')),
  ('heldout', 'c', _sentence('be quick')),
  ('train', 'a', _sentence('to')),
  ('test', 'a', _sentence('to be or not to be')),
]
_SIZES = {'vocabulary_size': 3, 'max_words': 4}


@pytest.fixture(name='file')
def _file(tmp_path):
  return tff_files.write(tmp_path / 'so.sqlite', _ROWS)


def test_the_words_of_train_are_counted_and_sentences_numbered(tmp_path, file):
  train, test, words = stackoverflow.load(file, cache=tmp_path, **_SIZES)
  # 'not' and 'or' are as frequent: in their order.
  assert words == ('to', 'be', 'not')
  assert train.client_ids.tolist() == ['a', 'b']
  assert train.columns['words'].dtype == np.int16
  assert train.columns['words'].tolist() == [[1, 0, 0, 0], [1, 2, 4, 3]]
  assert test.columns['words'].tolist() == [[2, 4, 0, 0]]
  _, later, _ = stackoverflow.load(
    file, cache=tmp_path, test_split='test', **_SIZES
  )
  assert later.columns['words'].tolist() == [[1, 2, 4, 3]]


def test_a_run_takes_as_many_clients_of_a_file_as_its_config_says(
  tmp_path, file
):
  config = config_lib.load_config('stackoverflow:smoke')
  config.data.update(path=str(file), cache=str(tmp_path), vocabulary_size=3)
  for num, ids in ((1, ['a']), (3, ['a', 'b']), (None, ['a', 'b'])):
    config.data.num_clients = num
    assert stackoverflow.load_workload(config).train.client_ids.tolist() == ids


def test_a_file_is_imported_once_for_each_vocabulary_and_length(
  tmp_path, file, monkeypatch
):
  cache = tmp_path / 'cache'
  train, _, words = stackoverflow.load(file, cache=cache, **_SIZES)
  with monkeypatch.context() as patch:
    patch.setattr(sqlite3, 'connect', None)
    again, _, same = stackoverflow.load(file, cache=cache, **_SIZES)
  assert not again.columns['words'].flags.owndata
  assert again.columns['words'].tolist() == train.columns['words'].tolist()
  assert same == words
  shorter, _, _ = stackoverflow.load(
    file, vocabulary_size=3, max_words=1, cache=cache
  )
  assert shorter.columns['words'].tolist() == [[1], [1]]
  _, _, fewer = stackoverflow.load(
    file, vocabulary_size=1, max_words=4, cache=cache
  )
  assert fewer == ('to',)


def test_a_prepared_folder_gives_the_same_as_its_source(tmp_path, file):
  out = tmp_path / 'out'
  list(imports.import_(file, out, text=vocabulary.Text(3, 4)))
  prepared = stackoverflow.load(out, **_SIZES)
  imported = stackoverflow.load(file, cache=tmp_path / 'cache', **_SIZES)
  assert prepared[2] == imported[2]
  for a, b in zip(prepared[:2], imported[:2]):
    assert a.client_ids.tolist() == b.client_ids.tolist()
    assert a.columns['words'].tolist() == b.columns['words'].tolist()
  assert store.read_header(out / 'train.arrow').meta['vocabulary'] == [
    *prepared[2]
  ]


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'vocabulary_size': 4}, 'prepared with vocabulary_size=3, not 4'),
    ({'max_words': 5}, 'prepared with max_words=4, not 5'),
    ({'test_split': 'spare'}, r"no split 'spare', only \['heldout', 'test', "),
  ],
)
def test_a_folder_prepared_otherwise_is_refused(
  tmp_path, file, change, message
):
  out = tmp_path / 'out'
  list(imports.import_(file, out, text=vocabulary.Text(3, 4)))
  with pytest.raises(ValueError, match=message):
    stackoverflow.load(out, **(_SIZES | change))
  counts = tmp_path / 'word_count'
  counts.write_text('be 9\nto 5\nor 1\n')
  with pytest.raises(ValueError, match=r"vocabulary=\['to', 'be', 'not'\], no"):
    stackoverflow.load(out, word_count=counts, **_SIZES)


def test_splits_prepared_with_different_words_do_not_go_together(
  tmp_path, file
):
  counts = tmp_path / 'word_count'
  counts.write_text('be 9\nto 5\nor 1\n')
  out = tmp_path / 'out'
  text = vocabulary.Text(3, 4)
  list(imports.import_(file, out, splits=['train'], text=text))
  text = text._replace(word_count=counts)
  list(imports.import_(file, out, splits=['heldout'], text=text))
  with pytest.raises(ValueError, match='prepared with different vocabularies'):
    stackoverflow.load(out, **_SIZES)


def test_a_wrong_sentence_and_a_wrong_setting_are_refused(tmp_path):
  blob = tff_files.example(tokens=tff_files.strings([b'to \xff']))
  rows = [*_ROWS, ('heldout', 'c', blob)]
  file = tff_files.write(tmp_path / 'f.sqlite', rows)
  message = f"{file}, split 'heldout', client 'c', row 1: .* is not UTF-8"
  with pytest.raises(ValueError, match=message):
    stackoverflow.load(file, cache=tmp_path, **_SIZES)
  with pytest.raises(ValueError, match='max_words=0 is not positive'):
    stackoverflow.load(file, vocabulary_size=3, max_words=0, cache=tmp_path)
