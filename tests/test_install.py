"""What an installation needs: no more than it says, and where more, it says what."""

import ast
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import venv
import zipfile

import numpy as np
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
import pytest

import epe_jax
from epe_jax import extras
from epe_jax.audit import evaluation
from epe_jax.cli import program
from epe_jax.report import report
from epe_jax.scores import score_files
from tests import installed

ROOT = installed.ROOT
PROJECT = installed.PROJECT
# Frameworks that are audited, in environments of their own.
FRAMEWORKS = {'flower', 'nvflare', 'opacus', 'pfl'}
# Hardware, clusters and development; everything else is of use to all.
APART = {'all', 'colab', 'cuda', 'dev', 'docs', 'ray', 'slurm', 'tpu'}
APART |= FRAMEWORKS
# Trackers of experiments, of which a person has one.
TRACKERS = {'mlflow', 'wandb'}
APART |= TRACKERS

# What works without extras: estimates from a CSV, by the library and by its
# command. The names of each room that need no JAX are those that can be had.
ESTIMATE = """
import contextlib, io, json, sys
csv = sys.argv[1]

from epe_jax import audit, epsilon, experiment, sampling
from epe_jax.scores import score_files

scores = score_files.load(csv).scores
bound = epsilon.lower_bound(scores, delta=1e-5).epsilon
rooms = {}
for room in (audit, epsilon, experiment, sampling):
  rooms[room.__name__] = missing = []
  for name in room.__all__:
    try:
      getattr(room, name)
    except ImportError:
      missing.append(name)

from epe_jax.cli import program

table = io.StringIO()
with contextlib.redirect_stdout(table):
  program.main(['estimate', csv, '--delta=1e-5', '--all'])
print(json.dumps({
  'bound': bound, 'missing': rooms, 'table': table.getvalue(),
  'jax': 'jax' in sys.modules, 'at': audit.__file__,
}))
"""
NEEDS_JAX = {
  'epe_jax.audit': [
    'Observer',
    'RoundView',
    'all_iterates',
    'audited',
    'compute_cosines',
    'final_model',
    'running_maximum',
    'score_observers',
  ],
  'epe_jax.epsilon': [],
  'epe_jax.experiment': [
    'Workload',
    'load_params',
    'run',
    'run_sweep',
  ],
  'epe_jax.sampling': [],
}

# What each of some statements says of the package that it lacks.
EXPLAIN = """
import contextlib, json, sys
said = []
for statement in sys.argv[1:]:
  try:
    exec(statement)
  except ImportError as error:
    said.append(str(error))
  else:
    said.append('nothing')
print(json.dumps(said))
"""

# The exit status of each of some commands, and what it says.
COMMANDS = """
import contextlib, io, json, sys
from epe_jax.cli import program
ended = []
for argv in json.loads(sys.argv[1]):
  with contextlib.redirect_stderr(io.StringIO()) as err:
    code = program.main(argv)
  ended.append((code, err.getvalue()))
print(json.dumps(ended))
"""


@pytest.fixture
def csv(tmp_path):
  rng = np.random.default_rng(0)
  path = tmp_path / 'scores.csv'
  lines = [f'{x!r},1' for x in rng.normal(3, 1, 60).tolist()]
  lines += [f'{x!r},0' for x in rng.normal(0, 1, 60).tolist()]
  path.write_text('\n'.join(['score,observed', *lines]) + '\n')
  return path


def assert_estimated(found, csv):
  scores = score_files.load(csv).scores
  audit = evaluation.evaluate_scores(scores, delta=1e-5)
  assert found['table'].strip() == report.format_estimates(audit).strip()
  assert found['bound'] == pytest.approx(
    epe_jax.epsilon.lower_bound(scores, delta=1e-5).epsilon
  )
  assert found['missing'] == NEEDS_JAX
  assert not found['jax']


@pytest.mark.integration
def test_without_extras_a_csv_is_estimated(csv):
  found = installed.run(ESTIMATE, csv)
  assert_estimated(found, csv)


def explained(statements, tmp_path, *have):
  """What each statement says, of a package and its extra, with these extras."""
  return dict(
    zip(
      statements,
      installed.run(EXPLAIN, *statements, extras=have, cwd=tmp_path),
    )
  )


def cure(package, extra):
  return (
    f'{package} is not installed. Install it with the extra {extra!r}: '
    f"pip install '.[{extra}]' in a checkout of epe_jax"
  )


