r"""Audits a single Gaussian mechanism in one shot: Algorithm 1, Table 2.

The paper's table takes a few seconds on two CPU cores:

  python scripts/gaussian.py --dim=1000000 --num_canaries=1000 \
    --simulations=50 --seed=0

Ask for analytic epsilons instead of noise levels, and keep the result:

  python scripts/gaussian.py --epsilon=1,3,10 --out=gaussian.json

The cosines are drawn from their exact law, at a cost that does not depend on d;
--literal simulates the mechanism in d dimensions instead, with the same result.
"""

from collections.abc import Sequence
import io
import json
import math
import os
import pathlib

from absl import app, flags
import dp_accounting
from matplotlib import figure
import tqdm

from epe_jax import gaussian_mechanism

_SIGMAS = ('4.22', '1.54', '0.541')
_PLOTS = ('.png', '.pdf', '.svg')
# Okabe and Ito's colours, told apart in every common kind of colour blindness.
# Moved sideways by 2 %, so that the bars of the two do not overlap.
_STYLES = {'null': ('#0072B2', 'o', 0.98), 'fitted': ('#D55E00', 's', 1.02)}
_LABELS = {'null': 'std fixed at 1/√d', 'fitted': 'std fitted'}
_EXPLANATION = """\
null   std of the canaries' cosines fixed at 1/√d, its value as d grows: the
       calibrated reading, which estimates the analytic ε.
fitted std fitted, as Algorithm 1 prints it: the fit is off by 1/√(2k) of its
       value and any difference between two stds raises ε, so it reads high."""

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
_OUT = flags.DEFINE_string('out', None, 'Write the rows to this .json file.')
_PLOT = flags.DEFINE_string(
  'plot', None, 'Draw them to this file. Default: beside --out, as .png.'
)


def _at_least(bound: int, name: str, cure: str) -> None:
  flags.register_validator(name, lambda value: value >= bound, cure)


def _numbers(texts: Sequence[str] | None, *, zero: bool) -> bool:
  if texts is None:
    return True
  try:
    values = [float(text) for text in texts]
  except ValueError:
    return False
  valid = [0 < x < math.inf or (zero and x == 0) for x in values]
  return bool(valid) and all(valid)


def _writable(text: str | None, suffixes: Sequence[str]) -> bool:
  if text is None:
    return True
  path = pathlib.Path(text)
  return path.suffix in suffixes and path.parent.is_dir() and not path.is_dir()


