"""Predicts what an audit will measure, as `epe-jax plan` does; docs/planning.md.

  python scripts/plan.py --dim=55210 --rounds=100 --clients_per_round=40 \\
    --noise_multiplier=0.2 --delta=2.9e-3 --observed=50 --unobserved=50
  python scripts/plan.py --page=docs/planning.md

The second command makes the plans of that page again.
"""

import dataclasses
import pathlib
import sys

from epe_jax import io, planning
from epe_jax.cli import program
from epe_jax.planning import plans
from epe_jax.text import tables

_PAGE = '--page='


def splice_page(page: str) -> str:
  """The page with the plan of its example, and of as many canaries as that advises."""
  run = planning.PlannedRun(
    dim=1_206_590,
    rounds=500,
    clients_per_round=101,
    noise_multiplier=0.7,
    delta=1e-4,
    server_momentum=0.9,
    client_participations=15,
    num_observed=50,
    num_unobserved=50,
  )
  weak = planning.plan(run)
  num = max(p.min_canaries or 0 for p in weak.predictions)
  larger = dataclasses.replace(run, num_observed=num, num_unobserved=num)
  few, many = (
    plans.format_plan(plan, markdown=True)
    for plan in (weak, planning.plan(larger))
  )
  advised = f'\nWith as many as it advises, {num:,}:\n\n{many}\n'
  return tables.splice(page, {'plan': f'\n{few}\n', 'advised plan': advised})


if __name__ == '__main__':
  if len(sys.argv) == 2 and sys.argv[1].startswith(_PAGE):
    path = pathlib.Path(sys.argv[1].removeprefix(_PAGE))
    io.write_text(path, splice_page(path.read_text(encoding='utf-8')))
  else:
    program.run_script('plan')
