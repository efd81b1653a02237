"""Shapes and dtypes in signatures are checked while the tests run.

What several tests compile is compiled once: all processes of a test run share
one cache of programs, which is made for the run and removed behind it. Scripts
that tests start run on one device, as tests do, unless a test says otherwise:
tests are side by side already, and what they compare is compared bit for bit.
"""

import contextlib
import functools
import importlib
import os
import shutil
import signal
import sys
import tempfile

_CACHE = 'JAX_COMPILATION_CACHE_DIR'
_MADE_HERE = _CACHE not in os.environ
if _MADE_HERE:
  # Before JAX is imported. Workers, and scripts that tests start, inherit it.
  # Small programs are kept too: a test makes the functions of another one anew,
  # and reading what was compiled for those takes less than to compile again.
  os.environ[_CACHE] = tempfile.mkdtemp(prefix='epe_jax_compiled_')
  os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'

os.environ.setdefault('JAX_NUM_CPU_DEVICES', '1')

from absl import flags  # noqa: E402
import jax  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402

from tests import typecheck  # noqa: E402

jaxtyping.install_import_hook('epe_jax', f'{typecheck.__name__}.checked')

# Whoever is started in the background by a script ignores it, and some tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure():
  if _MADE_HERE:
    shutil.rmtree(os.environ[_CACHE], ignore_errors=True)


@pytest.fixture(autouse=True)
def path_restored(monkeypatch):
  """A folder that one test has searched is not searched by the next."""
  monkeypatch.setattr(sys, 'path', [*sys.path])


_IS_FIRST = pytest.StashKey[bool]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
  names = set()
  for item in items:
    name = item.nodeid.partition('[')[0]
    item.stash[_IS_FIRST] = name not in names
    names.add(name)


@pytest.fixture(autouse=True)
def types_checked_once(request):
  """Types are checked in the first case of a test, as checks take a third of its time."""
  is_first = request.node.stash[_IS_FIRST]
  with contextlib.nullcontext() if is_first else _unchecked():
    yield


@pytest.fixture
def types_unchecked():
  """What a user meets, who has no checker that refuses wrong types first."""
  with _unchecked():
    yield


@contextlib.contextmanager
def _unchecked():
  before = jaxtyping.config.jaxtyping_disable
  jaxtyping.config.update('jaxtyping_disable', True)
  yield
  jaxtyping.config.update('jaxtyping_disable', before)


@pytest.fixture(scope='module')
def quick_compilation():
  """Programs compile fast and run slowly: where no test of a module asks for bits.

  What a run writes, refuses and says is the same however well its programs are
  optimized. Where two programs must agree bit for bit, they are compiled as users
  have them.
  """
  jax.config.update('jax_disable_most_optimizations', True)
  yield
  jax.config.update('jax_disable_most_optimizations', False)


@pytest.fixture
def small_task(monkeypatch):
  """Digits by a model that compiles in no time, where any model will do."""
  # Not above: the hook has to be there before the package is imported.
  from tests import helpers

  task = helpers.softmax_regression()
  monkeypatch.setattr('epe_jax.tasks.digits.task', lambda width: task)


@pytest.fixture
def unestimated(monkeypatch):
  """Runs end without estimates, which take longer than a small one."""
  from tests import helpers

  monkeypatch.setattr('epe_jax.audit.evaluation.evaluate', helpers.no_estimates)
  monkeypatch.setattr(
    'epe_jax.watch.by_round.evaluate_rounds', lambda record, audit: None
  )


@pytest.fixture
def no_floors(monkeypatch):
  """Runs end with estimates but without floors, which take most of their time."""
  from epe_jax.audit import evaluation

  evaluate = functools.partial(evaluation.evaluate, floors=False)
  monkeypatch.setattr(evaluation, 'evaluate', evaluate)


@pytest.fixture
def undrawn(monkeypatch):
  """Reports are written without their figures, which take most of the time."""
  monkeypatch.setattr(
    'epe_jax.report.figures.of_audit.draw_run', lambda *finished: {}
  )


@pytest.fixture
def coarse_figures(monkeypatch):
  """Figures are saved with few dots, where not their size but being is meant."""
  from matplotlib import figure

  save = figure.Figure.savefig
  monkeypatch.setattr(
    figure.Figure, 'savefig', lambda *a, **k: save(*a, **k | {'dpi': 20})
  )


@pytest.fixture
def load_benchmark():
  """Imports a program of `benchmarks` by its name."""

  def load(name):
    name = f'benchmarks.{name}'
    module = importlib.import_module(name)
    # Each is a program of its own, whose flags have names that others have.
    for flag in flags.FLAGS.get_flags_for_module(name):
      delattr(flags.FLAGS, flag.name)
    return module

  return load
