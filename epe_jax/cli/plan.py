"""Predicts what an audit will measure and cost, or how long items of papers train.

  epe-jax plan --dim=55210 --rounds=100 --clients_per_round=40 \\
    --noise_multiplier=0.2 --delta=2.9e-3 --observed=50 --unobserved=50 \\
    --client_participations=20
  epe-jax plan --dim=4050748 --rounds=2048 --clients_per_round=167 \\
    --noise_multiplier=0.5 --delta=1e-6 --repetitions=4 --json
  epe-jax plan stackoverflow bars --scale=paper --jobs=8 --device=h100
  epe-jax plan --scale=paper

The scores of audits are simulated with a Gaussian model of what the run releases. The
notes below the table say what is assumed.

With items as `epe-jax reproduce` takes them, or with --scale for all items whose runs
are grids, it counts their runs and says how long they train: as measured, or no less.
"""

from collections.abc import Sequence

from absl import app, flags

from epe_jax.cli import command_flags, config_flags, launching, score_input
from epe_jax.cli.command_flags import Flag
from epe_jax.planning import devices

_NEEDED = (
  Flag('dim', 'd, the number of trained parameters.', int),
  Flag('rounds', 'T, the number of rounds.', int),
  Flag('clients_per_round', 'Mean number of real clients in a round.', float),
  Flag(
    'noise_multiplier',
    'z, the noise of the sum of updates in units of the clip norm.',
    float,
  ),
  command_flags.DELTA,
)
_OTHERS = (
  Flag(
    'clip_norm',
    'Clip norm S; matters only with --initial_norm.',
    float,
    1.0,
  ),
  Flag(
    'repetitions',
    'Number of rounds in which a canary takes part.',
    int,
    1,
  ),
  Flag(
    'client_participations',
    'Number of rounds in which a client takes part, at most.',
    int,
  ),
  Flag('family', 'Family of canaries.', default='sphere'),
  command_flags.DESIGN._replace(default='fixed'),
  Flag('server_momentum', "Momentum of the server's SGD.", float, 0.0),
  Flag(
    'server_learning_rate',
    'Learning rate of the server; matters only with --initial_norm.',
    float,
    1.0,
  ),
  Flag(
    'client_agreement',
    'Cosine of the updates of two clients, in [0, 1]. Without it, ranges are of all '
    'that are to be expected.',
    float,
  ),
  Flag(
    'initial_norm',
    'Norm of the initial model, if the attacker does not know the model.',
    float,
  ),
)
_CANARIES = (
  Flag('observed', 'Canaries that take part.', int, 1000),
  Flag('unobserved', 'Canaries that do not.', int, 1000),
)
_OF_RUN = (*_NEEDED, *_OTHERS, *_CANARIES)
_OF_ITEMS = (
  command_flags.SCALE._replace(
    help='Sizes of items, those of epe_jax.configs.paper.'
  ),
  launching.JOBS._replace(
    help='Number of devices, each with one run of an item at a time.',
    default=1,
    smallest=1,
  ),
  Flag(
    'device',
    'What trains runs of items; cpu is that of the benchmarks.',
    ('cpu', *devices.SHEETS),
    'cpu',
  ),
  command_flags.FIELD._replace(
    help='FIELD=VALUE of the config of all runs of items, such as rounds=100.'
  ),
)


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of `plan`."""
  command_flags.define(values, *_OF_RUN, *_OF_ITEMS, command_flags.JSON)


def execute(values: flags.FlagValues, argv: Sequence[str]) -> int:
  """Runs the command, as `program` does."""
  names = values(argv)[1:]
  of_run, of_items = (
    [f'--{flag.name}' for flag in group if values[flag.name].present]
    for group in (_OF_RUN, _OF_ITEMS)
  )
  of_items = [*map(repr, names), *of_items]
  if of_run and of_items:
    raise app.UsageError(
      f'{of_items[0]} is of items and {of_run[0]} of a single run; plan one of '
      'them, see --help.'
    )
  if of_items:
    return _plan_items(values, names)
  return _plan_run(values)


def _plan_items(values: flags.FlagValues, names: Sequence[str]) -> int:
  from epe_jax import io
  from epe_jax.papers import registry, run_hours

  try:
    selected = registry.select_items(names)
  except ValueError as error:
    raise app.UsageError(
      f'{error}; epe-jax reproduce --list has them.'
    ) from None
  plan = run_hours.plan_items(
    selected or run_hours.list_grids(values.scale),
    values.scale,
    jobs=values.jobs,
    device=values.device,
    fields=config_flags.parse_assignments('field', values.field),
  )
  print(io.format_json(plan.to_json()) if values.json else plan)
  return 0


def _plan_run(values: flags.FlagValues) -> int:
  from epe_jax import io, planning

  given = values.flag_values_dict()
  needed = [flag.name for flag in _NEEDED]
  if missing := [f'--{name}' for name in needed if given[name] is None]:
    raise app.UsageError(f'{", ".join(missing)} must be given; see --help.')
  run = planning.PlannedRun(
    **{flag.name: given[flag.name] for flag in (*_NEEDED, *_OTHERS)},
    num_observed=values.observed,
    num_unobserved=values.unobserved,
  )
  # Clients who take part in n rounds at most are at least so many.
  each = run.client_participations or run.rounds
  num_clients = run.clients_per_round * run.rounds / each
  score_input.warn_of_delta(run.delta, num_clients)
  plan = planning.plan(run)
  if values.json:
    print(io.format_json(plan.to_json()))
  else:
    print(plan)
  return 0
