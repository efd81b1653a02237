"""No command runs a file that lies in the working directory."""

import os
import pathlib
import subprocess
import sys

import h5py
import numpy as np
import pytest

from epe_jax import python_path
from tests import tff_files

PROGRAM = pathlib.Path(sys.executable).with_name('epe-jax')
# Of the standard library and of others. Not of the package itself, which an
# editable install has behind the path: a folder is on that only where a user names
# a function of it.
PLANTED = (
  *('json', 'multiprocessing', 'pickle', 'runpy', 'secrets', 'tempfile'),
  *('sitecustomize', 'usercustomize'),
  *('absl', 'h5py', 'jax', 'numpy', 'pyarrow', 'scipy', 'tqdm'),
)

PLAN = (
  *('plan', '--dim=1000000', '--rounds=4', '--clients_per_round=5'),
  *('--noise_multiplier=1', '--delta=1e-5', '--observed=20'),
)
SMALL = (
  *('--config.rounds=2', '--config.canaries.observed=6'),
  *('--config.data.num_clients=20', '--config.clients_per_round=5'),
)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A working directory with modules of the names of packages, and data."""
  folder = tmp_path_factory.mktemp('planted')
  for name in PLANTED:
    (folder / f'{name}.py').write_text(
      f'open({str(folder / "ran")!r}, "a").write({name!r} + "\\n")\n'
      f'raise SystemExit("the planted {name} ran")\n'
    )
  rows = [('all_train', c, tff_files.image(1)) for c in 'abc']
  tff_files.write(folder / 'f.sqlite', rows)
  with h5py.File(folder / 'f.h5', 'w') as file:
    client = file.create_group('all_train/a')
    client['pixels'] = np.ones((2, 28, 28), np.float32)
    client['label'] = np.array([3, 61], np.int32)
  (folder / 'scores.csv').write_text(
    'in,out\n' + ''.join(f'{i + 3},{i}\n' for i in range(60))
  )
  (folder / 'mine.py').write_text(
    'import numpy as np\n'
    'def rows():\n'
    '  for n in range(3):\n'
    "    yield f'user{n}', {'x': np.array([n, n + 1])}\n"
  )
  (folder / 'make_sum.py').write_text(
    'from epe_jax.conformance.example import make\n'
  )
  return folder


def call(folder, *command):
  (folder / 'ran').unlink(missing_ok=True)
  done = subprocess.run(
    [*map(str, command)],
    capture_output=True,
    text=True,
    check=False,
    cwd=folder,
    env={k: v for k, v in os.environ.items() if k != 'PYTHONPATH'},
  )
  assert not (folder / 'ran').exists(), (folder / 'ran').read_text()
  assert 'planted' not in done.stderr
  return done


@pytest.mark.integration
@pytest.mark.parametrize(
  'calls',
  [
    [
      ('run', 'digits:smoke', '--workdir=run', *SMALL),
      ('estimate', 'run'),
      ('report', 'run'),
    ],
    [PLAN],
    [('estimate', 'scores.csv', '--delta=1e-5')],
    [('sweep', 'digits:smoke', *SMALL, '--axis=seed=0', '--workdir=sweep')],
    [('data', 'f.sqlite', '--out=a', '--workers=2')],
    [('data', 'f.h5', '--out=b', '--workers=1')],
    [('data', 'mine:rows', '--out=c', '--workers=1')],
    [('check', 'make_sum:make', '--shapes=20')],
  ],
  ids=lambda calls: ' '.join(calls[0][:2]),
)
def test_no_command_runs_a_module_of_the_working_directory(folder, calls):
  for argv in calls:
    done = call(folder, PROGRAM, *argv)
    assert done.returncode == 0, done.stderr


@pytest.mark.integration
def test_python_m_puts_the_working_directory_behind_packages(tmp_path):
  (tmp_path / 'absl.py').write_text('raise SystemExit("the planted absl ran")')
  done = call(tmp_path, sys.executable, '-m', 'epe_jax', '--version')
  assert done.stdout.startswith('epe_jax ')


def test_a_child_looks_for_modules_where_its_parent_does(tmp_path, monkeypatch):
  (tmp_path / 'json.py').write_text('raise SystemExit("planted")\n')
  (tmp_path / 'own_module_of_this_test.py').write_text('')
  # Of every folder of PYTHONPATH, site runs these.
  for name in ('sitecustomize', 'usercustomize'):
    (tmp_path / f'{name}.py').write_text(f'print("the planted {name} ran")\n')
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', [*sys.path])
  python_path.search_last(tmp_path)
  code = (
    'import json, sys, own_module_of_this_test; print(json.dumps(sys.path))'
  )
  done = subprocess.run(
    python_path.make_command(code),
    capture_output=True,
    text=True,
    check=True,
  )
  assert 'planted' not in done.stdout
  found = done.stdout
  assert found.index(str(tmp_path)) > found.index('site-packages')


def test_processes_of_multiprocessing_start_without_the_working_directory(
  monkeypatch,
):
  monkeypatch.delenv('PYTHONSAFEPATH', raising=False)
  with python_path.start_safely():
    assert os.environ['PYTHONSAFEPATH'] == '1'
  assert 'PYTHONSAFEPATH' not in os.environ
