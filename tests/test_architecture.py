"""The shape of the package: who imports whom, and what importing costs."""

import ast
import graphlib
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import epe_jax
from epe_jax import audit, canaries, epsilon, sampling, training
from epe_jax.audit import audited_algorithm, observers
from epe_jax.tasks import digits, emnist, stackoverflow
from epe_jax.training import algorithms, clipping, fedavg
from epe_jax.types import Task, weighted
from tests import helpers

PACKAGE = pathlib.Path(epe_jax.__file__).parent

# Each line may import from itself and from the lines above.
ORDER = [
  [
    'accounting',
    'columns',
    'epsilon',
    'extras',
    'fact',
    'io',
    'locks',
    'progress',
    'python_path',
    'streams',
    'typed_json',
    'types',
  ],
  ['parallel'],
  ['canaries', 'sampling'],
  ['training'],
  ['audit'],
  ['dpsgd', 'several_runs', 'watch'],
  ['data', 'tasks'],
  ['experiment'],
  # Results hold facts; below this line they become words.
  ['report'],
  ['auditor', 'conformance', 'planning', 'scores'],
  ['__main__', 'cli'],
]
LEVEL = {name: i for i, line in enumerate(ORDER) for name in line}
MODULES = sorted(
  p
  for p in PACKAGE.rglob('*.py')
  if p.parent != PACKAGE or (p.name != '__init__.py')
)


def part(path):
  return path.relative_to(PACKAGE).parts[0].removesuffix('.py')


