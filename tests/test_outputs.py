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
EXAMPLE = 'epe_jax.conformance.example:make'
SHM = pathlib.Path('/dev/shm')


@pytest.fixture
def write(request, tmp_path):
  """Has a command write to a path, under the name that it gives the file."""
  scores = tmp_path / 'scores.csv'
  rows = (f'{i % 7 / 3},{i % 5 / 5}' for i in range(70))
  scores.write_text('\n'.join(['in,out', *rows]))
  check = ['check', EXAMPLE, '--shapes=30', '--budget=0.1', '--require=none']

  def write(path):
    commands = {
      'check --report': [*check, f'--report={path}'],
      'estimate --out': [
        *('estimate', str(scores), '--delta=1e-5', f'--out={path.parent}')
      ],
    }
    if request.param in commands:
      assert cli.main(commands[request.param]) == 0
    else:
      io.write_text(path, 'text')

  write.name = 'report.md' if request.param == 'estimate --out' else 'out'
  return write


OUTPUTS = pytest.mark.parametrize(
  'write',
  ['check --report', 'estimate --out', 'write_text'],
  indirect=True,
)


@OUTPUTS
@pytest.mark.parametrize('target', ['nothing', 'other disk', 'link'])
def test_links_are_followed(target, write, tmp_path):
  folder, elsewhere = tmp_path / 'a', tmp_path / 'b'
  if target == 'other disk':
    if not SHM.is_dir() or os.stat(SHM).st_dev == os.stat(tmp_path).st_dev:
      pytest.skip('there is no other file system')
    elsewhere = pathlib.Path(tempfile.mkdtemp(dir=SHM))
  folder.mkdir()
  elsewhere.mkdir(exist_ok=True)
  try:
    real, path = elsewhere / 'real', folder / write.name
    if target != 'nothing':
      real.write_text('old')
    if target == 'link':
      (elsewhere / 'link').symlink_to('real')
      path.symlink_to(os.path.relpath(elsewhere / 'link', folder))
    else:
      path.symlink_to(real)
    before = os.readlink(path)
    write(path)
    assert os.readlink(path) == before
    assert real.is_file()
    assert not real.is_symlink()
    assert real.read_text() not in ('', 'old')
    assert {p.name for p in elsewhere.iterdir()} <= {'real', 'link'}
  finally:
    for file in elsewhere.iterdir():
      file.unlink()


@OUTPUTS
def test_pipes_and_devices_are_written_into(write, tmp_path):
  folder = tmp_path / 'a'
  folder.mkdir()
  path = folder / write.name
  os.mkfifo(path)
  read = []
  reader = threading.Thread(
    target=lambda: read.append(path.read_text()), daemon=True
  )
  reader.start()
  write(path)
  assert path.is_fifo()
  reader.join()
  assert read[0]

  path.unlink()
  # By a link: what fails here must not replace the device of this machine.
  path.symlink_to('/dev/null')
  write(path)
  assert path.is_symlink()
  assert path.is_char_device()
  if os.getuid() == 0:
    path.unlink()
    try:
      os.mknod(path, 0o20666, os.stat('/dev/null').st_rdev)
      path.read_bytes()
    except PermissionError:
      return
    write(path)
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
