"""Files of a run: whole or absent, without pickle, and readable again."""

from concurrent import futures
import json
import math
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epe_jax import io, locks
from epe_jax.experiment import (
  checkpoint,
  metrics,
  model_file,
  workdirs,
)
from epe_jax.training.fedavg import TrainState


def test_json_comes_back_with_numbers_that_are_not_finite_as_strings(tmp_path):
  path = tmp_path / 'a.json'
  io.write_json(
    path, {'a': [1.5, math.inf, -math.inf], 'b': (math.nan, None, 'x')}
  )
  assert json.loads(path.read_text(), parse_constant=pytest.fail) == {
    'a': [1.5, 'Infinity', '-Infinity'],
    'b': ['NaN', None, 'x'],
  }
  assert float(io.read_json(path)['a'][1]) == math.inf


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(tmp_path):
  path = tmp_path / 'a.json'
  io.write_json(path, {'old': True})

  def fail(f):
    f.write(b'half')
    raise OSError('disk full')

  with pytest.raises(OSError, match='disk full'):
    io.write_atomically(path, fail)
  assert io.read_json(path) == {'old': True}
  assert list(tmp_path.iterdir()) == [path]
  with pytest.raises(
    FileNotFoundError, match=f'{tmp_path}/none is not a folder'
  ):
    io.write_text(tmp_path / 'none' / 'a.json', '')


def test_drafts_that_nobody_writes_any_more_are_removed(tmp_path):
  names = 'a[1]', '.a[1].lock', '.a[1].0123abcd', '.a[1].456789ef'
  path, lock, old, new = (tmp_path / name for name in names)
  for file in (lock, old, new):
    file.touch()
  for file in (lock, old):
    os.utime(file, (0, time.time() - 2 * 86_400))
  io.write_text(path, 'text')
  assert {*tmp_path.iterdir()} == {path, lock, new}


def test_files_that_many_write_at_once_are_all_written(tmp_path):
  path = tmp_path / 'a'
  with futures.ThreadPoolExecutor(8) as pool:
    for done in [pool.submit(io.write_text, path, str(i)) for i in range(400)]:
      done.result()
  assert [*tmp_path.iterdir()] == [path]


def _make_once(path, made, text='[1]', **settings):
  def make(draft):
    made.append(draft)
    draft.write_text(text)

  return locks.make_once(path, make, io.read_json, **settings)


def test_a_file_is_made_once_and_then_read(tmp_path):
  path, made = tmp_path / 'cache' / 'a.json', []
  assert _make_once(path, made) == _make_once(path, made, '[2]') == [1]
  assert len(made) == 1
  assert list(path.parent.iterdir()) == [path]


def test_a_damaged_file_is_made_again_where_it_is_a_cache(tmp_path):
  path = tmp_path / 'a.json'
  path.write_text('[')
  with pytest.raises(ValueError, match=r'a\.json is not JSON'):
    _make_once(path, [], remake_damaged=False)
  assert _make_once(path, []) == [1]
  assert list(tmp_path.iterdir()) == [path]


def test_what_fails_to_be_made_is_not_there_and_is_made_by_the_next(tmp_path):
  def fail(draft):
    draft.write_text('[1')
    raise OSError('disk full')

  path = tmp_path / 'a.json'
  with pytest.raises(OSError, match='disk full'):
    locks.make_once(path, fail, io.read_json)
  assert not list(tmp_path.iterdir())
  # As a process that was killed leaves it.
  (tmp_path / f'.{path.name}.0123abcd').write_text('[1')
  assert _make_once(path, []) == [1]
  assert list(tmp_path.iterdir()) == [path]


def test_many_that_want_one_file_make_it_once(tmp_path):
  made, together = [], threading.Barrier(4)

  def want(i):
    together.wait()
    return _make_once(tmp_path / 'a.json', made, f'[{i}]')

  with futures.ThreadPoolExecutor(4) as pool:
    values = list(pool.map(want, range(4)))
  assert len(made) == 1
  assert values == [values[0]] * 4


