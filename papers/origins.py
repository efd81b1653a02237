"""What made a recording: command, versions, processor, commit and minutes."""

from collections.abc import Mapping
import pathlib
import platform
import subprocess
import time
from typing import Any

_HERE = pathlib.Path(__file__).parent


def describe_origin(command: str, start: float) -> dict[str, Any]:
  """What a recording says of itself: command, versions, processor, commit, minutes.

  Args:
    command: makes it again.
    start: `time.monotonic()` when it began.
  """
  from epe_jax.experiment import summary

  return {
    'command': command,
    **describe_state(summary.collect_versions()),
    'minutes': round((time.monotonic() - start) / 60, 1),
  }


def describe_state(versions: Mapping[str, str]) -> dict[str, Any]:
  """The part of an origin that needs no JAX, of versions that are known."""
  return {
    'versions': dict(versions),
    'processor': find_processor(),
    'commit': find_commit(),
  }


def format_origin(origin: Mapping[str, Any]) -> str:
  """The sentence on a page; older recordings lack the last three."""
  parts = [format_versions(origin)]
  for key in ('processor', 'commit', 'minutes'):
    if value := origin.get(key):
      parts.append(f'{key} {value}')
  return f'Made by {", ".join(parts)}.'


def format_versions(origin: Mapping[str, Any]) -> str:
  """The versions of an origin, in words."""
  # Runs are processes of their own, with other devices.
  versions = [*origin['versions'].items()]
  return ', '.join(f'{name} {x}' for name, x in versions if name != 'device')


def find_commit() -> str:
  """The commit of the checkout, marked if it was changed; '' without Git."""
  command = ['git', 'describe', '--always', '--dirty']
  try:
    done = subprocess.run(
      command, cwd=_HERE, capture_output=True, text=True, check=True
    )
  except (OSError, subprocess.CalledProcessError):
    return ''
  return done.stdout.strip()


def find_processor() -> str:
  """The model of the processor, as Linux names it, or else its kind."""
  path = pathlib.Path('/proc/cpuinfo')
  lines = path.read_text().splitlines() if path.is_file() else []
  models = [line for line in lines if line.startswith('model name')]
  if models:
    return models[0].partition(': ')[2]
  return platform.processor() or platform.machine()
