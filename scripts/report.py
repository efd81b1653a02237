"""Draws the report of a finished run again, as `epe-jax report` does.

python scripts/report.py WORKDIR
"""

from epe_jax.command import program

if __name__ == '__main__':
  program.run_script('report')
