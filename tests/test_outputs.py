"""What is written to a path that is a link, a device or a pipe stays one."""

import os
import pathlib
import subprocess
import sys
import tempfile
import threading

import pytest

from epe_jax import cli, io

ROOT = pathlib.Path(__file__).parents[1]
SHM = pathlib.Path('/dev/shm')


@pytest.mark.parametrize('target', ['nothing', 'other disk', 'link'])
def test_links_are_followed(target, tmp_path):
  folder, elsewhere = tmp_path / 'a', tmp_path / 'b'
  if target == 'other disk':
    if not SHM.is_dir() or os.stat(SHM).st_dev == os.stat(tmp_path).st_dev:
      pytest.skip('there is no other file system')
    elsewhere = pathlib.Path(tempfile.mkdtemp(dir=SHM))
  folder.mkdir()
  elsewhere.mkdir(exist_ok=True)
  try:
    real, path = elsewhere / 'real', folder / 'out'
    if target != 'nothing':
      real.write_text('old')
    if target == 'link':
      (elsewhere / 'link').symlink_to('real')
      path.symlink_to(os.path.relpath(elsewhere / 'link', folder))
    else:
      path.symlink_to(real)
    before = os.readlink(path)
    io.write_text(path, 'new')
    assert os.readlink(path) == before
    assert not real.is_symlink()
    assert real.read_text() == 'new'
    assert {p.name for p in elsewhere.iterdir()} <= {'real', 'link'}
  finally:
    for file in elsewhere.iterdir():
      file.unlink()


def test_pipes_and_devices_are_written_into(tmp_path):
  path = tmp_path / 'out'
  os.mkfifo(path)
  read = []
  reader = threading.Thread(
    target=lambda: read.append(path.read_text()), daemon=True
  )
  reader.start()
  io.write_text(path, 'text')
  assert path.is_fifo()
  reader.join()
  assert read == ['text']

  path.unlink()
  # By a link: what fails here must not replace the device of this machine.
  path.symlink_to('/dev/null')
  io.write_text(path, 'text')
  assert path.is_symlink()
  assert path.is_char_device()


def test_what_goes_to_stdout_is_in_order_with_what_is_printed(tmp_path):
  program = (
    'from epe_jax import io; print("before"); '
    'io.write_text("/dev/stdout", "text\\n"); print("after")'
  )
  command = [sys.executable, '-c', program]
  environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
  # Into a file and into a pipe.
  with open(tmp_path / 'out.txt', 'w') as out:
    subprocess.run(command, stdout=out, env=environment, check=True)
  piped = subprocess.check_output(command, text=True, env=environment)
  expected = 'before\ntext\nafter\n'
  assert (tmp_path / 'out.txt').read_text() == piped == expected


def test_a_link_into_a_missing_folder_is_refused_before_anything_is_checked(
  tmp_path, capsys
):
  (tmp_path / 'link').symlink_to(tmp_path / 'none' / 'file')
  assert cli.main(['check', 'no_module:make', f'--report={tmp_path}/link']) == 2
  assert f'there is no folder {tmp_path}/none' in capsys.readouterr().err
