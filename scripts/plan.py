"""Makes the plans of docs/planning.md again.

python scripts/plan.py --out=docs/planning.md
"""

import dataclasses
import pathlib

from absl import app, flags

from epe_jax import io, planning
from epe_jax.planning import plans
from epe_jax.report import tables

_OUT = flags.DEFINE_string(
  'out', None, 'Page to write the plans into.', required=True
)


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
    plans.format_plan(plan) for plan in (weak, planning.plan(larger))
  )
  advised = f'\nWith as many as it advises, {num:,}:\n\n{many}\n'
  return tables.splice(page, {'plan': f'\n{few}\n', 'advised plan': advised})


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  page = pathlib.Path(_OUT.value)
  io.write_text(page, splice_page(page.read_text(encoding='utf-8')))


if __name__ == '__main__':
  app.run(main)
