"""A task of a user's own runs, resumes, and is refused as any other."""

import pathlib
import shlex
import signal
import subprocess
import sys
import time
import types

import jax.numpy as jnp
from ml_collections import config_dict
import numpy as np
import pytest

from epe_jax import io
from epe_jax.configs import common
from epe_jax.data import federated
from epe_jax.experiment import Workload, audited_run, workdirs
from epe_jax.experiment.setup import build, workloads
from epe_jax.experiment.setup import config as config_lib
from epe_jax.experiment.sweeps import (
  launch,
  sweep,
  sweep_points,
  sweep_process,
)
from epe_jax.tasks.classifier import classifier

pytestmark = pytest.mark.usefixtures('quick_compilation')

TASK = classifier(
  lambda key: {'w': jnp.zeros((30, 2)), 'b': jnp.zeros((500, 2))},
  lambda params, x, key: x @ params['w'] + params['b'].sum(axis=0),
)


def make_split(rng, prefix, num, labels='y'):
  return federated.from_clients(
    {
      f'{prefix}{i}': {
        'x': rng.normal(size=(6, 30)).astype(np.float32),
        labels: rng.integers(0, 2, 6).astype(np.int32),
      }
      for i in range(num)
    }
  )


def load(config):
  rng = np.random.default_rng(config.data.seed)
  return Workload(TASK, make_split(rng, 'a', 12), make_split(rng, 'b', 3))


@pytest.fixture
def mine(monkeypatch):
  """A module of a user, which can be imported by its name."""
  module = types.ModuleType('mine')
  module.load = load
  monkeypatch.setitem(sys.modules, 'mine', module)
  return module


def make_config(**changes):
  config = common.make_config(
    task='mine:load',
    data=dict(seed=0),
    rounds=2,
    clients_per_round=4,
    client=dict(learning_rate=0.1, batch_size=3, epochs=1),
    server=dict(learning_rate=1.0, momentum=0.0),
    clipping=dict(kind='fixed'),
    noise_multiplier=0.5,
    canaries=dict(observed=8, unobserved=8, family='hadamard'),
    evaluate_every=1,
    checkpoint_every=1,
  )
  config.update_from_flattened_dict(changes)
  return config


@pytest.mark.integration
@pytest.mark.usefixtures('mine', 'unestimated')
def test_a_task_of_ones_own_leaves_a_run_like_any_other(tmp_path):
  result = audited_run.run(make_config(), tmp_path / 'run')
  assert (result.task, result.data, result.dim) == (
    'mine:load',
    'mine:load',
    1060,
  )
  test = load(make_config()).test.columns['y']
  # The majority class of the training data, on those of the test.
  assert result.baseline_accuracy in (np.mean(test == 0), np.mean(test == 1))
  assert (tmp_path / 'run' / 'model.npz').exists()
  written = io.read_json(tmp_path / 'run' / 'config.json')
  assert written['data'] == {'seed': 0}
  assert audited_run.run(make_config(), tmp_path / 'run') == result
  with pytest.raises(ValueError, match=r'data\.seed was 0 and is 1'):
    audited_run.run(make_config(**{'data.seed': 1}), tmp_path / 'run')


def fails(params, batch, key):
  return params['nothing']


def of_mean(params, batch, key):
  return jnp.mean(batch['x'])


@pytest.mark.parametrize(
  ('made', 'message'),
  [
    (lambda w: 'a task', 'gives a str; give an experiment.Workload'),
    (
      lambda w: w._replace(task=TASK._replace(loss=fails)),
      "loss fails for the shapes of its data: KeyError: 'nothing'",
    ),
    (
      lambda w: w._replace(task=TASK._replace(loss=of_mean)),
      r'loss has shape \(\) for 2 examples',
    ),
    (
      lambda w: w._replace(
        task=TASK._replace(metrics=lambda p, b: {'loss': 1})
      ),
      r"without \['accuracy'\]",
    ),
    (
      lambda w: w._replace(
        task=TASK._replace(init=lambda key: {'w': jnp.zeros(30, jnp.int32)})
      ),
      r"init gives \['w'\] of dtype int32; give float32",
    ),
    (
      lambda w: w._replace(
        task=classifier(TASK.init, lambda p, x, k: x @ p['w'], labels='z'),
        train=make_split(np.random.default_rng(0), 'a', 5, 'z'),
        test=make_split(np.random.default_rng(0), 'a', 5, 'z'),
      ),
      'gives no baseline, and its data have no integers',
    ),
  ],
)
def test_what_does_not_fit_is_refused_before_any_work(
  mine, tmp_path, made, message
):
  mine.load = lambda config: made(load(config))
  with pytest.raises(ValueError, match=message):
    audited_run.run(make_config(), tmp_path / 'run')
  assert not (tmp_path / 'run' / 'config.json').exists()


@pytest.mark.usefixtures('mine')
@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'task': 'mine:missing'}, "mine has no function 'missing'; give one"),
    ({'task': 'no_module:load'}, 'no_module:load cannot be imported'),
    (
      {'task': 'mine'},
      "task='mine'; give one of .* or package.module:function",
    ),
  ],
)
def test_a_function_that_is_not_there_is_named(changes, message):
  with pytest.raises(ValueError, match=message):
    build.build(make_config(**changes))


def test_its_own_fields_are_those_of_data_and_model():
  config = make_config()
  config.model = config_dict.create(width=3, name='x', deep=dict(on=True))
  checked = config_lib.check_config(config)
  assert checked.model.deep.on is True
  with config.unlocked():
    config.extra = 1
  with pytest.raises(ValueError, match='extra=1 is not a field'):
    config_lib.check_config(config)
  config = make_config(**{'data.seed': 0})
  with config.ignore_type():
    config.data.seed = (1, 2)
  with pytest.raises(ValueError, match=r'data\.seed=\(1, 2\); give a number'):
    config_lib.check_config(config)


