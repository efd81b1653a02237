"""TFDS data sets are read as they were written, without TensorFlow."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from epe_jax.data import sources
from epe_jax.data.formats import tff
from tests import tff_files

pytest.importorskip('tensorflow_datasets', reason='needs the extra tfds')
pytest.importorskip('array_record', reason='needs the extra tfds')

from epe_jax.data.formats import tfds
from tests import tfds_files


def _post(number):
  return tff_files.example(
    creation_date=tff_files.strings([b'2014-01-21 20:26:05 UTC']),
    score=tff_files.ints([number - 1]),
    tags=tff_files.strings([b'hops|ale']),
    title=tff_files.strings(['Über Hopfen'.encode()]),
    tokens=tff_files.strings([b'beer %d .\xff\0' % number]),
    type=tff_files.strings([b'' if number else b'answer']),
  )


_IMAGES = [
  ('all_train', 'b', tff_files.image(3, 0.1)),
  ('all_test', 'a', tff_files.image(60)),
  ('all_train', 'a', tff_files.image(61, 0.5)),
  ('all_train', 'b', tff_files.image(1, -7e-20)),
  ('all_train', 'ä', tff_files.image(2)),
  ('all_train', 'c', tff_files.image(-(2**63))),
  ('all_train', 'b', tff_files.image(1)),
]
_POSTS = [
  ('train', '00000009', _post(0)),
  ('train', '00000010', _post(1)),
  ('heldout', '00000003', _post(2)),
  ('train', '00000009', _post(3)),
]
_EMNIST = {'label': (np.int64, ()), 'pixels': (np.float32, (28, 28))}
_TEXTS = dict.fromkeys(
  ('creation_date', 'tags', 'title', 'tokens', 'type'), (bytes, ())
)
_CASES = {
  'emnist': (_EMNIST, _IMAGES),
  'stackoverflow': (_TEXTS | {'score': (np.int64, ())}, _POSTS),
}


def _prepared(tmp_path, case='emnist', shard_size=100):
  features, rows = _CASES[case]
  path = tff_files.write(tmp_path / 'f.sqlite', rows)
  with tff.open_source(path) as source:
    return path, tfds_files.write(
      source, features, tmp_path / 'data', shard_size
    )


def _lists(columns):
  return {
    name: (column.dtype, column.shape, column.tolist())
    for name, column in columns.items()
  }


def _read(source, split, features):
  return [
    (client_id, _lists(source.decode(raw, features)))
    for client_id, raw in source.read(split)
  ]


@pytest.mark.parametrize('case', _CASES)
def test_a_data_set_has_the_rows_of_the_file_it_was_prepared_from(
  tmp_path, case
):
  path, directory = _prepared(tmp_path, case)
  features, _ = _CASES[case]
  with tff.open_source(path) as file, tfds.open_source(directory) as source:
    assert source.name == str(directory)
    assert source.features == features
    assert source.splits.keys() == file.splits.keys()
    for split, counts in file.splits.items():
      assert source.splits[split] == (None, counts.examples)
      expected = _read(file, split, features)
      assert len(expected) == counts.clients
      assert _read(source, split, features) == expected


@pytest.mark.parametrize('shard_size', [1, 2, 5, 6])
@pytest.mark.parametrize('batch', [1, 4])
def test_clients_over_many_files_and_batches_are_whole(
  tmp_path, monkeypatch, shard_size, batch
):
  monkeypatch.setattr(tfds, '_BATCH', batch)
  path, directory = _prepared(tmp_path, shard_size=shard_size)
  assert len(list(directory.glob('*all_train*'))) == -(-6 // shard_size)
  features = {'label': (np.int64, ())}
  with tff.open_source(path) as file, tfds.open_source(directory) as source:
    expected = _read(file, 'all_train', features)
    assert _read(source, 'all_train', features) == expected


_WITHOUT_TENSORFLOW = """
import sys
from epe_jax.data.formats import tfds
with tfds.open_source(sys.argv[1]) as source:
  read = source.read('all_train')
  total = sum(len(source.decode(raw, source.features)['label']) for _, raw in read)
