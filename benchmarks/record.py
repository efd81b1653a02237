"""The record of a benchmark: its figures, with the machine and the versions."""

from collections.abc import Mapping
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
from typing import Any

from epe_jax import __version__, io

FOLDER = pathlib.Path(__file__).parent / 'results'


def write(
  path: str | os.PathLike, figures: Mapping[str, Any], *packages: str
) -> None:
  """Writes figures beside the machine they were measured on, and prints them.

  Args:
    path: of the JSON file; its folder is made if missing.
    figures: name -> what JSON can hold.
    *packages: installed ones whose versions decide the figures.
  """
  record = {**figures, 'machine': machine(*packages), 'date': _now()}
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  io.write_json(path, record)
  print(json.dumps(record, indent=2))


def machine(*packages: str) -> dict[str, Any]:
  """The processor, the device of JAX if that is among the packages, versions."""
  info = pathlib.Path('/proc/cpuinfo').read_text()
  models = [x for x in info.splitlines() if x.startswith('model name')]
  device = {}
  if 'jax' in packages:
    import jax

    device['device'] = f'{jax.device_count()} x {jax.devices()[0].device_kind}'
  return {
    'cpu': models[0].partition(': ')[2] if models else platform.processor(),
    'cores': len(os.sched_getaffinity(0)),
    **device,
    'python': platform.python_version(),
    **{name: importlib.metadata.version(name) for name in packages},
    # A checkout may be used without being installed.
    'epe_jax': __version__,
  }


def _now() -> str:
  return datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')
