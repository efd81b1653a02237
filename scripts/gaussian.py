r"""Audits a single Gaussian mechanism in one shot: Algorithm 1, Table 2.

The paper's table takes a few seconds on two CPU cores:

  python scripts/gaussian.py --dim=1000000 --num_canaries=1000 \
    --simulations=50 --seed=0

Analytic epsilons in place of noise levels, and the rows in a file:

  python scripts/gaussian.py --epsilon=1,3,10 --out=gaussian.json

The cosines are drawn from their exact law, at a cost that does not depend on d;
--literal simulates the mechanism in d dimensions instead, with the same result,
in minutes; in seconds with canaries that are rows of a Hadamard matrix:

  python scripts/gaussian.py --literal --family=hadamard
"""

from collections.abc import Sequence
import functools
import math
import pathlib
import sys

from absl import app, flags

from epe_jax import extras

# The papers are next to the package, and no part of it.
sys.path.append(str(pathlib.Path(__file__).parents[1]))

with extras.explain_missing():
  import tqdm

  from epe_jax import canaries, epsilon, io
  from papers.one_shot import gaussian_mechanism, mechanism

_SIGMAS = ('4.22', '1.54', '0.541')
_PLOTS = ('.png', '.pdf', '.svg')

_DIM = flags.DEFINE_integer('dim', 1_000_000, 'd, dimension of the release.')
_NUM_CANARIES = flags.DEFINE_integer('num_canaries', 1000, 'k, at least 2.')
_DELTA = flags.DEFINE_float('delta', 1e-6, 'Target delta, in (0, 1).')
_SIGMA = flags.DEFINE_list(
  'sigma', None, f'Noise stds, each >= 0. Default: {",".join(_SIGMAS)}.'
)
_EPSILON = flags.DEFINE_list(
  'epsilon', None, 'Analytic epsilons, each > 0, to solve for sigma.'
)
_SIMULATIONS = flags.DEFINE_integer('simulations', 50, 'Audits for each sigma.')
_SEED = flags.DEFINE_integer('seed', 0, 'Seed of everything random, >= 0.')
_LITERAL = flags.DEFINE_bool(
  'literal', False, 'Simulate in d dimensions: O(k d) and not O(k^2) an audit.'
)
_FAMILY = flags.DEFINE_enum(
  'family',
  'sphere',
  [*canaries.FAMILIES],
  'Canaries of --literal; the exact law is that of sphere.',
)
_OUT = flags.DEFINE_string('out', None, 'Write the rows to this .json file.')
_PLOT = flags.DEFINE_string(
  'plot', None, 'Draw them to this file. Default: beside --out, as .png.'
)


def _require_at_least(bound: int, name: str, cure: str) -> None:
  flags.register_validator(name, lambda value: value >= bound, cure)


def _are_numbers(texts: Sequence[str] | None, *, zero: bool) -> bool:
  if texts is None:
    return True
  try:
    values = [float(text) for text in texts]
  except ValueError:
    return False
  valid = [0 < x < math.inf or (zero and x == 0) for x in values]
  return bool(valid) and all(valid)


def _is_writable(text: str | None, suffixes: Sequence[str]) -> bool:
  if text is None:
    return True
  path = pathlib.Path(text)
  return path.suffix in suffixes and path.parent.is_dir() and not path.is_dir()


_require_at_least(
  2, 'dim', 'a cosine needs two dimensions. Pass --dim=2 or more.'
)
_require_at_least(
  2,
  'num_canaries',
  'the fitted std needs two cosines. Pass --num_canaries=2 or more.',
)
_require_at_least(
  1, 'simulations', 'nothing to average. Pass --simulations=1 or more.'
)
_require_at_least(0, 'seed', 'a seed is not negative. Pass --seed=0 or more.')
flags.register_validator(
  'delta',
  lambda delta: 0 < delta < 1,
  'delta is a probability between 0 and 1. Pass for instance --delta=1e-6.',
)
flags.register_validator(
  'sigma',
  lambda texts: _are_numbers(texts, zero=True),
  'these must be finite numbers >= 0. Pass for instance --sigma=4.22,1.54.',
)
flags.register_validator(
  'epsilon',
  lambda texts: _are_numbers(texts, zero=False),
  'these must be finite numbers > 0. Pass for instance --epsilon=1,3,10.',
)
flags.register_multi_flags_validator(
  ['sigma', 'epsilon'],
  lambda values: values['sigma'] is None or values['epsilon'] is None,
  'each fixes the other. Pass --sigma or --epsilon, not both.',
)
flags.register_multi_flags_validator(
  ['sigma', 'num_canaries'],
  lambda values: (
    values['num_canaries'] > 2 or 0 not in map(float, values['sigma'] or [1])
  ),
  'without noise two canaries score alike and no std can be fitted. Pass '
  '--num_canaries=3 or more, or a positive --sigma.',
)
flags.register_multi_flags_validator(
  ['family', 'literal'],
  lambda values: values['literal'] or values['family'] == 'sphere',
  'the exact law is that of sphere canaries. Pass --literal too, to simulate '
  'those of another --family.',
)
flags.register_validator(
  'out',
  lambda text: _is_writable(text, ('.json',)),
  'this must be a .json file in a directory that exists. Create the '
  'directory, or rename the file.',
)
flags.register_validator(
  'plot',
  lambda text: _is_writable(text, _PLOTS),
  f'this must be a {", ".join(_PLOTS)} file in a directory that exists. '
  'Create the directory, or rename the file.',
)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag. Remove it; see --help.')
  if _EPSILON.value:
    sigmas = [
      1 / epsilon.mu_of_epsilon(float(text), _DELTA.value)
      for text in _EPSILON.value
    ]
  else:
    sigmas = [float(text) for text in _SIGMA.value or _SIGMAS]
  law = gaussian_mechanism.simulate_exact
  if _LITERAL.value:
    family = canaries.family(_FAMILY.value)
    law = functools.partial(gaussian_mechanism.simulate_literal, family=family)
  shape = {'dim': _DIM.value, 'num_canaries': _NUM_CANARIES.value}
  epsilons = gaussian_mechanism.run_estimators(
    _SEED.value,
    sigmas,
    delta=_DELTA.value,
    simulations=_SIMULATIONS.value,
    law=law,
    progress=lambda audits: tqdm.tqdm(audits, unit='audit'),
    **shape,
  )
  rows = gaussian_mechanism.summarize(
    sigmas, epsilons, delta=_DELTA.value, **shape
  )
  print(mechanism.format_table(rows))
  plot = _PLOT.value
  if _OUT.value:
    io.write_json(_OUT.value, [row._asdict() for row in rows])
    plot = plot or pathlib.Path(_OUT.value).with_suffix('.png')
  if plot:
    save = functools.partial(
      mechanism.draw_mechanism(rows).savefig,
      format=pathlib.Path(plot).suffix[1:],
      dpi=150,
    )
    io.write_atomically(plot, save)


if __name__ == '__main__':
  app.run(main)