print(total, 'tensorflow' in sys.modules)
"""


def test_nothing_imports_tensorflow(tmp_path):
  # A TensorFlow that is installed, and cannot be imported.
  trap = tmp_path / 'trap' / 'tensorflow'
  trap.mkdir(parents=True)
  (trap / '__init__.py').write_text('raise SystemExit("TensorFlow imported")')
  root = pathlib.Path(tfds.__file__).parents[3]
  _, directory = _prepared(tmp_path)
  run = lambda code: subprocess.run(
    [sys.executable, '-W', 'error', '-c', code, directory],
    env={'PYTHONPATH': f'{trap.parent}:{root}', 'HOME': str(tmp_path)},
    capture_output=True,
    text=True,
    check=False,
  )
  assert 'TensorFlow imported' in run('import tensorflow').stderr
  done = run(_WITHOUT_TENSORFLOW)
  assert done.stdout.splitlines()[-1:] == ['6 False'], done.stderr


# What is refused.
def _unsorted(client_ids):
  columns = {
    'pixels': np.zeros((1, 28, 28), np.float32),
    'label': np.zeros(1, int),
  }
  return sources.Source(
    name='s',
    splits={'train': sources.Split(None, len(client_ids))},
    read=lambda *_: ((client_id, columns) for client_id in client_ids),
    decode=lambda raw, _: raw,
  )  # fmt: skip


@pytest.mark.parametrize('client_ids', ['abdc', 'aba', 'ba'])
@pytest.mark.parametrize('batch', [1, 1024])
def test_records_that_are_not_sorted_by_client_are_refused(
  tmp_path, monkeypatch, client_ids, batch
):
  monkeypatch.setattr(tfds, '_BATCH', batch)
  directory = tfds_files.write(_unsorted(client_ids), _EMNIST, tmp_path)
  message = f"{directory}, split 'train': the client .* is behind .* sorted by"
  with (
    tfds.open_source(directory) as found,
    pytest.raises(ValueError, match=message),
  ):
    list(found.read('train'))


def _shard(directory, split='all_train'):
  (file,) = directory.glob(f'*-{split}.*')
  return file


def _edit(path, change):
  info = json.loads(path.read_text())
  change(info)
  path.write_text(json.dumps(info))


def _without_client(directory):
  _edit(
    directory / 'features.json',
    lambda info: info['featuresDict']['features'].pop('client_id'),
  )


def _other_format(directory):
  _edit(
    directory / 'dataset_info.json',
    lambda info: info.update(fileFormat='tfrecord'),
  )


@pytest.mark.parametrize(
  ('damage', 'message'),
  [
    (_without_client, "no feature 'client_id'"),
    (_other_format, 'not array_record'),
    (lambda d: (d / 'dataset_info.json').write_text('{'), 'JSON'),
    (lambda d: (d / 'features.json').unlink(), 'restore'),
  ],
)
def test_a_damaged_data_set_is_refused_when_it_is_opened(
  tmp_path, damage, message
):
  _, directory = _prepared(tmp_path)
  damage(directory)
  with (
    pytest.raises(
      ValueError, match=f'(?s){directory} cannot be read.*{message}.*prepared'
    ),
    tfds.open_source(directory),
  ):
    pass


@pytest.mark.parametrize(
  ('damage', 'message'),
  [
    (lambda raw: b'', '64KB'),
    (lambda raw: raw[:-65536], "no feature 'client_id'"),
    (lambda raw: raw[:100] + bytes([raw[100] ^ 1]) + raw[101:], ''),
  ],
)
def test_a_damaged_file_is_named_with_its_split(tmp_path, damage, message):
  _, directory = _prepared(tmp_path)
  shard = _shard(directory)
  shard.write_bytes(damage(shard.read_bytes()))
  with (
    tfds.open_source(directory) as source,
    pytest.raises(
      ValueError, match=f"{directory}, split 'all_train', rec.*{message}"
    ),
  ):
    list(source.read('all_train'))
