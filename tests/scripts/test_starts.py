"""Programs that a shell starts: it sees that they failed, and why."""

import subprocess
import sys

import pytest

from tests.in_process import SCRIPTS

NAMES = sorted(path.stem for path in SCRIPTS.glob('*.py'))


@pytest.mark.integration
@pytest.mark.parametrize('name', NAMES)
def test_the_shell_sees_that_a_program_failed_and_why(name):
  done = subprocess.run(
    [sys.executable, SCRIPTS / f'{name}.py', '--nonsense'],
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 1
  assert "Unknown command line flag 'nonsense'" in done.stderr
  assert 'Traceback' not in done.stderr
