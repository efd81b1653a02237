"""Every estimate of ε from scores, without training, as `epe-jax estimate` does.

  python scripts/estimate.py WORKDIR
  python scripts/estimate.py scores.csv --delta=1e-5

`python scripts/estimate.py --help` has all flags.
"""

from epe_jax.cli import program

if __name__ == '__main__':
  program.run_script('estimate')
