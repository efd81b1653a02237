"""Trains and audits every point of a grid, as `epe-jax sweep` does.

  python scripts/sweep.py --config=configs/digits.py \\
    --grid=configs/grids.py:repetitions --workdir=runs/repetitions

`python scripts/sweep.py --help` has all flags.
"""

from epe_jax.cli import program

if __name__ == '__main__':
  program.run_script('sweep')
