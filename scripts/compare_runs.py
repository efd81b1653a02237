"""One run of many canaries against several runs of a share of them each.

  python scripts/compare_runs.py --config=configs/digits.py \\
    --experiments=50 --runs=10 --workdir=comparisons/digits

Prints quantiles of ε̂ over experiments, and writes the cosines of each, rows.json
and comparison.png into the workdir. A comparison that was killed is resumed, and
more experiments are added to those that are finished. Canaries must be few
against the clients of a round, or the two designs train differently.
"""

import functools
import pathlib

from absl import app, flags, logging

from epe_jax import extras

with extras.explain_missing():
  from epe_jax import io
  from epe_jax.cli import command_flags, config_flags
  from epe_jax.experiment import workloads
  from epe_jax.papers.one_shot import run_comparison
  from epe_jax.papers.one_shot import runs as run_tables
  from epe_jax.text import tables, terminal

command_flags.define(flags.FLAGS, command_flags.CONFIG)
_EXPERIMENTS = flags.DEFINE_integer(
  'experiments', 50, 'How often both are repeated.', lower_bound=1
)
_RUNS = flags.DEFINE_integer(
  'runs', 10, 'Runs that share the canaries of the single run.', lower_bound=1
)
_WORKDIR = flags.DEFINE_string('workdir', None, 'Folder of the comparison.')


def main(argv: list[str]) -> None:
  terminal.prepare_streams()
  logging.set_verbosity(logging.WARNING)
  try:
    _, config, rest = config_flags.parse(flags.FLAGS, argv)
    if rest or config is None or _WORKDIR.value is None:
      raise app.UsageError('give a config and --workdir, and no more.')
    workdir = pathlib.Path(_WORKDIR.value)
    rows = run_comparison.compare(
      config,
      experiments=_EXPERIMENTS.value,
      runs=_RUNS.value,
      workdir=workdir,
    )
  except flags.Error as error:
    raise app.UsageError(str(error)) from error
  except (ValueError, FileNotFoundError) as error:
    raise SystemExit(f'error: {error}') from error
  source = workloads.load_workload(config).source
  quantiles = run_tables.make_quantile_tables([rows], source=source)
  print('\n\n'.join(map(tables.format_text, quantiles)))
  figure = run_tables.draw_single_or_several(rows)
  save = functools.partial(figure.savefig, format='png', dpi=150)
  io.write_atomically(workdir / 'comparison.png', save)
  print(f'\nCosines, rows and figure: {workdir}')


def _parse_flags(argv: list[str]) -> list[str]:
  """Parses all but the fields of the config, which `main` does."""
  flags.FLAGS(argv, known_only=True)
  return argv


if __name__ == '__main__':
  app.run(main, flags_parser=_parse_flags)
