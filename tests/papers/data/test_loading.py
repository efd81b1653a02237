"""Data of single examples: every format gives what was put into it."""

import gzip
import io
import struct
import tarfile

import numpy as np
import pytest

from papers.data import cifar10, loading, purchase100

RNG = np.random.default_rng(0)
PER_BATCH = 3
PIXELS = RNG.integers(0, 256, (6 * PER_BATCH, 32, 32, 3), np.uint8)
LABELS = RNG.integers(0, 10, 6 * PER_BATCH)
NAMES = [*(f'data_batch_{i}.bin' for i in range(1, 6)), 'test_batch.bin']


def make_batches():
  rows = PIXELS.transpose(0, 3, 1, 2).reshape(len(PIXELS), -1)
  rows = np.concatenate([LABELS[:, None].astype(np.uint8), rows], axis=1)
  return {
    name: rows[i : i + PER_BATCH].tobytes()
    for name, i in zip(NAMES, range(0, len(PIXELS), PER_BATCH))
  }


def write_archive(path, files, folder='cifar-10'):
  with tarfile.open(path, 'w:gz') as archive:
    for name, data in {'readme.html': b'<html>', **files}.items():
      info = tarfile.TarInfo(f'{folder}/{name}')
      info.size = len(data)
      archive.addfile(info, io.BytesIO(data))
  return path


def write_folder(path, files):
  path.mkdir()
  for name, data in files.items():
    (path / name).write_bytes(data)
  return path


def check_cifar(loaded):
  assert loaded.train['pixels'].dtype == np.float32
  assert loaded.train['label'].dtype == loaded.test['label'].dtype == np.int32
  for columns, rows in (
    (loaded.train, slice(-3)),
    (loaded.test, slice(-3, 99)),
  ):
    found = columns['pixels'] * 255
    np.testing.assert_array_equal(np.round(found), PIXELS[rows])
    np.testing.assert_allclose(found, np.round(found), atol=1e-3)
    np.testing.assert_array_equal(columns['label'], LABELS[rows])


@pytest.mark.parametrize('write', [write_archive, write_folder])
def test_the_archive_of_cifar10_and_its_folder_are_read(tmp_path, write):
  path = write(tmp_path / 'cifar.tar.gz', make_batches())
  loaded = loading.load_examples('cifar10', path, rng_seed=0)
  check_cifar(loaded)
  assert loaded.source == 'CIFAR-10 (15 train, 3 test examples)'
  assert (loaded.inputs, loaded.num_classes) == ('pixels', 10)


def test_the_archive_of_pickles_is_refused_with_what_to_give(tmp_path):
  files = {name.removesuffix('.bin'): b'' for name in NAMES}
  path = write_archive(tmp_path / 'cifar.tar.gz', files)
  with pytest.raises(
    FileNotFoundError, match=r'Give cifar-10-binary\.tar\.gz .* pickles'
  ):
    cifar10.read_splits(path)


def test_a_missing_or_damaged_batch_is_named(tmp_path):
  files = make_batches()
  del files['data_batch_4.bin']
  path = write_folder(tmp_path / 'missing', files)
  with pytest.raises(FileNotFoundError, match=r"'data_batch_4\.bin'"):
    cifar10.read_splits(path)
  files = make_batches()
  files['data_batch_2.bin'] = files['data_batch_2.bin'][:-1]
  path = write_folder(tmp_path / 'short', files)
  with pytest.raises(ValueError, match=r"'data_batch_2\.bin'.*multiple"):
    cifar10.read_splits(path)
  files['data_batch_2.bin'] = b'\x0a' + bytes(3072)
  path = write_folder(tmp_path / 'label', files)
  with pytest.raises(ValueError, match=r'row 0: label 10'):
    cifar10.read_splits(path)


def encode(pixels, form):
  image = pytest.importorskip('PIL.Image', reason='needs the extra images')
  file = io.BytesIO()
  image.fromarray(pixels).save(file, form)
  return file.getvalue()