@pytest.mark.usefixtures('mine')
def test_a_sweep_varies_its_own_fields_and_checks_them():
  axes = [('data.seed', (0, 1)), ('rounds', (1, 2))]
  points = sweep_points.make_grid(make_config(), axes)
  assert not sweep_process.find_faults({p.name: p.config for p in points})


def test_a_function_of_a_program_is_no_task_of_a_sweep():
  points = sweep_points.make_grid(
    make_config(task='__main__:load'), [('rounds', (1, 2))]
  )
  with pytest.raises(ValueError, match='put it into a module of its own'):
    sweep.check_points(points)


@pytest.fixture
def my_job(tmp_path, monkeypatch):
  """A config and its task in a file of the working directory."""
  path = tmp_path / 'my_job.py'
  path.write_text(
    'from tests.experiment import test_own_tasks\n'
    'load = test_own_tasks.load\n'
    'def get_config():\n'
    "  return test_own_tasks.make_config(task='my_job:load')\n"
  )
  root = pathlib.Path(workloads.__file__).parents[3]
  monkeypatch.setenv('PYTHONPATH', str(root))
  monkeypatch.chdir(tmp_path)
  return path


@pytest.mark.integration
def test_a_sweep_of_ones_own_task_runs(my_job, tmp_path):
  points = sweep_points.make_grid(
    make_config(task='my_job:load'), [('data.seed', (0, 1))]
  )
  seen = []
  outcome = sweep.run_sweep(points, tmp_path / 'sweep', watch=seen.append)
  assert not outcome.failed
  # Whoever watches is told of each point as it ends.
  assert [len(some.finished) for some in seen] == [1, 2]
  assert seen[-1] == outcome


@pytest.mark.integration
def test_a_job_of_submitit_runs_a_point(my_job, tmp_path):
  submitit = pytest.importorskip('submitit')
  folder = tmp_path / 'run'
  work = launch.JobSpec(
    make_config(task='my_job:load').to_dict(), folder, tmp_path / 'log', 'sweep'
  )
  executor = submitit.LocalExecutor(tmp_path / 'submitit')
  executor.update_parameters(timeout_min=5)
  job = executor.submit(launch.NodeJob(work))
  assert job.result() == 0, (tmp_path / 'log').read_text()
  assert workdirs.workdir_at(folder).result.exists()


@pytest.mark.integration
def test_points_side_by_side_see_devices_of_their_own(
  my_job, tmp_path, monkeypatch
):
  """CPUs stand for GPUs: what a process may see is an environment variable."""
  with my_job.open('a') as file:
    file.write(
      'import os, pathlib\n'
      'def load_and_tell(*args, **kwargs):\n'
      "  seen = os.environ.get('CUDA_VISIBLE_DEVICES')\n"
      '  if seen is not None:\n'
      "    pathlib.Path(f'seen-{os.getpid()}').write_text(seen)\n"
      '  return load(*args, **kwargs)\n'
    )
  monkeypatch.setattr(launch, 'find_gpus', lambda: [*'0123'])
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  points = sweep_points.make_grid(
    make_config(task='my_job:load_and_tell'), [('data.seed', (0, 1, 2))]
  )
  outcome = sweep.run_sweep(
    points,
    tmp_path / 'sweep',
    launch=lambda: launch.make_launcher('local', devices_per_job=2),
  )
  assert len(outcome.finished) == 3
  seen = [path.read_text() for path in tmp_path.glob('seen-*')]
  # Of three points two had the same devices, one after the other.
  assert sorted(seen) in (['0,1', '0,1', '2,3'], ['0,1', '2,3', '2,3'])


@pytest.mark.integration
def test_a_sweep_that_is_stopped_ends_its_runs_and_says_how_to_go_on(
  my_job, tmp_path
):
  folder = tmp_path / 'sweep'
  rounds = 1_000_000
  command = [
    *(sys.executable, '-m', 'epe_jax', 'sweep', str(my_job)),
    *(f'--workdir={folder}', f'--config.rounds={rounds}', '--jobs=2'),
    *('--config.checkpoint_every=100', '--config.evaluate_every=100'),
    '--axis=data.seed=0,1',
  ]
  process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
  names = 'data.seed=0', 'data.seed=1'
  files = [workdirs.workdir_at(folder / name) for name in names]
  deadline = time.monotonic() + 240
  while not all(list(file.checkpoints.glob('[0-9]*')) for file in files):
    assert process.poll() is None, process.communicate()[1]
    assert time.monotonic() < deadline, 'no point saved a checkpoint'
    time.sleep(0.2)
  process.terminate()
  _, err = process.communicate(timeout=240)
  assert process.returncode == 128 + signal.SIGTERM
  assert 'Finishing the rounds of the points that run.' in err
  assert f'Stopped. Of 2 points in {folder}: 2 stopped.' in err
  assert f'To resume: {shlex.join(command)}' in err
  for name, file in zip(names, files):
    log = (folder / f'{name}.log').read_text()
    # The run itself has said so, and has not failed.
    assert 'is saved in' in log
    assert log.rstrip().endswith(
      f'repeat the sweep, which was started by: {shlex.join(command)}'
    )
    assert not (folder / f'{name}.failed').exists()
    assert list(file.checkpoints.iterdir())
    assert not file.result.exists()
