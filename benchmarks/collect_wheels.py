"""Collects the wheels that an image with JAX for CUDA lacks, for benchmarks/gpu.py.

  python benchmarks/collect_wheels.py
  python benchmarks/gpu.py --wheels=benchmarks/wheels ...

Run it where there is a network. It takes for granted that the image has JAX, Flax,
optax, orbax, NumPy, SciPy, scikit-learn, jaxtyping and tqdm, and leaves the needs of
those to it. `--python_version` is that of the image. About 2 MB.
"""

import pathlib
import subprocess
import sys

from absl import app, flags

_HERE = pathlib.Path(__file__).resolve().parent
_OUT = flags.DEFINE_string(
  'out', str(_HERE / 'wheels'), 'Folder of the wheels.'
)
_VERSION = flags.DEFINE_string('python_version', '3.12', 'Of the image.')
_MACHINE = flags.DEFINE_string('machine', 'x86_64', 'Of the image.')

PACKAGES = (
  # A need of each, where it is not in such images, stands behind it.
  'ml-collections',
  'dp-accounting',
  'dm-tree',
  'lazy-loader',
  'dm-haiku',
  'jmp',
  'tabulate',
  'jsonschema',
  'jsonschema-specifications',
  'referencing',
  'rpds-py',
  # For the tests alone.
  'beartype',
)
# glibc that the wheels may ask for, at most.
_GLIBC = (39, 35, 34, 31, 28, 27, 24, 17, 12, 5)


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  platforms = [f'manylinux_2_{minor}_{_MACHINE.value}' for minor in _GLIBC]
  platforms += [f'manylinux{x}_{_MACHINE.value}' for x in ('2014', '1')]
  command = [sys.executable, '-m', 'pip', 'download', '-q', '--no-deps']
  command += ['--only-binary=:all:', '--implementation=cp']
  command += [f'--python-version={_VERSION.value}', f'--dest={_OUT.value}']
  command += [f'--platform={platform}' for platform in platforms]
  status = subprocess.run([*command, *PACKAGES]).returncode
  if status:
    raise SystemExit(f'pip ended with {status}; see above.')
  for path in sorted(pathlib.Path(_OUT.value).glob('*.whl')):
    print(f'{path.stat().st_size / 1e3:8.0f} kB  {path.name}')


if __name__ == '__main__':
  app.run(main)