@pytest.mark.integration
def test_without_jax_the_error_names_the_extra(tmp_path):
  scripts = 'gaussian', 'power'
  statements = [
    'from epe_jax import training; training.clipping',
    'from epe_jax.training import dp_fedavg',
    'from epe_jax import canaries; canaries.sphere',
    'from epe_jax.canaries import sphere',
    'from epe_jax.audit import audited',
    'from epe_jax import experiment; experiment.run',
    'from epe_jax.types import Task',
    'from epe_jax.configs import digits',
    'from epe_jax.data import store',
    'from epe_jax.data import digits; digits.load(0, num_clients=2, concentration=1.0)',
    *(
      f'import runpy; runpy.run_path({str(ROOT / "scripts" / f"{s}.py")!r})'
      for s in scripts
    ),
  ]
  for statement, said in explained(statements, tmp_path).items():
    packages = [p for p, extra in extras.EXTRAS.items() if extra == 'training']
    assert said in [cure(p, 'training') for p in packages], statement


@pytest.mark.integration
def test_without_jax_a_command_names_the_extra(tmp_path):
  calls = [
    ['run', 'digits'],
    ['sweep', 'digits', '--grid=noise'],
    ['data', 'x', '--out=y'],
  ]
  for (code, err), call in zip(
    installed.run(COMMANDS, json.dumps(calls), cwd=tmp_path), calls
  ):
    packages = [p for p, extra in extras.EXTRAS.items() if extra == 'training']
    assert code == 2, call
    assert err in [f'error: {cure(p, "training")}\n' for p in packages], call


@pytest.mark.integration
def test_without_an_extra_the_error_names_it(tmp_path):
  expected = {
    'import epe_jax.tasks.stackoverflow': cure('haiku', 'haiku'),
    "from epe_jax.report import report; report.write_report('run')": cure(
      'matplotlib', 'reports'
    ),
    'import epe_jax.auditor.adapters.flower': cure('flwr', 'flower'),
    'import epe_jax.conformance.adapters.flower': cure('flwr', 'flower'),
    'import epe_jax.auditor.adapters.nvflare': cure('nvflare', 'nvflare'),
    'import epe_jax.auditor.adapters.opacus': cure('opacus', 'opacus'),
    'import epe_jax.auditor.adapters.pfl': cure('pfl', 'pfl'),
  }
  assert explained(list(expected), tmp_path, 'training') == expected


@pytest.mark.integration
def test_figures_need_no_jax(tmp_path):
  statement = 'from epe_jax.report.figures import of_audit, style'
  assert explained([statement], tmp_path, 'reports') == {statement: 'nothing'}


def imported(path):
  """Names of others' packages that a file imports, wherever in it."""
  for node in ast.walk(ast.parse(path.read_text())):
    names = []
    if isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      names = [str(node.module)]
    for name in names:
      head = name.partition('.')[0]
      ours = {'epe_jax', 'papers'}
      if head not in ours | sys.stdlib_module_names:
        yield head


def test_whatever_is_imported_is_declared():
  files = itertools.chain.from_iterable(
    (ROOT / folder).rglob('*.py')
    for folder in ('epe_jax', 'configs', 'papers', 'scripts')
  )
  declared = {
    extra: {canonicalize_name(r.name) for r in installed.requirements(extra)}
    for extra in PROJECT['optional-dependencies']
  }
  core = {canonicalize_name(r.name) for r in installed.requirements()}
  # Who audits a framework has it.
  files = [path for path in files if path.parent.name != 'adapters']
  names = {(name, path) for path in files for name in imported(path)}
  assert {'jax', 'numpy', 'matplotlib'} <= {name for name, _ in names}
  for name, path in names:
    extra = extras.EXTRAS.get(name)
    place = core if extra is None else declared[extra] - core
    assert installed.distributions()[name] & place, f'{path} imports {name}'
  for name, extra in extras.EXTRAS.items():
    if extra not in FRAMEWORKS | TRACKERS:
      assert installed.distributions()[name] & declared[extra], name


def test_all_has_every_extra_and_make_run_installs_it():
  optional = PROJECT['optional-dependencies']
  (everything,) = (Requirement(line) for line in optional['all'])
  assert everything.extras == optional.keys() - APART
  commands = subprocess.run(
    ['make', '--dry-run', 'run', f'VENV={ROOT / "none"}'],
    capture_output=True,
    text=True,
    check=True,
    cwd=ROOT,
  )
  assert "install -q -e '.[all]'" in commands.stdout


