"""Every point of a sweep is checked before the first one starts.

What takes data or a model is checked in a process of its own, on the CPU: the
process of a sweep must not hold the memory of an accelerator that its points need.
"""

from collections.abc import Mapping, Sequence
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from absl import logging
from ml_collections import config_dict

from epe_jax import interpreters, io
from epe_jax.experiment import build, config_fields, stopping, workloads

_MODULE = 'epe_jax.experiment.sweep_checks'
# Fields that decide which data and which model are loaded.
_LOADED_BY = (
  'data',
  'model',
  'task',
  'seed',
  'evaluate_examples',
  'simulation',
)
# What the fields, the data or an import of a user's own may raise.
_FAULTS = (ValueError, OSError, ImportError, TypeError, KeyError)


def find_faults(configs: Mapping[str, workloads.Config]) -> dict[str, str]:
  """Finds what would keep points from starting: in fields, data or participation.

  Data are loaded, and so imported where they have to be, once for all points that
  share them. Nothing is trained and no workdir is touched.

  Args:
    configs: the config of each point, with every field set, by its name.

  Returns:
    The reasons, by the names of the points that cannot be run.
  """
  faults, loaded = {}, None
  for name, config in configs.items():
    key = {field: config.to_dict().get(field) for field in _LOADED_BY}
    try:
      # Points that follow one another mostly share their data.
      if loaded is None or loaded[0] != key:
        checked = config_fields.check_config(config)
        loaded = key, workloads.load_workload(checked)
      build.check(config, loaded[1])
    except _FAULTS as error:
      is_plain = isinstance(error, ValueError | OSError)
      faults[name] = str(error) if is_plain else repr(error)
  return faults


def find_faults_in_process(
  configs: Mapping[str, workloads.Config],
) -> dict[str, str]:
  """Finds the same as `find_faults`, in a process of its own on the CPU.

  Raises:
    RuntimeError: the process ended before it was done.
  """
  if not configs:
    return {}
  with tempfile.TemporaryDirectory() as folder:
    asked, answered = pathlib.Path(folder, 'in'), pathlib.Path(folder, 'out')
    plain = {name: config.to_dict() for name, config in configs.items()}
    asked.write_text(json.dumps(io.spell_non_finite(plain)))
    with subprocess.Popen(
      interpreters.make_command('-m', _MODULE, str(asked), str(answered)),
      env=interpreters.make_environment(JAX_PLATFORMS='cpu'),
      stdin=subprocess.PIPE,
    ) as process:
      code = process.wait()
    if code:
      raise RuntimeError(
        f'the check of {len(configs)} points ended with {code}; what it printed '
        'says why.'
      )
    return json.loads(answered.read_text())


def describe_faults(faults: Mapping[str, str], num_points: int) -> str:
  """Lists all faults, each reason once with the points that it concerns.

  Args:
    faults: the reasons, by the names of points.
    num_points: of the sweep.

  >>> print(describe_faults({'rounds=0': 'give 1', 'rounds=-1': 'give 1'}, 3))
  2 of 3 points cannot be run, so none was started:
    rounds=0
    rounds=-1
      give 1
  """
  names_by_reason: dict[str, list[str]] = {}
  for name, reason in faults.items():
    names_by_reason.setdefault(reason, []).append(name)
  lines = [
    f'{len(faults)} of {num_points} points cannot be run, so none was started:'
  ]
  for reason, names in names_by_reason.items():
    lines += [*(f'  {name}' for name in names), f'    {reason}']
  return '\n'.join(lines)


def _main(argv: Sequence[str]) -> None:
  stopping.end_with_parent()
  asked, answered = argv
  logging.set_verbosity(logging.ERROR)
  plain: dict[str, Any] = json.loads(pathlib.Path(asked).read_text())
  configs = {name: config_dict.ConfigDict(x) for name, x in plain.items()}
  pathlib.Path(answered).write_text(json.dumps(find_faults(configs)))


if __name__ == '__main__':
  _main(sys.argv[1:])
