"""Interpreters that find some packages only, as a user's do who left out extras.

Everything is installed where tests run. What a requirement of pyproject.toml
brings, and what that requires in turn, is read from the metadata of the installed
packages; in a process of its own the import system finds nothing else.
"""

import functools
from importlib import metadata
import json
import pathlib
import subprocess
import sys
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']

_HIDE = """
import importlib.machinery, sys

class Finder(importlib.machinery.PathFinder):
  @classmethod
  def find_spec(cls, name, path=None, target=None):
    if name.partition('.')[0] not in HIDDEN:
      return super().find_spec(name, path, target)

sys.meta_path = [
  Finder if finder is importlib.machinery.PathFinder else finder
  for finder in sys.meta_path
]
"""


def requirements(*extras):
  """What pyproject.toml asks for without extras, and what these add to it."""
  lines = list(PROJECT['dependencies'])
  for extra in extras:
    lines += PROJECT['optional-dependencies'][extra]
  return [Requirement(line) for line in lines]


def _closure(asked):
  """Names of these packages and of all that they require."""
  found = set()
  waiting = [(r, extra) for r in asked for extra in ('', *r.extras)]
  while waiting:
    requirement, extra = waiting.pop()
    key = canonicalize_name(requirement.name), extra
    if key in found:
      continue
    found.add(key)
    for line in metadata.requires(requirement.name) or ():
      other = Requirement(line)
      if other.marker is None or other.marker.evaluate({'extra': extra}):
        waiting += [(other, e) for e in ('', *other.extras)]
  return {name for name, _ in found}


@functools.cache
def distributions():
  """The packages that have what is imported by a name, by these names."""
  return {
    name: {canonicalize_name(owner) for owner in owners}
    for name, owners in metadata.packages_distributions().items()
  }


def hidden(*extras):
  """Names that cannot be imported where only these extras were installed."""
  kept = _closure(requirements(*extras)) | {'epe-jax'}
  return sorted(n for n, owners in distributions().items() if not kept & owners)


def run(code, *arguments, extras=(), cwd=None):
  """What the code prints where the package has these extras."""
  done = subprocess.run(
    [
      *(sys.executable, '-c'),
      f'HIDDEN = {hidden(*extras)!r}\n{_HIDE}\n{code}',
      *map(str, arguments),
    ],
    capture_output=True,
    text=True,
    check=False,
    cwd=cwd,
  )
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)