def imported(path):
  """Names of modules that a file imports, wherever in it."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f'{path}: imports are absolute'
      yield node.module
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


def test_modules_import_only_from_their_level_and_above():
  for path, name in ((p, name) for p in MODULES for name in imported(p)):
    parts = name.split('.')
    assert parts[0] != 'papers', f'{path} imports {name}, which no wheel has'
    if parts[0] == 'epe_jax' and parts[1:] not in ([], ['__version__']):
      target = parts[1]
      assert target in LEVEL, f'{path} imports {name}, which has no level'
      assert LEVEL[target] <= LEVEL[part(path)], f'{path} imports {name}'


def test_no_module_imports_itself_in_a_circle():
  names = {
    path: '.'.join(path.relative_to(PACKAGE.parent).with_suffix('').parts)
    for path in MODULES
    if path.name != '__init__.py'
  }
  known = set(names.values())
  order = graphlib.TopologicalSorter(
    {name: known & set(imported(path)) for path, name in names.items()}
  )
  # Where there is a circle, CycleError names its modules.
  assert set(order.static_order()) == known


def test_a_room_has_at_most_20_modules_and_says_what_it_is_for():
  papers = PACKAGE.parent / 'papers'
  rooms = {
    path.parent for root in (PACKAGE, papers) for path in root.rglob('*.py')
  }
  assert PACKAGE / 'epsilon' in rooms
  for room in rooms:
    assert ast.get_docstring(ast.parse((room / '__init__.py').read_text())), (
      room
    )
    assert len([*room.glob('[!_]*.py')]) <= 20, (
      f'{room} is full: add to a file of the kind, or give some a folder of their own'
    )


# Once such a module is imported, it would hide the function.
@pytest.mark.parametrize('package', ['epsilon', 'planning', 'scores'])
def test_no_module_is_named_like_a_public_function(package):
  folder = PACKAGE / package
  stub = ast.parse((folder / '__init__.pyi').read_text())
  public = {
    alias.name
    for node in ast.walk(stub)
    if isinstance(node, ast.ImportFrom) and node.module is not None
    for alias in node.names
  }
  assert public or package == 'scores'
  assert not public & {path.stem for path in folder.iterdir()}


def test_the_order_names_every_module():
  assert {part(p) for p in MODULES} == LEVEL.keys()


def test_estimators_import_no_jax():
  heavy = {'jax', 'flax', 'optax', 'haiku', 'tensorflow', 'absl'}
  paths = sorted((PACKAGE / 'epsilon').rglob('*.py'))
  assert paths
  for path in paths:
    assert not heavy & {name.split('.')[0] for name in imported(path)}, path


# They score canaries or estimate from scores, which an audit has done.
COMPUTE = {
  'bound_sequentially',
  'bound_simultaneously',
  'estimate_with_interval',
  'evaluate',
  'evaluate_by_round',
  'evaluate_rounds',
  'evaluate_scores',
  'score_all',
}


def test_reports_compute_no_estimate():
  for path in sorted((PACKAGE / 'report').rglob('*.py')):
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.ImportFrom) and node.module:
        if node.module.startswith('epe_jax.audit'):
          names = {alias.name for alias in node.names}
          assert not names & (COMPUTE | {'by_round', 'sequential'}), path
      elif isinstance(node, ast.Call):
        called = node.func
        name = getattr(called, 'attr', getattr(called, 'id', None))
        assert name not in COMPUTE, f'{path}:{node.lineno} calls {name}'


@pytest.mark.integration
@pytest.mark.parametrize(
  ('modules', 'heavy', 'loaded'),
  [
    (
      'epe_jax, epe_jax.epsilon, epe_jax.audit.evaluation',
      ['jax', 'flax', 'optax', 'haiku', 'tensorflow', 'absl', 'numpy'],
      ['numpy'],
    ),
    (
      'epe_jax.experiment.audited_run, epe_jax.report.report',
      ['tensorflow', 'jax'],
      ['jax'],
    ),
    # A node starts a point of a sweep.
    (
      'epe_jax.experiment.sweeps.launch',
      ['jax', 'scipy', 'numpy'],
      ['numpy'],
    ),
    (
      'epe_jax.epsilon',
      ['numpy', 'scipy', 'epe_jax.epsilon.two_gaussians', 'epe_jax.epsilon'],
      ['epe_jax.epsilon'],
    ),
    # It takes a second, as long as all else that `epe-jax estimate` does.
    (
      'epe_jax.audit.evaluation',
      ['scipy.special', 'scipy.stats'],
      ['scipy.special'],
    ),
    # What shows a finished run.
    (
      'epe_jax.cli.run, epe_jax.experiment.finished_runs, '
      'epe_jax.report.sentences, epe_jax.report.report',
      ['jax', 'numpy'],
      ['numpy'],
    ),
  ],
)
def test_importing_loads_nothing_heavy(modules, heavy, loaded):
  code = (
    f'import sys, {modules}; print([m for m in {heavy} if m in sys.modules])'
  )
  done = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert ast.literal_eval(done.stdout) == loaded


@pytest.mark.parametrize(
  'room', [epe_jax, audit, canaries, epsilon, sampling, training]
)
def test_every_public_name_is_there(room):
  for name in room.__all__:
    assert getattr(room, name) is not None
  with pytest.raises(AttributeError, match='nonsense'):
    getattr(room, 'nonsense')  # noqa: B009


def test_one_function_says_which_effective_dimension_suffices():
  """Two thresholds would have one part of a report trust what another doubts."""
  defined = {}
  for path in MODULES:
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.FunctionDef):
        defined.setdefault(node.name, []).append(part(path))
        names = [a.arg for a in (*node.args.args, *node.args.kwonlyargs)]
        assert not any('effective_dim' in name for name in names), path
      elif isinstance(node, ast.Compare) and 'effective_dim' in ast.dump(node):
        raise AssertionError(f'{path}: {ast.unparse(node)}')
  assert defined['effective_dimension'] == ['canaries']
  assert defined['min_effective_dimension'] == ['canaries']


def test_every_public_thing_has_a_docstring():
  papers = sorted((PACKAGE.parent / 'papers').rglob('*.py'))
  assert papers
  for path in (*MODULES, *papers):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree) or not tree.body, path
    for node in tree.body:
      is_thing = isinstance(node, ast.FunctionDef | ast.ClassDef)
      if is_thing and not node.name.startswith('_'):
        assert ast.get_docstring(node), f'{path}: {node.name}'


def test_no_line_of_a_docstring_is_joined_with_the_next():
  root = PACKAGE.parent
  folders = 'epe_jax', 'papers', 'configs', 'scripts', 'examples', 'benchmarks'
  paths = (p for f in folders for p in (root / f).rglob('*.py'))
  # Peers have environments of their own.
  for path in (p for p in paths if 'site-packages' not in p.parts):
    for node in ast.walk(ast.parse(path.read_text())):
      is_thing = isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
      if is_thing and ast.get_docstring(node):
        # A backslash at its end joins a line, unless the literal is raw.
        text = node.body[0].value
        lines = text.end_lineno - text.lineno
        assert text.value.count('\n') == lines, f'{path}:{text.lineno}'


# The contract: each public factory makes what its type says.

DIM = 12


def unit_rows():
  rows = jax.random.normal(jax.random.key(0), (3, DIM))
  return rows / jnp.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize(
  'make',
  [
    *(
      lambda name=name: canaries.family(name)(jax.random.key(0), 3, DIM)
      for name in canaries.FAMILIES
    ),
    lambda: canaries.from_matrix(unit_rows()),
  ],
  ids=[*canaries.FAMILIES, 'from_matrix'],
)
def test_canary_sets_keep_the_contract(make):
  c = make()
  assert isinstance(c, canaries.Canaries)
  assert (c.num, c.dim) == (3, DIM)
  for lead in ((), (2,), (2, 4)):
    v = jax.ShapeDtypeStruct((*lead, DIM), jnp.float32)
    out = jax.eval_shape(c.project, v)
    assert (out.shape, out.dtype) == ((*lead, 3), jnp.float32)
  out = jax.eval_shape(c.superpose, jnp.zeros(5, jnp.int32), jnp.zeros(5))
  assert (out.shape, out.dtype) == ((DIM,), jnp.float32)


@pytest.mark.parametrize(
  'make',
  [
    lambda: clipping.fixed(0.1),
    lambda: clipping.adaptive(
      0.1, quantile=0.5, learning_rate=0.2, count_noise=1, expected_clients=9
    ),
  ],
  ids=['fixed', 'adaptive'],
)
@pytest.mark.parametrize('key', [None, jax.random.key(0)], ids=['z=0', 'z>0'])
def test_clippings_keep_the_contract(make, key):
  c = make()
  assert isinstance(c, clipping.Clipping)
  state = c.init()
  new = c.update(key, state, jnp.float32(3), jnp.float32(9))
  same = lambda s: jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), s)
  assert same(new) == same(state)
  assert c.clip_norm(new).shape == ()
  assert c.vector_noise(0) == 0
  assert c.vector_noise(0.5) >= 0.5


@pytest.mark.parametrize(
  'make',
  [
    observers.final_model,
    lambda c: observers.all_iterates(c, rounds=5),
    lambda c: observers.all_iterates(
      c, rounds=5, views=('server_update', 'residual'), buffer=2
    ),
    observers.running_maximum,
  ],
  ids=['final', 'aggregate', 'delta', 'maximum'],
)
def test_observers_keep_the_contract(make):
  observer = make(canaries.from_matrix(unit_rows()))
  assert isinstance(observer, observers.Observer)
  params = {'theta': jnp.ones(DIM)}
  state = observer.init(params)
  v = jnp.ones(DIM)
  new = observer.update(state, observers.RoundView(v, v, v, v))
  same = lambda s: jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), s)
  assert same(new) == same(state)
  scores = observer.scores(new, params)
  assert scores
  for name, cosines in scores.items():
    assert cosines.shape in ((3,), (5, 3)), name


def arrays(**layout):
  return {
    name: jax.ShapeDtypeStruct(shape, dtype)
    for name, (shape, dtype) in layout.items()
  }


LABEL = ((6,), jnp.int32)


@pytest.mark.parametrize(
  ('task', 'batch'),
  [
    (digits.task(), arrays(pixels=((6, 8, 8), jnp.float32), label=LABEL)),
    (emnist.task(10), arrays(pixels=((6, 28, 28), jnp.float32), label=LABEL)),
    (stackoverflow.task(), arrays(words=((6, 20), jnp.int16))),
  ],
  ids=['digits', 'emnist', 'stackoverflow'],
)
def test_tasks_keep_the_contract(task, batch):
  assert isinstance(task, Task)
  params = jax.eval_shape(task.init, jax.random.key(0))
  assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
  loss = jax.eval_shape(task.loss, params, batch, jax.random.key(0))
  metrics = jax.eval_shape(task.metrics, params, batch)
  assert {'loss', 'accuracy'} <= metrics.keys()
  for values in (loss, *metrics.values()):
    for x in jax.eval_shape(weighted, values):
      assert (x.shape, x.dtype) == ((6,), jnp.float32)


def test_algorithms_keep_the_contract():
  task = helpers.linear_task(DIM - 1)
  plain = fedavg.dp_fedavg(
    task,
    client_opt=optax.sgd(0.1),
    server_opt=optax.sgd(0.5, momentum=0.9),
    clipping=clipping.fixed(0.1),
    noise_multiplier=0.5,
    expected_clients=2,
  )
  c = canaries.from_matrix(unit_rows())
  schedule = jnp.zeros((5, 3), bool).at[0, 0].set(True)
  wrapped = audited_algorithm.audited(
    plain, c, jax.device_get(schedule), {'final': observers.final_model(c)}
  )
  cohort = helpers.make_cohort(
    helpers.random_clients(np.random.default_rng(0), [3, 2], DIM - 1),
    batch=2,
    chunk=1,
  )
  params = task.init(jax.random.key(0))
  same = lambda s: jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), s)
  for algorithm, extra in (
    (plain, (algorithms.no_canaries(),)),
    (wrapped, ()),
  ):
    assert isinstance(algorithm, algorithms.Algorithm)
    state = algorithm.init(params)
    new, info = jax.jit(algorithm.step)(state, cohort, *extra, *helpers.keys())
    assert same(new) == same(state)
    assert all(m.shape == () for m in info.by_name().values())
