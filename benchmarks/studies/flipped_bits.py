"""Flipped bits in files that are read, and in the workdir of a run that goes on."""

from collections.abc import Mapping
import contextlib
import pathlib
import shutil
import tempfile
from typing import Any
from unittest import mock

import numpy as np

from epe_jax import io
from epe_jax.experiment import audited_run, metrics
from epe_jax.experiment.setup import config_files
from studies import trials
from studies.trials import Trial
from tests import file_formats


def flip_bits(name: str, num: int) -> list[Trial]:
  """Flips bits of a file of a format, one at a time.

  Args:
    name: a key of `file_formats.FORMATS`.
    num: of bits.
  """
  write, read, is_summed = file_formats.FORMATS[name]
  rng, done = np.random.default_rng(0), []
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / name
    write(path)
    good, expected = path.read_bytes(), file_formats.describe(read(path))
    for _ in range(num):
      path.write_bytes(file_formats.flip_bit(good, rng))
      reason = ''
      try:
        same = file_formats.describe(read(path)) == expected
        changed = trials.LOST if is_summed else trials.UNKNOWN
        outcome = trials.SAME if same else changed
      except Exception as error:
        outcome, reason = _judge(error, path)
      done.append(Trial('flipped bit', name, '', outcome, reason))
  return done


class _Killed(BaseException):
  """Ends a run as nothing else does."""


def flip_bits_of_workdir(num: int) -> list[Trial]:
  """Flips a bit in the workdir of a run that was killed, which then goes on.

  Args:
    num: of bits, each in a copy of the workdir. A kind of file has as many as the
      others.
  """
  rng, done = np.random.default_rng(0), []
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    killed, whole, copy = (folder / x for x in ('killed', 'whole', 'copy'))
    with (
      mock.patch.object(metrics, 'append_line', _kill_later),
      contextlib.suppress(_Killed),
    ):
      _run(killed)
    _run(whole)
    expected = trials.read_runs(whole)
    kinds = _group_files(killed)
    for _ in range(num):
      kind = str(rng.choice([*kinds]))
      inside = kinds[kind][rng.integers(len(kinds[kind]))]
      shutil.copytree(killed, copy)
      file = copy / inside
      file.write_bytes(file_formats.flip_bit(file.read_bytes(), rng))
      try:
        _run(copy)
        outcome, reason = _compare(expected, copy)
      except Exception as error:
        outcome, reason = _judge(error, copy)
      done.append(Trial('flipped bit, run goes on', kind, '', outcome, reason))
      shutil.rmtree(copy)
  return done


def _run(workdir: pathlib.Path) -> None:
  config = config_files.load_config('digits:smoke')
  config.update(**trials.RUN)
  audited_run.run(config, workdir)


_append_line = metrics.append_line


def _kill_later(path: pathlib.Path, line: Mapping[str, Any]) -> None:
  _append_line(path, line)
  if line['round'] == 8:
    raise _Killed


def _group_files(workdir: pathlib.Path) -> dict[str, list[pathlib.Path]]:
  """The files of a workdir that have content, by their kind."""
  kinds: dict[str, list[pathlib.Path]] = {}
  for path in sorted(workdir.rglob('*')):
    if path.is_file() and path.stat().st_size:
      inside = path.relative_to(workdir)
      is_saved = 'checkpoints' in inside.parts
      kind = 'checkpoints' if is_saved else inside.name
      kinds.setdefault(kind, []).append(inside)
  return kinds


def _compare(
  expected: Mapping[str, Any], workdir: pathlib.Path
) -> tuple[str, str]:
  """The outcome of a run that ended. Metrics are for people, and have no digest."""
  found = trials.read_runs(workdir)
  name = 'private/metrics.jsonl'
  lines, right = found.pop(name), expected[name]
  if not trials.is_equal(
    found, {k: x for k, x in expected.items() if k != name}
  ):
    return trials.LOST, ''
  if trials.is_equal(lines, right):
    return trials.SAME, ''
  if len(lines) < len(right):
    return (
      trials.REFUSED,
      'A warning has the file, and the line that is left out.',
    )
  return trials.UNKNOWN, ''


def _judge(error: Exception, path: pathlib.Path) -> tuple[str, str]:
  """The outcome of an error, and what it says: a reason has the path."""
  is_named = isinstance(error, ValueError | OSError) and str(path) in str(error)
  text = str(io.hide_paths(f'{error}' if is_named else f'{error!r}'))
  return (trials.REFUSED if is_named else trials.LOST), text[:200]
