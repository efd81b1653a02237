"""Disks that are full or may not be written: a path and a cure."""

import builtins
import errno
import os

import numpy as np
import pytest

from epe_jax import io
from epe_jax.configs import digits
from epe_jax.data import store
from epe_jax.experiment import audited_run, checkpoint


@pytest.mark.parametrize(
  ('code', 'said'),
  [
    (errno.ENOSPC, 'the disk is full. Make room'),
    (errno.EDQUOT, 'is used up. Make room'),
    (errno.EROFS, 'is read-only. Give a folder on another one'),
    (errno.EACCES, 'permission denied. Change its permissions'),
    (errno.EPERM, 'permission denied'),
  ],
)
def test_what_the_system_refuses_has_a_path_and_a_cure(code, said):
  with (
    pytest.raises(OSError, match=f'^/folder/file: .*{said}') as refused,
    io.explain_disk_errors('/other'),
  ):
    raise OSError(code, os.strerror(code), '/folder/file')
  assert 'Errno' not in str(refused.value)
  with (
    pytest.raises(OSError, match=f'^folder: .*{said}'),
    io.explain_disk_errors('folder'),
    io.explain_disk_errors('folder'),
  ):
    raise OSError(code, os.strerror(code))


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
def test_a_run_in_a_folder_that_cannot_be_written_says_so(tmp_path, refuse):
  config = digits.get_config('smoke')
  config.model.width = 2
  refuse(tmp_path, errno.EROFS)
  with pytest.raises(OSError, match=rf'^{tmp_path}/run/.*read-only\. G'):
    audited_run.run(config, tmp_path / 'run')


def test_a_store_on_a_full_disk_says_so(tmp_path, monkeypatch):
  def full(_):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(os, 'fsync', full)
  rows = {'a': {'x': np.ones(1, np.float32)}}
  with pytest.raises(OSError, match=f'^{tmp_path}/store: the disk is full'):
    store.write(tmp_path / 'store', rows.items(), source='rows')


def test_a_checkpoint_on_a_full_disk_says_so(tmp_path, monkeypatch):
  def full(_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(os, 'fsync', full)
  saved = checkpoint.Checkpoints(tmp_path / 'c', of='a run')
  saved.save(1, {'x': np.zeros(2)})
  with (
    pytest.raises(OSError, match=r'^run: the disk is full\. Make room'),
    io.explain_disk_errors('run'),
  ):
    saved.close()
  assert saved.find_saved() == 0
  assert not any((tmp_path / 'c').iterdir())
