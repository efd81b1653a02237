"""Predicts what an audit will measure and cost, without training.

  epe-jax plan --dim=55210 --rounds=100 --clients_per_round=40 \\
    --noise_multiplier=0.2 --delta=2.9e-3 --observed=50 --unobserved=50 \\
    --client_participations=20
  epe-jax plan --dim=4050748 --rounds=2048 --clients_per_round=167 \\
    --noise_multiplier=0.5 --delta=1e-6 --repetitions=4 --json

The scores of audits are simulated with a Gaussian model of what the run releases. The
notes below the table say what is assumed.
"""

from collections.abc import Sequence
import re
from typing import Any

from absl import app, flags

_NEEDED = 'dim', 'rounds', 'clients_per_round', 'noise_multiplier', 'delta'
_OTHERS = (
  'clip_norm',
  'repetitions',
  'client_participations',
  'family',
  'design',
  'server_momentum',
  'server_learning_rate',
  'client_agreement',
  'initial_norm',
)


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of `plan`."""
  own: Any = {'flag_values': values}
  flags.DEFINE_integer(
    'dim', None, 'd, the number of trained parameters.', **own
  )
  flags.DEFINE_integer('rounds', None, 'T, the number of rounds.', **own)
  flags.DEFINE_float(
    'clients_per_round', None, 'Mean number of real clients in a round.', **own
  )
  flags.DEFINE_float(
    'noise_multiplier',
    None,
    'z, the noise of the sum of updates in units of the clip norm.',
    **own,
  )
  flags.DEFINE_float('delta', None, 'δ, in (0, 1).', **own)
  flags.DEFINE_float(
    'clip_norm', 1.0, 'Clip norm S; matters only with --initial_norm.', **own
  )
  flags.DEFINE_integer('observed', 1000, 'Canaries that take part.', **own)
  flags.DEFINE_integer('unobserved', 1000, 'Canaries that do not.', **own)
  flags.DEFINE_integer(
    'repetitions', 1, 'Number of rounds in which a canary takes part.', **own
  )
  flags.DEFINE_integer(
    'client_participations',
    None,
    'Number of rounds in which a client takes part, at most.',
    **own,
  )
  flags.DEFINE_string('family', 'sphere', 'Family of canaries.', **own)
  flags.DEFINE_enum(
    'design',
    'fixed',
    ['fixed', 'coin_flip'],
    'Inclusion of canaries: a fixed number, or fair coin flips.',
    **own,
  )
  flags.DEFINE_float(
    'server_momentum', 0.0, "Momentum of the server's SGD.", **own
  )
  flags.DEFINE_float(
    'server_learning_rate',
    1.0,
    'Learning rate of the server; matters only with --initial_norm.',
    **own,
  )
  flags.DEFINE_float(
    'client_agreement',
    0.0,
    'Cosine of the updates of two clients, in [0, 1].',
    **own,
  )
  flags.DEFINE_float(
    'initial_norm',
    None,
    'Norm of the initial model, if the attacker does not know the model.',
    **own,
  )
  flags.DEFINE_bool('json', False, 'Print JSON instead of a table.', **own)


def execute(values: flags.FlagValues, argv: Sequence[str]) -> int:
  """Runs the command, as `program` does."""
  rest = values(argv)[1:]
  if rest:
    raise app.UsageError(f'{rest[0]!r} is not a flag; see --help.')
  from epe_jax import io, planning

  given = values.flag_values_dict()
  if missing := [f'--{name}' for name in _NEEDED if given[name] is None]:
    raise app.UsageError(f'{", ".join(missing)} must be given; see --help.')
  try:
    run = planning.PlannedRun(
      **{name: given[name] for name in (*_NEEDED, *_OTHERS)},
      num_observed=values.observed,
      num_unobserved=values.unobserved,
    )
  except ValueError as error:
    raise ValueError(_name_flags(str(error))) from error
  plan = planning.plan(run)
  if values.json:
    print(io.format_json(plan.to_json()))
  else:
    print(plan)
  return 0


def _name_flags(text: str) -> str:
  """An error about fields of a planned run, with the flags that set them."""
  return re.sub(r'\b(?:num_)?(\w+=)', r'--\1', text)