_at_least(2, 'dim', 'a cosine needs two dimensions. Pass --dim=2 or more.')
_at_least(
  2,
  'num_canaries',
  'the fitted std needs two cosines. Pass --num_canaries=2 or more.',
)
_at_least(1, 'simulations', 'nothing to average. Pass --simulations=1 or more.')
_at_least(0, 'seed', 'a seed is not negative. Pass --seed=0 or more.')
flags.register_validator(
  'delta',
  lambda delta: 0 < delta < 1,
  'delta is a probability between 0 and 1. Pass for instance --delta=1e-6.',
)
flags.register_validator(
  'sigma',
  lambda texts: _numbers(texts, zero=True),
  'these must be finite numbers >= 0. Pass for instance --sigma=4.22,1.54.',
)
flags.register_validator(
  'epsilon',
  lambda texts: _numbers(texts, zero=False),
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
flags.register_validator(
  'out',
  lambda text: _writable(text, ('.json',)),
  'this must be a .json file in a directory that exists. Create the '
  'directory, or rename the file.',
)
flags.register_validator(
  'plot',
  lambda text: _writable(text, _PLOTS),
  f'this must be a {", ".join(_PLOTS)} file in a directory that exists. '
  'Create the directory, or rename the file.',
)


def _title() -> str:
  return (
    f'd = {_DIM.value:,}, k = {_NUM_CANARIES.value:,}, '
    f'δ = {_DELTA.value:g}, {_SIMULATIONS.value} simulations'
  )


def _table(rows: Sequence[gaussian_mechanism.Row]) -> str:
  names = gaussian_mechanism.ESTIMATORS
  lines = [f'{"σ":>10} {"analytic ε":>12}' + ''.join(f'{n:>20}' for n in names)]
  for i in range(0, len(rows), len(names)):
    line = f'{rows[i].sigma:>10.4g} {rows[i].analytic_epsilon:>12.4g}'
    for row in rows[i : i + len(names)]:
      line += f'{f"{row.mean:.4g} ± {row.std:.2g}":>20}'
    lines.append(line)
  return '\n'.join(lines)


def _figure(rows: Sequence[gaussian_mechanism.Row]) -> figure.Figure:
  """Estimates against the analytic epsilon; on the dashed line they agree."""
  drawn = [r for r in rows if math.isfinite(r.analytic_epsilon + r.mean)]
  values = [x for r in drawn for x in (r.analytic_epsilon, r.mean)] or [1.0]
  fig = figure.Figure(figsize=(5.5, 5), layout='constrained')
  axes = fig.subplots()
  ends = (min(values), max(values))
  axes.plot(
    ends, ends, '--', color='0.6', zorder=0, label='estimate = analytic'
  )
  for name, (color, marker, shift) in _STYLES.items():
    mine = [r for r in drawn if r.estimator == name]
    axes.errorbar(
      [r.analytic_epsilon * shift for r in mine],
      [r.mean for r in mine],
      [0.0 if math.isnan(r.std) else r.std for r in mine],
      fmt=marker,
      color=color,
      mfc='white',
      capsize=4,
      label=_LABELS[name],
    )
  if min(values) > 0:
    axes.set(xscale='log', yscale='log')
    for axis in (axes.xaxis, axes.yaxis):
      axis.set_major_formatter('{x:g}')
  axes.set(xlabel='analytic ε', ylabel='estimated ε, mean ± std')
  axes.set_title(_title(), fontsize='medium')
  axes.legend(frameon=False)
  return fig


def _write(path: pathlib.Path, content: bytes) -> None:
  """Writes all of the file or, if interrupted, none of it."""
  temporary = path.with_name(f'.{path.name}.{os.getpid()}.tmp')
  temporary.write_bytes(content)
  os.replace(temporary, path)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag. Remove it; see --help.')
  if _EPSILON.value:
    sigmas = [
      dp_accounting.get_sigma_gaussian(float(text), _DELTA.value)
      for text in _EPSILON.value
    ]
  else:
    sigmas = [float(text) for text in _SIGMA.value or _SIGMAS]
  literal = _LITERAL.value
  law = gaussian_mechanism.literal if literal else gaussian_mechanism.exact
  shape = {'dim': _DIM.value, 'num_canaries': _NUM_CANARIES.value}
  epsilons = gaussian_mechanism.estimates(
    _SEED.value,
    sigmas,
    delta=_DELTA.value,
    simulations=_SIMULATIONS.value,
    law=law,
    progress=lambda audits: tqdm.tqdm(audits, unit='audit'),
    **shape,
  )
  rows = gaussian_mechanism.table(sigmas, epsilons, delta=_DELTA.value)
  print(f'{_title()}\n\n{_table(rows)}\n\n{_EXPLANATION}')
  plot = _PLOT.value
  if _OUT.value:
    records = [r._asdict() | shape | {'delta': _DELTA.value} for r in rows]
    text = json.dumps(records, indent=2) + '\n'
    _write(pathlib.Path(_OUT.value), text.encode())
    plot = plot or pathlib.Path(_OUT.value).with_suffix('.png')
  if plot:
    buffer = io.BytesIO()
    suffix = pathlib.Path(plot).suffix
    _figure(rows).savefig(buffer, format=suffix[1:], dpi=150)
    _write(pathlib.Path(plot), buffer.getvalue())


if __name__ == '__main__':
  app.run(main)
