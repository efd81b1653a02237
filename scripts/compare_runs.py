"""One run of many canaries against several runs of a share of them each.

  python scripts/compare_runs.py --config=configs/digits.py \\
    --experiments=50 --runs=10 --workdir=comparisons/digits

Prints quantiles of ε̂ over experiments, and writes the cosines of each, rows.json
and comparison.png into the workdir. A comparison that was killed is resumed, and
one of more experiments adds to those that are finished. Canaries must be few
against the clients of a round, or the two designs train differently.
"""

import functools
import pathlib

from absl import app, flags, logging

from epe_jax import extras

with extras.explain_missing():
  from ml_collections import config_flags

  from epe_jax import io
  from epe_jax.experiment import config_fields, run_comparison
  from epe_jax.report import run_comparison_report
  from epe_jax.report.figures import single_or_several

_CONFIG = config_flags.DEFINE_config_file(
  'config', None, 'Config file of the single run.'
)
_EXPERIMENTS = flags.DEFINE_integer(
  'experiments', 50, 'How often both are repeated.', lower_bound=1
)
_RUNS = flags.DEFINE_integer(
  'runs', 10, 'Runs that share the canaries of the single run.', lower_bound=1
)
_WORKDIR = flags.DEFINE_string('workdir', None, 'Folder of the comparison.')


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is no flag; see --help.')
  logging.set_verbosity(logging.WARNING)
  workdir = pathlib.Path(str(_WORKDIR.value))
  try:
    rows = run_comparison.compare(
      _CONFIG.value,
      experiments=_EXPERIMENTS.value,
      runs=_RUNS.value,
      workdir=workdir,
    )
  except (ValueError, FileNotFoundError) as error:
    raise SystemExit(f'error: {error}') from error
  print(run_comparison_report.format_comparison(rows))
  figure = single_or_several.draw_single_or_several(rows)
  save = functools.partial(figure.savefig, format='png', dpi=150)
  io.write_atomically(workdir / 'comparison.png', save)
  print(f'\nCosines, rows and figure: {workdir}')


if __name__ == '__main__':
  flags.mark_flags_as_required(['config', 'workdir'])
  app.run(main, flags_parser=config_fields.parse_flags)