def test_jpeg_is_decoded_to_nearly_the_image(tmp_path):
  smooth = np.linspace(0, 255, 32).astype(np.uint8)
  pixels = np.broadcast_to(smooth[:, None, None], (32, 32, 3))
  (decoded,) = cifar10._decode_images(
    [encode(np.ascontiguousarray(pixels), 'JPEG')]
  )
  assert np.abs(decoded.astype(int) - pixels).max() < 8
  with pytest.raises(ValueError, match=r'row 0: .* 28 x 32 pixels'):
    cifar10._decode_images([encode(PIXELS[0, 4:], 'PNG')])
  with pytest.raises(ValueError, match='row 1'):
    cifar10._decode_images([encode(PIXELS[0], 'PNG'), b'x'])


def test_a_data_set_of_tfds_is_read(tmp_path):
  reason = 'needs the extra tfds'
  tfds = pytest.importorskip('tensorflow_datasets', reason=reason)
  pytest.importorskip('array_record', reason=reason)

  class Cifar10(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tfds.core.Version('3.0.2')

    def _info(self):
      return tfds.core.DatasetInfo(
        builder=self,
        features=tfds.features.FeaturesDict(
          {
            'id': tfds.features.Text(),
            'image': tfds.features.Image(shape=(32, 32, 3)),
            'label': tfds.features.ClassLabel(num_classes=10),
          }
        ),
        disable_shuffling=True,
      )

    def _split_generators(self, dl_manager):
      numbers = range(len(PIXELS))
      return {
        'train': self._generate_examples(numbers[:-3]),
        'test': self._generate_examples(numbers[-3:]),
      }

    def _generate_examples(self, numbers):
      for i in numbers:
        image = io.BytesIO(encode(PIXELS[i], 'PNG'))
        yield i, {'id': str(i), 'image': image, 'label': LABELS[i]}

  builder = Cifar10(data_dir=str(tmp_path), file_format='array_record')
  builder.download_and_prepare()
  loaded = loading.load_examples('cifar10', builder.data_dir, rng_seed=0)
  check_cifar(loaded)
  assert 'TensorFlow Datasets' in loaded.source


def write_idx(folder, compress):
  pixels = RNG.integers(0, 256, (5, 28, 28), np.uint8)
  labels = np.arange(5, dtype=np.uint8)
  for prefix, rows in (('train', slice(3)), ('t10k', slice(3, 5))):
    for name, x in (
      (f'{prefix}-images-idx3-ubyte', pixels[rows]),
      (f'{prefix}-labels-idx1-ubyte', labels[rows]),
    ):
      head = bytes([0, 0, 8, x.ndim]) + struct.pack(f'>{x.ndim}I', *x.shape)
      data = head + x.tobytes()
      name, data = (
        (f'{name}.gz', gzip.compress(data)) if compress else (name, data)
      )
      (folder / name).write_bytes(data)
  return pixels, labels


@pytest.mark.parametrize('compress', [False, True])
def test_idx_files_are_read(tmp_path, compress):
  pixels, labels = write_idx(tmp_path, compress)
  loaded = loading.load_examples('fashion_mnist', tmp_path, rng_seed=0)
  np.testing.assert_allclose(
    loaded.train['pixels'][..., 0] * 255, pixels[:3], atol=1e-3
  )
  np.testing.assert_array_equal(loaded.test['label'], labels[3:])
  assert loaded.source == 'Fashion-MNIST (3 train, 2 test examples)'


def write_purchases(folder, *, label=None, feature=None, archive=False):
  columns = purchase100.generate(3, num_examples=20)
  rows = np.column_stack([columns['label'] + 1, columns['features']])
  rows[7, 0] = rows[7, 0] if label is None else label
  rows[7, 5] = rows[7, 5] if feature is None else feature
  path = folder / 'dataset_purchase'
  np.savetxt(path, rows, '%d', ',')
  if archive:
    files = {'dataset_purchase': path.read_bytes()}
    return columns, write_archive(folder / 'dataset_purchase.tgz', files)
  return columns, path


@pytest.mark.parametrize('archive', [False, True])
def test_purchases_are_read_as_published(tmp_path, archive):
  columns, path = write_purchases(tmp_path, archive=archive)
  read = purchase100.read(path)
  np.testing.assert_array_equal(read['features'], columns['features'])
  np.testing.assert_array_equal(read['label'], columns['label'])
  loaded = loading.load_examples('purchase100', path, rng_seed=0)
  assert loaded.source == (
    'Purchase-100, split at random (18 train, 2 test examples)'
  )
  # No person is lost or in both splits.
  both = np.concatenate([loaded.train['features'], loaded.test['features']])
  np.testing.assert_array_equal(
    np.unique(both, axis=0), np.unique(columns['features'], axis=0)
  )


@pytest.mark.parametrize(
  'change', [{'label': 0}, {'label': 101}, {'feature': 2}]
)
def test_a_line_that_is_no_purchase_is_named(tmp_path, change):
  _, path = write_purchases(tmp_path, **change)
  with pytest.raises(ValueError, match='line 8: class'):
    purchase100.read(path)


def test_synthetic_purchases_can_be_told_apart_and_say_what_they_are():
  columns = purchase100.generate(0, num_examples=4000)
  assert set(np.unique(columns['features'])) == {0, 1}
  means = np.array(
    [columns['features'][columns['label'] == c].mean(0) for c in range(100)]
  )
  # The nearest mean of a class is nearly always the person's own.
  test = purchase100.generate(0, num_examples=4000)
  nearest = (
    ((test['features'][:200, None].astype(float) - means) ** 2)
    .sum(-1)
    .argmin(1)
  )
  assert np.mean(nearest == test['label'][:200]) > 0.9
  loaded = loading.load_examples(
    'purchase100', rng_seed=1, num_train=50, num_test=7
  )
  assert loaded.source == (
    "synthetic data of Purchase-100's shape, split at random (50 of 177,592 "
    'train, 7 of 19,732 test examples, drawn at random)'
  )
  assert loaded.train['features'].shape == (50, 600)
  assert (loaded.inputs, loaded.num_classes) == ('features', 100)


def test_random_examples_have_the_size_of_cifar10_and_follow_the_seed():
  load = lambda seed: loading.load_examples(
    'random', rng_seed=seed, num_train=2000, num_test=5
  )
  one, same, other = load(0), load(0), load(1)
  np.testing.assert_array_equal(one.train['pixels'], same.train['pixels'])
  assert not np.array_equal(one.train['pixels'], other.train['pixels'])
  assert 'of 50,000 train, 5 of 10,000 test' in one.source
  # Uniform in [0, 1]: six million draws, by five standard deviations.
  x = one.train['pixels']
  assert abs(x.mean() - 0.5) < 5 * (1 / 12 / x.size) ** 0.5 + 1 / 512
  counts = np.bincount(one.train['label'], minlength=10)
  assert np.all(np.abs(counts - 200) < 5 * (2000 * 0.09) ** 0.5)


@pytest.mark.parametrize(
  ('name', 'path', 'match'),
  [
    ('svhn', None, "no data 'svhn'"),
    ('cifar10', None, 'path is None'),
    ('fashion_mnist', None, 'path is None'),
    ('random', 'x', "path='x'"),
  ],
)
def test_what_cannot_be_loaded_is_explained(name, path, match):
  with pytest.raises(ValueError, match=match):
    loading.load_examples(name, path, rng_seed=0)


@pytest.mark.parametrize('num', [{'num_train': 0}, {'num_test': 3}])
def test_more_examples_than_there_are_or_none_are_refused(tmp_path, num):
  write_idx(tmp_path, False)
  ((name, value),) = num.items()
  with pytest.raises(ValueError, match=f'{name}={value}'):
    loading.load_examples('fashion_mnist', tmp_path, rng_seed=0, **num)


def test_a_part_of_the_examples_is_drawn_by_the_seed(tmp_path):
  write_idx(tmp_path, False)
  load = lambda seed: loading.load_examples(
    'fashion_mnist', tmp_path, rng_seed=seed, num_train=2
  )
  assert load(0).source == (
    'Fashion-MNIST (2 of 3 train, 2 test examples, drawn at random)'
  )
  # Without replacement, and not always the same.
  drawn = {tuple(load(seed).train['label'].tolist()) for seed in range(20)}
  assert drawn == {(0, 1), (0, 2), (1, 2)}
