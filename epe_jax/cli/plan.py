"""Predicts what an audit will measure and cost.

  epe-jax plan --dim=55210 --rounds=100 --clients_per_round=40 \\
    --noise_multiplier=0.2 --delta=2.9e-3 --observed=50 --unobserved=50 \\
    --client_participations=20
  epe-jax plan --dim=4050748 --rounds=2048 --clients_per_round=167 \\
    --noise_multiplier=0.5 --delta=1e-6 --repetitions=4 --format=json

The scores of audits are simulated with a Gaussian model of what the run releases. The
notes below the table say what is assumed.
"""

from collections.abc import Sequence

from absl import app, flags

from epe_jax.cli import command_flags, score_input
from epe_jax.cli.command_flags import Flag

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


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of `plan`."""
  command_flags.define(
    values, *_NEEDED, *_OTHERS, *_CANARIES, command_flags.FORMAT
  )


def execute(values: flags.FlagValues, argv: Sequence[str]) -> int:
  """Runs the command, as `program` does."""
  if rest := values(list(argv))[1:]:
    raise app.UsageError(f'there is no argument {rest[0]!r}; see --help.')
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
  if values.format == 'json':
    print(io.format_json(plan.to_json()))
  else:
    print(plan)
  return 0