def test_waiting_for_another_process_has_an_end(tmp_path):
  path = tmp_path / 'a.json'
  with locks.hold(tmp_path / '.a.json.lock', max_wait=0):
    message = rf'made by process {os.getpid()} on .* 0 s\. Wait'
    with pytest.raises(TimeoutError, match=message):
      _make_once(path, [], max_wait=0.05)
  assert _make_once(path, []) == [1]


def test_damaged_files_are_named(tmp_path):
  path = tmp_path / 'a.json'
  path.write_text('{')
  with pytest.raises(ValueError, match=r'a\.json is not JSON'):
    io.read_json(path)
  path = tmp_path / 'a.npz'
  io.write_arrays(path, {'x': np.arange(1000)})
  np.testing.assert_array_equal(io.read_arrays(path)['x'], np.arange(1000))
  assert io.list_arrays(path) == {'x'}
  path.write_bytes(path.read_bytes()[:100])
  for read in (io.read_arrays, io.list_arrays):
    with pytest.raises(ValueError, match=r'a\.npz is not a readable'):
      read(path)
    with pytest.raises(FileNotFoundError):
      read(tmp_path / 'none.npz')


def test_arrays_that_need_pickle_are_not_read(tmp_path):
  path = tmp_path / 'a.npz'
  np.savez(path, x=np.array([{}], dtype=object))
  with pytest.raises(ValueError, match=r'a\.npz'):
    io.read_arrays(path)
  path.write_bytes(pickle.dumps({'x': 1}))
  with pytest.raises(ValueError, match=r'a\.npz'):
    io.read_arrays(path)