def test_every_extra_that_is_named_exists():
  files = [
    *(
      ROOT / name
      for name in ('README.md', '.github/CONTRIBUTING.md', 'Makefile')
    ),
    *(ROOT / 'colabs').glob('*.ipynb'),
    *(ROOT / 'docs').rglob('*.md'),
    *(ROOT / 'epe_jax').rglob('*.py'),
  ]
  named = {
    extra
    for path in files
    for extras_of in re.findall(
      r"""(?:epe_jax|'\.|root})\[([\w,]+)\]['`]""", path.read_text()
    )
    for extra in extras_of.split(',')
  }
  optional = PROJECT['optional-dependencies']
  assert {'all', 'training', 'reports'} <= named <= optional.keys()


def pip(python, *arguments):
  """Runs pip of a Python."""
  command = [python, '-m', 'pip', *arguments, '-q']
  subprocess.run(list(map(str, command)), check=True)


FOLDERS = 'configs', 'epe_jax'
FILES = 'LICENSE', 'README.md', 'pyproject.toml', 'setup.py'


def copy_sources(folder, *more):
  """A copy of what builds the package, as a build leaves folders behind."""
  sources = folder / 'sources'
  for name in (*FOLDERS, *more):
    shutil.copytree(
      ROOT / name, sources / name, ignore=shutil.ignore_patterns('__pycache__')
    )
  for name in FILES:
    shutil.copy(ROOT / name, sources)
  return sources


def install(requirement, folder, *arguments):
  """The folder of the programs of a new environment that has a requirement."""
  venv.create(folder / 'env', with_pip=True)
  programs = folder / 'env' / 'bin'
  pip(programs / 'python', 'install', *arguments, requirement)
  return programs


