"""`python -m epe_jax` is the command `epe-jax`."""

import sys

if not sys.flags.safe_path:
  # The working directory, which holds data, and comes behind all packages.
  sys.path.append(sys.path.pop(0))

from epe_jax.cli import program

if __name__ == '__main__':
  sys.exit(program.main())
