"""Says what an audit will tell, and cost, before anything is trained.

  epe-jax plan --dim=151306 --rounds=100 --clients_per_round=40 \
    --noise_multiplier=0.2 --delta=2.9e-3 --observed=50 --unobserved=50
  epe-jax plan --dim=4050748 --rounds=2048 --clients_per_round=167 \
    --noise_multiplier=0.5 --delta=1e-6 --repetitions=4 --json

Nothing is trained: scores of audits are drawn from a Gaussian model of what the run
releases (docs/planning.md). With --out=docs/planning.md it writes that page.
"""

from collections.abc import Sequence
from typing import Any

from absl import app, flags

_NEEDED = 'dim', 'rounds', 'clients_per_round', 'noise_multiplier', 'delta'
_OTHERS = (
  'clip_norm',
  'repetitions',
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
  flags.DEFINE_integer('dim', None, 'd, the trained parameters.', **own)
  flags.DEFINE_integer('rounds', None, 'T, the rounds.', **own)
  flags.DEFINE_float(
    'clients_per_round', None, 'Mean number of real clients in a round.', **own
  )
  flags.DEFINE_float(
    'noise_multiplier',
    None,
    'z, of the sum of updates, in units of the clip norm.',
    **own,
  )
  flags.DEFINE_float('delta', None, 'δ, in (0, 1).', **own)
  flags.DEFINE_float(
    'clip_norm', 1.0, 'S; it counts only beside --initial_norm.', **own
  )
  flags.DEFINE_integer('observed', 1000, 'Canaries that take part.', **own)
  flags.DEFINE_integer('unobserved', 1000, 'Canaries that do not.', **own)
  flags.DEFINE_integer('repetitions', 1, 'Rounds of a canary.', **own)
  flags.DEFINE_string('family', 'sphere', 'Of canaries.', **own)
  flags.DEFINE_enum(
    'design',
    'fixed',
    ['fixed', 'coin_flip'],
    'Who takes part, or fair coins.',
    **own,
  )
  flags.DEFINE_float('server_momentum', 0.0, "Of the server's SGD.", **own)
  flags.DEFINE_float(
    'server_learning_rate', 1.0, 'It counts only beside --initial_norm.', **own
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
    'Norm of the initial model; none: the attacker knows it.',
    **own,
  )
  flags.DEFINE_bool('json', False, 'Print JSON and not a table.', **own)
  flags.DEFINE_string(
    'out', None, 'Markdown page to write, of examples.', **own
  )


def execute(values: flags.FlagValues, argv: Sequence[str]) -> int:
  """Runs the command, as `program` does."""
  rest = values(argv)[1:]
  if rest:
    raise app.UsageError(f'{rest[0]!r} is no flag; see --help.')
  from epe_jax import io
  from epe_jax.audit import planning, planning_table

  if values.out:
    io.write_text(values.out, planning_table.format_page())
    return 0
  given = values.flag_values_dict()
  if missing := [f'--{name}' for name in _NEEDED if given[name] is None]:
    raise app.UsageError(f'{", ".join(missing)} must be given; see --help.')
  plan = planning.plan(
    planning.PlannedRun(
      **{name: given[name] for name in (*_NEEDED, *_OTHERS)},
      num_observed=values.observed,
      num_unobserved=values.unobserved,
    )
  )
  if values.json:
    print(io.format_json(plan.to_json()))
  else:
    print(plan)
  return 0