def test_metrics_rewind_to_a_round_and_forget_a_line_cut_short(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  for t in range(5):
    metrics.append_line(path, {'round': t, 'loss': t / 2})
  with open(path, 'a') as f:
    f.write('{"round": 5, "lo')
  assert [r['round'] for r in metrics.read_lines(path)] == [0, 1, 2, 3, 4]
  metrics.rewind_to(path, 3)
  metrics.append_line(path, {'round': 4, 'loss': 9.0})
  assert metrics.read_lines(path)[-2:] == [
    {'round': 3, 'loss': 1.5},
    {'round': 4, 'loss': 9.0},
  ]


def test_lines_of_metrics_that_are_damaged_are_left_out(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  path.write_text(
    'nonsense\n{"round": 1}\n{"rou\n[]\n{"loss": 2}\n{"round": 2}'
  )
  assert metrics.read_lines(path) == [{'round': 1}, {'round': 2}]


def state(x):
  return TrainState(
    round=jnp.int32(x),
    params={'w': jnp.full(3, x, jnp.float32)},
    opt_state=(),
    clip_state=jnp.float32(x),
  )


def test_the_newest_checkpoint_that_can_be_read_comes_back(tmp_path):
  # Folders of sweeps have such names.
  folder = tmp_path / 'lr[0.1]*?' / 'c'
  open_folder = lambda: checkpoint.Checkpoints(folder, of='a run')
  saved = open_folder()
  assert saved.restore(state(0)) is None
  for t in (3, 6, 10):
    saved.save(t, state(t))
  saved.close()
  assert saved.find_saved() == 10
  nine, six = folder / '10.npz', folder / '6.npz'
  assert {*folder.iterdir()} == {nine, six}
  rounds, restored = open_folder().restore(state(0))
  assert rounds == 10
  assert type(restored) is TrainState
  np.testing.assert_array_equal(restored.params['w'], [10, 10, 10])
  assert restored.round.dtype == jnp.int32
  # A bit of a number is flipped.
  content = bytearray(nine.read_bytes())
  content[content.index(np.float32(10).tobytes())] ^= 1
  nine.write_bytes(content)
  damaged = open_folder()
  rounds, restored = damaged.restore(state(0))
  assert rounds == damaged.find_saved() == 6
  np.testing.assert_array_equal(restored.params['w'], [6, 6, 6])
  assert not nine.exists()
  with pytest.raises(ValueError, match='none of the checkpoints'):
    open_folder().restore((state(0), np.zeros(1)))
  six.write_bytes(b'')
  with pytest.raises(ValueError, match='none of the checkpoints'):
    open_folder().restore(state(0))


def test_a_checkpoint_keeps_numbers_of_every_dtype(tmp_path):
  values = [jnp.ones(3, dtype) for dtype in ('bfloat16', 'bool', 'uint8')]
  saved = checkpoint.Checkpoints(tmp_path, of='a run')
  saved.save(1, values)
  saved.close()
  _, restored = saved.restore(values)
  assert [x.dtype for x in restored] == [x.dtype for x in values]
  jax.tree.map(np.testing.assert_array_equal, restored, values)


def test_arrays_of_the_host_stay_there(tmp_path):
  saved = checkpoint.Checkpoints(tmp_path / 'c', of='a run')
  times = np.arange(4, dtype=np.float32)
  saved.save(1, (state(1), times))
  times[:] = 0
  _, (_, restored) = saved.restore((state(0), np.zeros(4, np.float32)))
  saved.close()
  assert type(restored) is np.ndarray
  np.testing.assert_array_equal(restored, np.arange(4))


def test_the_final_model_is_read_back_as_it_was(tmp_path):
  params = {
    'dense': {'kernel': np.eye(3, dtype=np.float32), 'bias': np.ones(3)},
    'layers': [np.float32(2), (np.arange(4),)],
    'a/b': np.zeros((2, 0), np.float32),
  }
  files = workdirs.workdir_at(tmp_path)
  model_file.write_params(files.model, params)
  like = jax.eval_shape(lambda: params)
  found = model_file.load_params(tmp_path, like)
  assert jax.tree.structure(found) == jax.tree.structure(params)
  jax.tree.map(np.testing.assert_array_equal, found, params)
  other = params | {'dense': {'kernel': np.zeros((3, 4)), 'bias': np.ones(3)}}
  with pytest.raises(ValueError, match=r'another model: dense/kernel differ'):
    model_file.load_params(tmp_path, other)
  with pytest.raises(FileNotFoundError):
    model_file.load_params(tmp_path / 'none', like)


_HOLDER = """
import pathlib, sys, time
from epe_jax.experiment import workdirs
with workdirs.lock(workdirs.workdir_at(sys.argv[1])):
  print('held', flush=True)
  time.sleep(600)
"""


def test_a_workdir_is_of_one_process_until_that_ends_however_it_ends(tmp_path):
  files = workdirs.workdir_at(tmp_path)
  with subprocess.Popen(
    [sys.executable, '-c', _HOLDER, str(tmp_path)],
    stdout=subprocess.PIPE,
    text=True,
    cwd=pathlib.Path(__file__).parents[1],
  ) as process:
    assert process.stdout.readline() == 'held\n'
    message = f'in use by process {process.pid} on'
    with pytest.raises(ValueError, match=message), workdirs.lock(files):
      pass
    process.kill()
  with workdirs.lock(files):
    assert files.private.stat().st_mode & 0o777 == 0o700
    # Not twice in one process either.
    message = 'in use by process'
    with pytest.raises(ValueError, match=message), workdirs.lock(files):
      pass
  assert not files.lock.exists()


def test_a_draft_of_another_file_is_left(tmp_path):
  other = tmp_path / '.result.json.deadbeef'
  own = tmp_path / '.result.deadbeef'
  for path in (other, own):
    path.touch()
  io.remove_drafts(tmp_path / 'result', older_than=0)
  assert other.exists()
  assert not own.exists()


def test_what_is_written_to_the_descriptor_of_stdout_stays_between_prints(
  tmp_path,
):
  program = (
    "from epe_jax import io; print('a'); io.write_text('/dev/fd/1', 'b\\n'); "
    "print('c')"
  )
  with open(tmp_path / 'out', 'wb') as file:
    subprocess.run([sys.executable, '-c', program], stdout=file, check=True)
  assert (tmp_path / 'out').read_text().split() == ['a', 'b', 'c']


def test_a_lock_is_read_by_whoever_asks(tmp_path):
  path = tmp_path / 'lock'
  assert locks.find_holder(path) is None
  with locks.hold(path, max_wait=0):
    assert str(os.getpid()) in locks.find_holder(path)
  # That of a process that was killed is left, and held by nobody.
  path.write_text('process 1 on elsewhere')
  path.chmod(0o444)
  assert locks.find_holder(path) is None
  assert path.exists()
