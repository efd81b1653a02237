"""Archives: what is wanted comes out whole, and nothing else happens."""

import bz2
import errno
import gzip
import io
import lzma
import shutil
import tarfile

import numpy as np
import pytest

from epe_jax.data import archives

BYTES = np.random.default_rng(0).bytes(1_200_000)


def member(name, data=b'', **fields):
  info = tarfile.TarInfo(name)
  info.size = len(data)
  for field, value in fields.items():
    setattr(info, field, value)
  return info, data


def tar(*members):
  file = io.BytesIO()
  with tarfile.open(fileobj=file, mode='w') as archive:
    for info, data in members:
      archive.addfile(info, io.BytesIO(data))
  return file.getvalue()


def extracted(folder, raw, compress=bz2.compress, cut=None):
  """What is extracted from a compressed archive of these bytes of a tar."""
  path = folder / 'f.tar.bz2'
  path.write_bytes(compress(raw)[:cut])
  (folder / 'out').mkdir(exist_ok=True)
  return archives.extract(path, folder / 'out', suffix='.h5')


def test_wanted_files_come_out_and_others_are_skipped(tmp_path):
  members = [
    member('a', type=tarfile.DIRTYPE),
    member('a/x.h5', BYTES),
    member('README', BYTES[:700]),
    member('a/._x.h5', b'not wanted'),
    member('link.h5', type=tarfile.SYMTYPE, linkname='/etc/passwd'),
    member('empty.h5'),
    member('/ü.h5', b'rooted'),
  ]
  found = extracted(tmp_path, tar(*members))
  assert {name: file.read_bytes() for name, file in found.items()} == {
    'a/x.h5': BYTES,
    'empty.h5': b'',
    '/ü.h5': b'rooted',
  }
  assert len([*(tmp_path / 'out').rglob('*.h5')]) == 3


def test_a_name_leads_nowhere(tmp_path):
  with pytest.raises(ValueError, match='outside the destination'):
    extracted(tmp_path, tar(member('a/../../x.h5', b'x')))
  assert {p.name for p in tmp_path.iterdir()} == {'f.tar.bz2', 'out'}


def test_an_archive_without_a_wanted_file_is_refused(tmp_path):
  with pytest.raises(ValueError, match=r'has no file \*\.h5'):
    extracted(tmp_path, tar(member('README', b'x')))


@pytest.mark.parametrize('compress', [bz2.compress, gzip.compress])
def test_an_archive_cut_anywhere_is_truncated(tmp_path, compress):
  raw = tar(member('x.h5', BYTES[:3000]), member('y.h5', b'y'))
  size = len(compress(raw))
  for cut in {0, 1, size // 2, size - 1}:
    with pytest.raises(ValueError, match=r'f\.tar\.bz2 is damaged or trunc'):
      extracted(tmp_path, raw, compress, cut)
  # The tar within can be cut too, though its compressed bytes are whole.
  for cut in (100, 512, 1000):
    with pytest.raises(ValueError, match=r'f\.tar\.bz2 is damaged or trunc'):
      extracted(tmp_path, raw[:cut], compress)


def test_unpacking_onto_a_full_disk_says_so(tmp_path, monkeypatch):
  def fill(source, target, *size):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(shutil, 'copyfileobj', fill)
  path = tmp_path / 'f.xz'
  path.write_bytes(lzma.compress(BYTES))
  with pytest.raises(OSError, match=r"No space left on device: '.*plain'"):
    archives.decompress(path, tmp_path / 'plain')


@pytest.mark.parametrize('format', [lzma.FORMAT_ALONE, lzma.FORMAT_XZ])
def test_a_compressed_file_comes_out_whole_or_not_at_all(tmp_path, format):
  path, target = tmp_path / 'f.xz', tmp_path / 'plain'
  whole = lzma.compress(BYTES, format)
  path.write_bytes(whole)
  archives.decompress(path, target)
  assert target.read_bytes() == BYTES
  for damaged in (whole[:-9], whole[: len(whole) // 2], b'nothing' * 99):
    target.unlink()
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r'f\.xz is damaged or truncated'):
      archives.decompress(path, target)
