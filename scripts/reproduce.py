"""Makes tables and figures of the paper, as `epe-jax reproduce` does.

  python scripts/reproduce.py algorithm1 --scale=small

`python scripts/reproduce.py --help` has all flags.
"""

from epe_jax.cli import program

if __name__ == '__main__':
  program.run_script('reproduce')
