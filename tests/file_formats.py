"""Small files of each format, what reads them, and damage that is done to them."""

from collections.abc import Callable
import dataclasses
import pathlib
from typing import Any, NamedTuple

import numpy as np

import epe_jax
from epe_jax import io
from epe_jax.audit import evaluation
from epe_jax.audit.record_file import load_record, write_record
from epe_jax.data import store
from epe_jax.experiment import run_result
from epe_jax.scores import score_files
from tests import recorded_runs


class Format(NamedTuple):
  """A format of files.

  Attributes:
    write: writes a small one.
    read: returns what it holds, or raises a ValueError that has its path.
    is_summed: whether a change of what it holds is detected.
  """

  write: Callable[[pathlib.Path], object]
  read: Callable[[pathlib.Path], Any]
  is_summed: bool = True


def make_auditor():
  auditor = epe_jax.Auditor(
    epe_jax.AuditConfig(
      dim=100,
      rounds=3,
      clip_norm=1.0,
      noise_multiplier=1.0,
      delta=1e-5,
      num_observed=4,
      num_unobserved=4,
    ),
    seed=0,
  )
  rng = np.random.default_rng(0)
  for t in range(3):
    injection = auditor.injection(t)
    auditor.observe(t, injection.update + rng.normal(size=100), divisor=1)
  return auditor


def make_result():
  evaluated = evaluation.evaluate(recorded_runs.by_law(), floors=False)
  return recorded_runs.result(audit=evaluated)


def _write_table(path):
  rng = np.random.default_rng(0)
  rows = [f'{x!r},{i % 2}' for i, x in enumerate(rng.normal(size=40).tolist())]
  path.write_text('\n'.join(['score,label', *rows]))


def _write_store(path):
  rng = np.random.default_rng(0)
  clients = [(f'c{i}', {'x': rng.normal(size=(3, 4))}) for i in range(5)]
  store.write(
    path,
    clients,
    source='a test',
  )


def _read_store(path):
  store.verify(path)
  return store.load(path)


FORMATS = {
  'record.npz': Format(
    lambda p: write_record(p, recorded_runs.by_law()), load_record
  ),
  'auditor.npz': Format(
    lambda p: make_auditor().save(p),
    lambda p: epe_jax.Auditor.load(p) and io.read_arrays(p),
  ),
  'groups.npz': Format(
    lambda p: np.savez(p, observed=np.ones(50), unobserved=np.zeros(50)),
    score_files.load,
  ),
  'result.json': Format(
    lambda p: run_result.write_result(p, make_result()), run_result.load_result
  ),
  'clients.arrow': Format(_write_store, _read_store),
  # Made by hand or by other programs, without a digest.
  'scores.npy': Format(lambda p: np.save(p, np.ones(50)), io.read_array, False),
  'scores.csv': Format(_write_table, score_files.load, False),
  'counts.json': Format(
    lambda p: p.write_text('{"FN": 1, "FP": 2, "TN": 3, "TP": 4}'),
    score_files.load,
    False,
  ),
}


def flip_bit(content: bytes, rng: np.random.Generator) -> bytes:
  """The content with one bit of it, anywhere, inverted."""
  changed = bytearray(content)
  place = int(rng.integers(8 * len(changed)))
  changed[place // 8] ^= 1 << (place % 8)
  return bytes(changed)


def describe(value: Any) -> Any:
  """What a reader returned as something that `==` compares to the last bit."""
  if hasattr(value, 'dtype'):
    return str(value.dtype), np.shape(value), np.asarray(value).tobytes()
  if dataclasses.is_dataclass(value) or isinstance(value, epe_jax.Auditor):
    return describe(vars(value))
  if isinstance(value, dict):
    return {k: describe(x) for k, x in value.items()}
  if isinstance(value, tuple | list):
    return [describe(x) for x in value]
  return repr(value)


def is_refused(read: Callable[[pathlib.Path], Any], path: pathlib.Path) -> bool:
  """Whether a file is refused, by its path; any other error is raised."""
  try:
    read(path)
  except ValueError as error:
    if str(path) not in str(error):
      raise
    return True
  return False
