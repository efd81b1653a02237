"""docs/promises.md says what the code does, and files of every release are read."""

import pathlib
import re
import tomllib

import pytest
import yaml

import epe_jax
from epe_jax import io
from epe_jax.audit import record_file
from epe_jax.auditor import auditor_file
from epe_jax.conformance import report
from epe_jax.experiment import run_result
from tests.formats import write

ROOT = pathlib.Path(__file__).parents[1]
PAGE = (ROOT / 'docs' / 'promises.md').read_text('utf-8')
PROJECT = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
RELEASES = sorted(p.name for p in write.FOLDER.iterdir() if p.name[0].isdigit())


@pytest.mark.parametrize('name', write.FORMATS)
@pytest.mark.parametrize('release', RELEASES)
def test_what_a_release_wrote_is_read(release, name):
  folder = write.FOLDER / release
  _, read_numbers = write.FORMATS[name]
  expected = io.read_json(folder / 'numbers.json')[name]
  assert expected
  assert_equal(read_numbers(folder / name), expected)


def assert_equal(found, expected):
  """To the precision of a sum in another order."""
  if isinstance(expected, dict):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
      assert_equal(found[key], value)
  elif isinstance(expected, list):
    for one, other in zip(found, expected, strict=True):
      assert_equal(one, other)
  elif isinstance(expected, float):
    assert found == pytest.approx(expected, rel=1e-9)
  else:
    assert found == expected


def test_this_version_has_files_of_each_format():
  minor = epe_jax.__version__.rpartition('.')[0]
  assert minor in RELEASES
  names = {path.name for path in (write.FOLDER / minor).iterdir()}
  assert names == {*write.FORMATS, 'numbers.json'}


def read_table(title):
  """The rows of the table under a heading, without its head."""
  section = PAGE.partition(f'\n## {title}\n')[2].partition('\n## ')[0]
  lines = [line for line in section.splitlines() if line.startswith('|')]
  return [[cell.strip() for cell in x.split('|')[1:-1]] for x in lines[2:]]


def test_the_versions_of_formats_are_those_of_the_code():
  versions = {
    '`result.json`': run_result.SCHEMA,
    '`private/scores.npz`, the record': record_file.SCHEMA,
    'what `Auditor.save` writes': auditor_file.SCHEMA,
    'what `epe-jax check --report` writes': report.SCHEMA_VERSION,
  }
  stated = {name: number for name, number in read_table('Files')}
  assert {k: v for k, v in stated.items() if v.isdigit()} == {
    name: str(number) for name, number in versions.items()
  }


def test_every_room_has_one_tier():
  named = [
    name
    for _, rooms in read_table('Public names')
    for name in re.findall(r'`(\w+)`', rooms)
  ]
  package = ROOT / 'epe_jax'
  rooms = {p.parent.name for p in package.glob('*/__init__.py')}
  rooms |= {p.stem for p in package.glob('[!_]*.py')} | {'configs'}
  assert sorted(named) == sorted(rooms)


def test_supported_versions_are_those_of_pyproject_and_of_ci():
  prefix = 'Programming Language :: Python :: '
  pythons = re.findall(rf'{prefix}(3\.\d+)', '\n'.join(PROJECT['classifiers']))
  workflow = yaml.safe_load((ROOT / '.github/workflows/ci.yml').read_text())
  assert workflow['jobs']['test']['strategy']['matrix']['python'] == pythons
  assert PROJECT['requires-python'] == f'>={pythons[0]}'
  listed = f'{", ".join(pythons[:-1])} and {pythons[-1]}'
  lines = [
    *PROJECT['dependencies'],
    *PROJECT['optional-dependencies']['training'],
  ]
  required = dict(line.split('>=') for line in lines)
  jax, excluded = required['jax'].split(',!=')
  assert required['jaxlib'] == required['jax']
  assert (
    f'Python {listed}; JAX {jax} or newer, but not {excluded}; '
    f'NumPy {required["numpy"]} or newer.'
  ) in ' '.join(PAGE.split())
