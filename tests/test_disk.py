"""Disks that are full or may not be written: a path, and for people a cure."""

import builtins
import errno
import os

import numpy as np
import pytest

from epe_jax import io
from epe_jax.cli import program
from epe_jax.data import store
from epe_jax.experiment import checkpoint

RUN = 'run', 'digits:smoke', '--config.model.width=2'


def test_what_the_system_refuses_has_a_path():
  full = errno.ENOSPC, os.strerror(errno.ENOSPC)
  with (
    pytest.raises(OSError, match="No space left on device: '/folder/file'"),
    io.name_disk_errors('/other'),
  ):
    raise OSError(*full, '/folder/file')
  with (
    pytest.raises(OSError, match="No space left on device: 'folder'"),
    io.name_disk_errors('other'),
    io.name_disk_errors('folder'),
  ):
    raise OSError(*full)
  with (
    pytest.raises(OSError, match=r'^a/b: of ours$'),
    io.name_disk_errors('a'),
  ):
    raise OSError('a/b: of ours')


@pytest.fixture
def refuse(monkeypatch):
  """Has the system refuse to open files below a folder for writing."""

  def refuse(folder, code):
    opened = builtins.open

    def refusing(file, mode='r', *args, **options):
      below = str(file).startswith(str(folder))
      if below and set(mode) & set('wax+'):
        raise OSError(code, os.strerror(code), str(file))
      return opened(file, mode, *args, **options)

    monkeypatch.setattr(builtins, 'open', refusing)

  return refuse


@pytest.mark.integration
@pytest.mark.parametrize('code', [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_run_in_a_folder_that_cannot_be_written_says_so(
  tmp_path, refuse, capsys, code
):
  refuse(tmp_path, code)
  assert program.main([*RUN, f'--workdir={tmp_path}/run']) == 2
  last = capsys.readouterr().err.splitlines()[-1]
  assert last.startswith(f'error: {tmp_path}/run/')
  assert last.endswith(f': {os.strerror(code)}; give another path.')


def test_a_full_disk_that_names_no_file_is_told_with_the_file(
  tmp_path, monkeypatch, capsys
):
  def full(_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(os, 'fsync', full)
  assert program.main([*RUN, f'--workdir={tmp_path}/run']) == 2
  error = capsys.readouterr().err.splitlines()[-1]
  assert error.startswith(f'error: {tmp_path}/run/')
  assert error.endswith(': No space left on device; give another path.')


def test_a_store_on_a_full_disk_says_so(tmp_path, monkeypatch):
  def full(_):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(os, 'fsync', full)
  rows = {'a': {'x': np.ones(1, np.float32)}}
  with pytest.raises(
    OSError, match=f"No space left on device: '{tmp_path}/store'"
  ):
    store.write(tmp_path / 'store', rows.items(), source='rows')


def test_a_checkpoint_on_a_full_disk_says_so(tmp_path, monkeypatch):
  def full(_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(os, 'fsync', full)
  saved = checkpoint.Checkpoints(tmp_path / 'c', of='a run')
  saved.save(1, {'x': np.zeros(2)})
  with pytest.raises(OSError, match=r'No space left on device: .*1\.npz'):
    saved.close()
  assert saved.find_saved() == 0
  assert not any((tmp_path / 'c').iterdir())
