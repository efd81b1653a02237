"""The README's two commands with one Python, in a fresh clone and a fresh environment.

  python benchmarks/versions.py --out=docs/data

clones the last commit, runs `make run` and `make test` there with the Python that runs
this, and writes a row for this Python and system to `versions.csv`. Fails if a command
does. It takes a quarter of an hour on 2 cores; with --folder it goes on where it was
interrupted.
"""

import json
import pathlib
import platform
import re
import subprocess
import sys
import tempfile

from absl import app, flags
import pandas as pd

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_FOLDER = flags.DEFINE_string(
  'folder', None, 'Keeps the clone and what has ended, to go on from there.'
)
_OUT = flags.DEFINE_string('out', None, 'Folder of the data file.')
# Targets of make, and what the last line of interest says in their output.
_TARGETS = {
  'run': r'ε of at least [\d.]+ in the worst case',
  'test': r'\d+ (?:passed|failed).* in [\d.]+s',
}
_PACKAGES = ('jax', 'numpy', 'scipy', 'flax')


def run_target(target: str, clone: pathlib.Path, folder: pathlib.Path) -> str:
  """Runs a target of make, unless it has ended well before.

  Args:
    target: a key of `_TARGETS`.
    clone: where it runs.
    folder: for its output.

  Returns:
    What it says at the end, in one line.

  Raises:
    SystemExit: it fails.
  """
  log = folder / f'{target}.log'
  if not log.exists():
    running = log.with_suffix('.running')
    with running.open('w') as file:
      code = subprocess.run(
        ['make', target, f'PYTHON={sys.executable}'],
        cwd=clone,
        stdout=file,
        stderr=subprocess.STDOUT,
        check=False,
      ).returncode
    if code:
      raise SystemExit(f'make {target} ends with {code}; see {running}.')
    running.rename(log)
  text = log.read_text(encoding='utf-8')
  (*_, said) = re.findall(_TARGETS[target], text)
  return re.sub(r' in [\d.]+s$', '', said)


def list_versions(clone: pathlib.Path) -> dict[str, str]:
  """The versions of packages in the environment of a clone."""
  ask = 'import json; from importlib import metadata; '
  ask += f'print(json.dumps([metadata.version(x) for x in {_PACKAGES}]))'
  done = subprocess.run(
    [clone / '.venv/bin/python', '-c', ask],
    check=True,
    capture_output=True,
    text=True,
  )
  return dict(zip(_PACKAGES, json.loads(done.stdout)))


def measure(folder: pathlib.Path) -> dict[str, str]:
  """The row of this Python.

  Args:
    folder: for the clone and for what commands print.
  """
  clone = folder / 'clone'
  if not clone.exists():
    subprocess.run(['git', 'clone', '-q', _ROOT, clone], check=True)
  said = {f'make {x}': run_target(x, clone, folder) for x in _TARGETS}
  return {
    'Python': platform.python_version(),
    'system': platform.freedesktop_os_release()['PRETTY_NAME'],
    **list_versions(clone),
    **said,
  }


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(_FOLDER.value or temporary).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    rows = pd.DataFrame([measure(folder)])
  print(rows.to_string(index=False))
  if _OUT.value:
    file = pathlib.Path(_OUT.value) / 'versions.csv'
    if file.exists():
      rows = pd.concat([pd.read_csv(file, dtype=str), rows])
    rows = rows.drop_duplicates('Python', keep='last').sort_values('Python')
    rows.to_csv(file, index=False)


if __name__ == '__main__':
  app.run(main)