def call(*command, cwd, **environment):
  """Runs a program of an environment, without the paths of these tests."""
  return subprocess.run(
    list(map(str, command)),
    capture_output=True,
    text=True,
    check=False,
    cwd=cwd,
    env={k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
    | environment,
  )


def list_lowest():
  """The lowest version that is stated of each package, as constraints of pip."""
  optional = PROJECT['optional-dependencies']
  lowest = {}
  for requirement in installed.requirements(*optional.keys() - APART):
    # Other operators exclude versions.
    (minimum,) = (x for x in requirement.specifier if x.operator == '>=')
    stated = Version(minimum.version)
    lowest[requirement.name] = max(lowest.get(requirement.name, stated), stated)
  return [f'{name}=={stated}' for name, stated in lowest.items()]


def test_a_minimum_is_stated_of_every_package():
  assert {'numpy', 'jax', 'matplotlib'} <= {
    line.partition('==')[0] for line in list_lowest()
  }


# Of every package that is required: what calls it.
CALLING = (
  'accounting',
  'data/formats/test_arrays.py',
  'data/test_decoding.py',
  'data/formats/test_example_proto.py',
  'data/formats/test_hdf5.py',
  'data/test_store.py',
  'data/formats/test_tfds.py',
  'experiment/test_programs.py',
  'tasks/test_images.py',
  'tasks/test_stackoverflow.py',
  'test_io.py',
  'dpsgd/test_dp_sgd.py',
)


CORE = 'accounting', 'audit', 'canaries', 'epsilon', 'sampling', 'training'


def test_what_runs_with_other_versions_is_there():
  names = [
    name for name in (*CORE, *CALLING) if not (ROOT / 'tests' / name).exists()
  ]
  assert not names


@pytest.mark.slow  # Downloads all packages: minutes.
@pytest.mark.parametrize('versions', ['lowest', 'newest'])
def test_the_versions_that_are_stated_run(tmp_path, versions):
  python = '.'.join(map(str, sys.version_info[:2]))
  if versions == 'lowest' and PROJECT['requires-python'] != f'>={python}':
    pytest.skip('The lowest versions have wheels for the lowest Python.')
  sources = copy_sources(tmp_path, 'benchmarks', 'papers', 'scripts', 'tests')
  constraints = tmp_path / 'constraints.txt'
  lines = list_lowest() if versions == 'lowest' else ()
  constraints.write_text('\n'.join(lines))
  tools = 'beartype', 'hypothesis', 'mpmath', 'packaging', 'pytest-xdist'
  programs = install(
    f'{sources}[all]', tmp_path, *tools, f'--constraint={constraints}', '-e'
  )
  # What a dependency will drop is an error with its newest release alone.
  warnings = ('-W', 'default') if versions == 'lowest' else ()
  for command in (
    ('epe-jax', 'run', 'digits', '--workdir=run'),
    (
      *('python', '-m', 'pytest', '-q', '-n', 'auto', *warnings),
      *(f'tests/{name}' for name in (*CORE, *CALLING)),
    ),
  ):
    # Of transitive packages, whose versions nobody states, annotations may differ.
    done = call(
      *(programs / command[0], *command[1:]),
      cwd=sources,
      JAXTYPING_DISABLE='1',
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
  """A wheel, built from the sdist of this checkout, which has all that it needs."""
  folder = tmp_path_factory.mktemp('built')
  python = install('build', folder) / 'python'
  done = call(
    *(python, '-m', 'build', '--outdir', folder / 'dist'),
    copy_sources(folder),
    cwd=folder,
  )
  assert done.returncode == 0, done.stderr
  assert len([*(folder / 'dist').glob('*.tar.gz')]) == 1
  (wheel,) = (folder / 'dist').glob('*.whl')
  return wheel


@pytest.mark.slow  # Builds in an environment of its own: a minute.
def test_the_wheel_has_every_file_of_the_package(wheel):
  files = {
    str(path.relative_to(ROOT))
    for path in (ROOT / 'epe_jax').rglob('*.*')
    if '__pycache__' not in path.parts
  } | {
    f'epe_jax/configs/{path.name}' for path in (ROOT / 'configs').glob('*.*')
  }
  assert 'epe_jax/py.typed' in files
  inside = zipfile.ZipFile(wheel).namelist()
  assert {name for name in inside if '.dist-info/' not in name} == files


# What Python has on POSIX alone.
POSIX = (
  *('fcntl', 'grp', 'pty', 'pwd', 'readline', 'resource', 'syslog'),
  *('termios', 'tty'),
)
WITHOUT_POSIX = f'import sys; sys.modules.update(dict.fromkeys({POSIX}))\n'


@pytest.mark.slow  # Downloads what the wheel requires: a minute.
def test_the_wheel_alone_estimates_from_a_csv(wheel, csv, tmp_path):
  python = install(wheel, tmp_path) / 'python'
  for code in (ESTIMATE, WITHOUT_POSIX + ESTIMATE):
    done = call(python, '-c', code, csv, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert_estimated(found, csv)
    assert pathlib.Path(found['at']).is_relative_to(tmp_path / 'env')
  for name in program.COMMANDS:
    done = call(tmp_path / 'env/bin/epe-jax', name, '--help', cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, ''), name
  aggregation = 'epe_jax.conformance.example:NoNoiseOnBiases'
  code = (
    f'{WITHOUT_POSIX}from epe_jax.cli import program\n'
    f'sys.exit(program.main(["check", {aggregation!r}, "--shapes=20x30,30"]))'
  )
  done = call(python, '-c', code, cwd=tmp_path)
  assert done.returncode == 1, done.stderr
  assert 'PRIVACY  tensor_noise' in done.stdout


@pytest.mark.slow  # Downloads JAX: minutes.
@pytest.mark.parametrize(
  ('extras_of', 'config'),
  [('training,reports', 'digits:smoke'), ('all', 'digits')],
)
def test_the_wheel_alone_runs_a_config_by_its_name(
  wheel, csv, tmp_path, extras_of, config
):
  program = install(f'{wheel}[{extras_of}]', tmp_path) / 'epe-jax'
  folder = tmp_path / 'empty'
  folder.mkdir()
  done = call(program, 'run', config, cwd=folder)
  assert done.returncode == 0, done.stderr
  run = f'runs/{config.replace(":", "-")}'
  assert done.stdout.endswith(
    f'Report: {run}/report.html, model: {run}/model.npz\n'
  )
  assert (folder / run / 'report.md').is_file()
  done = call(
    *(program, 'estimate', csv, '--delta=1e-5', '--claim=1', '--out=scores'),
    cwd=folder,
  )
  assert done.returncode == 1, done.stderr
  assert 'violated' in done.stdout
  assert (folder / 'scores/report.md').is_file()
  done = call(program, 'sweep', 'digits', '--grid=repetition', cwd=folder)
  assert done.returncode == 2
  assert 'give one of repetitions' in done.stderr
