"""Trains and audits one run, as `epe-jax run` does.

  python scripts/train.py --config=configs/digits.py --workdir=runs/digits

`python scripts/train.py --help` has all flags.
"""

from epe_jax.cli import program

if __name__ == '__main__':
  program.run_script('run')
