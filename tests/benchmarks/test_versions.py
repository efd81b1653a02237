"""What is said of a Python is what the commands printed with it."""

import shutil
import sys

import pytest

_MAKEFILE = """
run:
	@echo 'Canaries show ε of at least 22.4 in the worst case (95 %)'
test:
	@echo '1 passed in 0.1s'
	@echo '12 passed, 2 skipped in 3.4s'
	@{ending}
"""


@pytest.fixture
def versions(load_benchmark):
  return load_benchmark('versions')


@pytest.fixture
def clone(tmp_path):
  if shutil.which('make') is None:
    pytest.skip('There is no make.')
  clone = tmp_path / 'clone'
  clone.mkdir()
  (clone / '.venv').symlink_to(sys.prefix)
  (clone / 'Makefile').write_text(_MAKEFILE.format(ending='true'))
  return clone


def test_a_row_has_what_commands_print_and_is_made_once(
  versions, tmp_path, clone
):
  row = versions.measure(tmp_path)
  assert row['make run'] == 'ε of at least 22.4 in the worst case'
  assert row['make test'] == '12 passed, 2 skipped'
  (clone / 'Makefile').unlink()
  assert versions.measure(tmp_path) == row


def test_a_command_that_fails_has_no_row(versions, tmp_path, clone):
  (clone / 'Makefile').write_text(_MAKEFILE.format(ending='false'))
  with pytest.raises(SystemExit, match=r'make test ends with 2; see .*running'):
    versions.measure(tmp_path)
