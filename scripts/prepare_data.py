"""Imports federated data into the columns that runs read, as `epe-jax data` does.

  python scripts/prepare_data.py --download=emnist --out=data/emnist

`python scripts/prepare_data.py --help` has all flags.
"""

from epe_jax.cli import program

if __name__ == '__main__':
  program.run_script('data')
