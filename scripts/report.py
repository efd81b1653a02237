"""Draws the report of a finished run, or compares several, as `epe-jax report` does.

python scripts/report.py WORKDIR
python scripts/report.py WORKDIR WORKDIR2 WORKDIR3 --out=FOLDER
"""

from epe_jax.cli import program

if __name__ == '__main__':
  program.run_script('report')
