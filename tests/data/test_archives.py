"""Archives: what is wanted comes out whole, and nothing else happens."""

import bz2
import errno
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


def tar(*members, format=tarfile.PAX_FORMAT):
  file = io.BytesIO()
  with tarfile.open(fileobj=file, mode='w', format=format) as archive:
    for info, data in members:
      archive.addfile(info, io.BytesIO(data))
  return file.getvalue()


def extracted(folder, raw, suffix='.h5', cut=None):
  """What is extracted from a .tar.bz2 of these bytes of a tar."""
  path = folder / 'f.tar.bz2'
  path.write_bytes(bz2.compress(raw)[:cut])
  (folder / 'out').mkdir(exist_ok=True)
  return archives.extract(path, folder / 'out', suffix=suffix)


@pytest.mark.parametrize(
  'format', [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
)
def test_wanted_files_come_out_under_names_of_our_own(tmp_path, format):
  long = 'a/' * 70 + 'ü.h5'
  members = [
    member('a', type=tarfile.DIRTYPE),
    member('a/x.h5', BYTES),
    member('README', BYTES[:700]),
    member('a/._x.h5', b'not wanted'),
    member('empty.h5'),
    member(long, b'long'),
  ]
  found = extracted(tmp_path, tar(*members, format=format))
  assert {name: file.read_bytes() for name, file in found.items()} == {
    'a/x.h5': BYTES,
    'empty.h5': b'',
    long: b'long',
  }
  folder = tmp_path / 'out'
  assert sorted(folder.iterdir()) == [folder / f'{i}.h5' for i in range(3)]


@pytest.mark.parametrize(
  ('hostile', 'message'),
  [
    (
      member('x.h5', type=tarfile.SYMTYPE, linkname='/etc/passwd'),
      r"'x\.h5' is not a regular file",
    ),
    (member('x.h5', type=tarfile.LNKTYPE, linkname='y.h5'), 'not a regular f'),
    (member('x.h5', type=tarfile.CHRTYPE), r"'x\.h5' is not a regular file"),
    (member('x.h5', type=tarfile.FIFOTYPE), 'is not a regular file'),
    (member('y.h5', b'again'), r"'y\.h5' occurs twice"),
  ],
)
def test_what_is_no_plain_file_of_its_own_is_refused_by_name(
  tmp_path, hostile, message
):
  raw = tar(member('y.h5', b'y'), hostile, format=tarfile.GNU_FORMAT)
  with pytest.raises(ValueError, match=rf'f\.tar\.bz2 is .*{message}'):
    extracted(tmp_path, raw)
  assert {p.name for p in tmp_path.iterdir()} == {'f.tar.bz2', 'out'}


@pytest.mark.parametrize(
  'name', ['/etc/x.h5', 'a/../../x.h5', 'a\\..\\x.h5', '../../x.h5']
)
def test_a_name_leads_nowhere(tmp_path, name):
  """A file is written by its number, whatever it is called."""
  found = extracted(tmp_path, tar(member(name, b'x'), member('../', b'')))
  assert [*found.values()] == [tmp_path / 'out' / '0.h5']
  assert {p.name for p in tmp_path.iterdir()} == {'f.tar.bz2', 'out'}


def test_links_and_devices_that_are_not_wanted_are_skipped(tmp_path):
  others = [
    member('README', type=tarfile.SYMTYPE, linkname='/etc/passwd'),
    member('tty', type=tarfile.CHRTYPE),
    member('pipe', type=tarfile.FIFOTYPE),
  ]
  assert [*extracted(tmp_path, tar(*others, member('x.h5', b'x')))] == ['x.h5']
  assert {p.name for p in (tmp_path / 'out').iterdir()} == {'0.h5'}


def test_members_after_a_header_that_is_no_header_are_not_passed_over(tmp_path):
  raw = bytearray(tar(member('y.h5', b'y'), member('x.h5', b'x')))
  raw[1024] ^= 1
  with pytest.raises(ValueError, match='no member begins at byte 1024'):
    extracted(tmp_path, bytes(raw))


def test_an_archive_without_a_wanted_file_is_refused(tmp_path):
  with pytest.raises(ValueError, match=r'has no file \*\.h5'):
    extracted(tmp_path, tar(member('README', b'x')))


def test_an_archive_cut_anywhere_is_truncated(tmp_path):
  raw = tar(member('x.h5', BYTES[:3000]), member('y.h5', b'y'))
  size = len(bz2.compress(raw))
  for cut in {0, 1, size // 2, size - 1}:
    with pytest.raises(ValueError, match=r'f\.tar\.bz2 is damaged, truncated'):
      extracted(tmp_path, raw, cut=cut)
    shutil.rmtree(tmp_path / 'out')
  # The tar within can be cut too, though its compressed bytes are whole.
  for cut in (100, 512, 1000):
    with pytest.raises(ValueError, match=r'f\.tar\.bz2 is damaged, truncated'):
      extracted(tmp_path, raw[:cut])
    shutil.rmtree(tmp_path / 'out')


def test_unpacking_onto_a_full_disk_removes_what_it_began(
  tmp_path, monkeypatch
):
  def fill(source, target, size):
    target.write(source.read(size))
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(shutil, 'copyfileobj', fill)
  with pytest.raises(OSError, match=r'out: the disk is full\. Make room'):
    extracted(tmp_path, tar(member('x.h5', BYTES)))
  assert not list((tmp_path / 'out').iterdir())
  path = tmp_path / 'f.xz'
  path.write_bytes(lzma.compress(BYTES))
  with pytest.raises(OSError, match=r'plain: the disk is full\. Make room'):
    archives.decompress(path, tmp_path / 'plain')
  assert not (tmp_path / 'plain').exists()


@pytest.mark.parametrize(
  ('suffix', 'compress'),
  [
    ('.bz2', bz2.compress),
    ('.xz', lzma.compress),
    ('.lzma', lambda raw: lzma.compress(raw, lzma.FORMAT_ALONE)),
  ],
)
def test_a_compressed_file_comes_out_whole_or_not_at_all(
  tmp_path, suffix, compress
):
  path, target = tmp_path / f'f{suffix}', tmp_path / 'plain'
  whole = compress(BYTES)
  path.write_bytes(whole)
  assert archives.decompress(path, target) == target
  assert target.read_bytes() == BYTES
  with pytest.raises(FileExistsError):
    archives.decompress(path, target)
  assert target.read_bytes() == BYTES
  target.unlink()
  for damaged in (whole[:-9], whole[: len(whole) // 2], b'nothing' * 99):
    path.write_bytes(damaged)
    message = rf'f{suffix} is damaged, truncated or not {suffix[1:]}'
    with pytest.raises(ValueError, match=message):
      archives.decompress(path, target)
    assert not target.exists()


def test_a_suffix_of_no_known_format_is_refused(tmp_path):
  (tmp_path / 'f.rar').write_bytes(b'')
  with pytest.raises(ValueError, match=r"ends in '\.rar'. Use one of"):
    archives.decompress(tmp_path / 'f.rar', tmp_path / 'plain')
