"""What an audit will tell, and cost, before anything is trained; docs/planning.md.

  python scripts/plan.py --dim=151306 --rounds=100 --clients_per_round=40 \
    --noise_multiplier=0.2 --delta=2.9e-3 --observed=50 --unobserved=50

Nothing is trained: scores of audits are drawn from a Gaussian model of what the run
releases. With --out=docs/planning.md it writes that page.
"""

import json
from typing import Any

from absl import app, flags

from epe_jax import io
from epe_jax.audit import planning, planning_table

_DIM = flags.DEFINE_integer('dim', None, 'd, the trained parameters.')
_ROUNDS = flags.DEFINE_integer('rounds', None, 'T, the rounds.')
_CLIENTS = flags.DEFINE_float(
  'clients_per_round', None, 'Mean number of real clients in a round.'
)
_NOISE = flags.DEFINE_float(
  'noise_multiplier',
  None,
  'z, of the sum of updates, in units of the clip norm.',
)
_DELTA = flags.DEFINE_float('delta', None, 'δ, in (0, 1).')
_CLIP_NORM = flags.DEFINE_float(
  'clip_norm', 1.0, 'S; it counts only beside --initial_norm.'
)
_OBSERVED = flags.DEFINE_integer('observed', 1000, 'Canaries that take part.')
_UNOBSERVED = flags.DEFINE_integer('unobserved', 1000, 'Canaries that do not.')
_REPETITIONS = flags.DEFINE_integer('repetitions', 1, 'Rounds of a canary.')
_FAMILY = flags.DEFINE_string('family', 'sphere', 'Of canaries.')
_DESIGN = flags.DEFINE_enum(
  'design', 'fixed', ['fixed', 'coin_flip'], 'Who takes part, or fair coins.'
)
_MOMENTUM = flags.DEFINE_float('server_momentum', 0.0, "Of the server's SGD.")
_LEARNING_RATE = flags.DEFINE_float(
  'server_learning_rate', 1.0, 'It counts only beside --initial_norm.'
)
_AGREEMENT = flags.DEFINE_float(
  'client_agreement', 0.0, 'Cosine of the updates of two clients, in [0, 1].'
)
_INITIAL_NORM = flags.DEFINE_float(
  'initial_norm',
  None,
  'Norm of the initial model; none: the attacker knows it.',
)
_JSON = flags.DEFINE_bool('json', False, 'Print JSON and not a table.')
_OUT = flags.DEFINE_string('out', None, 'Markdown page to write, of examples.')


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is no flag; see --help.')
  if _OUT.value:
    io.write_text(_OUT.value, planning_table.format_page())
    return
  settings: dict[str, Any] = {
    'dim': _DIM.value,
    'rounds': _ROUNDS.value,
    'clients_per_round': _CLIENTS.value,
    'noise_multiplier': _NOISE.value,
    'delta': _DELTA.value,
  }
  if missing := [f'--{name}' for name, x in settings.items() if x is None]:
    raise app.UsageError(f'{", ".join(missing)} must be given; see --help.')
  settings |= {
    'clip_norm': _CLIP_NORM.value,
    'num_observed': _OBSERVED.value,
    'num_unobserved': _UNOBSERVED.value,
    'repetitions': _REPETITIONS.value,
    'family': _FAMILY.value,
    'design': _DESIGN.value,
    'server_momentum': _MOMENTUM.value,
    'server_learning_rate': _LEARNING_RATE.value,
    'client_agreement': _AGREEMENT.value,
    'initial_norm': _INITIAL_NORM.value,
  }
  try:
    plan = planning.plan(planning.PlannedRun(**settings))
  except ValueError as error:
    raise SystemExit(f'error: {error}') from error
  if _JSON.value:
    body = io.spell_non_finite(plan.to_json())
    print(json.dumps(body, indent=2, allow_nan=False, ensure_ascii=False))
  else:
    print(plan)


if __name__ == '__main__':
  app.run(main)
