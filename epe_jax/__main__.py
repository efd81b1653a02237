"""`python -m epe_jax` is the command `epe-jax`."""

import sys

from epe_jax.command import program

if __name__ == '__main__':
  sys.exit(program.main())
