"""The tables and figures of the paper, by name; settings of the runs they share."""

from collections.abc import Mapping, Sequence
import functools
from typing import Any

from papers import grid
from papers.grid import from_grid
from papers.item import Experiment
from papers.one_shot import (
  canife,
  mechanism,
  noise_tables,
  repetitions,
  runs,
  utility,
)

_OURS = 'not in the paper, which has it for StackOverflow'
_ONCE = {'canaries.repetitions': 1}
_DATA = {
  'emnist': ('emnist',),
  'stackoverflow': ('stackoverflow', 'word_count'),
}
_SIZES = {'emnist': grid.IMAGES, 'stackoverflow': grid.TEXT}


def _choose(
  config: str,
  noises: Sequence[float],
  second: str,
  scale: str,
) -> Mapping[str, Any]:
  """The grid of an experiment at a scale.

  Args:
    config: in configs/.
    noises: noise multipliers.
    second: what else differs: 'repetitions', 'canaries' or ''.
    scale: of `item.SIZES`.
  """
  smoke = scale == 'smoke'
  canaries = grid.ROUNDS[scale].get(
    'canaries', dict(observed=1000, unobserved=1000)
  )
  axes = {
    '': (),
    'repetitions': (
      ('canaries.repetitions', (1, 2) if smoke else (1, 2, 4, 8)),
    ),
    'canaries': (
      (
        ('canaries.observed', 'canaries.unobserved'),
        ((0, 0), (canaries['observed'], canaries['unobserved'])),
      ),
    ),
  }[second]
  if smoke:
    # Without noise and with some, where that is not two runs more.
    noises = noises[: 2 if second == 'repetitions' else 1]
  if scale == 'medium' and second == 'canaries':
    noises = (0.0, 0.0496)
  task = config.partition(':')[0]
  return dict(
    config=f'{config}:medium' if scale == 'medium' else config,
    sets=[grid.ROUNDS[scale], _SIZES[task][scale]],
    axes=(('noise_multiplier', noises), *axes),
  )


def _make_experiment(
  name: str, config: str, noises: Sequence[float], second: str = ''
) -> Experiment:
  task = config.partition(':')[0]
  choose = functools.partial(_choose, config, noises, second)
  experiment = Experiment(name, choose, _DATA[task])
  if task == 'emnist':
    return experiment
  return experiment._replace(scales=('smoke', 'small', 'medium', 'paper'))


# Noise multipliers of the paper; for StackOverflow ε is 299, 99 and 29.
_EMNIST_NOISES = (0.0, 0.0487, 0.0958, 0.2207)
_STACKOVERFLOW = _make_experiment(
  'stackoverflow',
  'stackoverflow',
  (0.0, 0.0496, 0.0986, 0.2317),
  'repetitions',
)
_EMNIST = _make_experiment('emnist', 'emnist', _EMNIST_NOISES, 'repetitions')
_EMNIST_5X34 = _make_experiment(
  'emnist_5x34', 'emnist:5x34', (0.0, 0.16, 0.18, 0.195, 0.25, 0.315)
)
_ACCURACY = _make_experiment(
  'accuracy',
  'stackoverflow',
  (0.0, 0.0644, 0.1023, 0.1836, 0.2344),
  'canaries',
)
_EMNIST_ACCURACY = _make_experiment(
  'emnist_accuracy', 'emnist', _EMNIST_NOISES, 'canaries'
)

ITEMS = {
  **mechanism.ITEMS,
  'stackoverflow': from_grid(
    'StackOverflow: ε at each noise level',
    'section 5.1, Table 3',
    _STACKOVERFLOW,
    noise_tables.make_tables,
    name='stackoverflow',
    fixed=_ONCE,
  ),
  'emnist': from_grid(
    'EMNIST: ε at each noise level',
    'section 5.2.1, Table 4',
    _EMNIST,
    noise_tables.make_tables,
    name='emnist',
    fixed=_ONCE,
  ),
  'emnist_5x34': from_grid(
    'EMNIST, 5 epochs of 34 clients a round: ε at each noise level',
    'the submission of 2023, appendix',
    _EMNIST_5X34,
    noise_tables.make_tables,
    name='emnist_5x34',
  ),
  'accuracy': from_grid(
    'StackOverflow: accuracy with canaries and without',
    'the text of May 2023, Table 2',
    _ACCURACY,
    utility.make_utility,
    adjust=utility.equalize_steps,
    name='accuracy',
  ),
  'emnist_accuracy': from_grid(
    'EMNIST: accuracy with canaries and without',
    _OURS,
    _EMNIST_ACCURACY,
    utility.make_utility,
    adjust=utility.equalize_steps,
    name='emnist_accuracy',
  ),
  'densities': from_grid(
    'StackOverflow: cosines by repetitions and noise',
    'section 5.2, Figure 1',
    _STACKOVERFLOW,
    repetitions.make_densities,
  ),
  'bars': from_grid(
    'StackOverflow: ε by repetitions and noise',
    'section 5.2, Figure 2',
    _STACKOVERFLOW,
    repetitions.make_bars,
  ),
  'runs': runs.ITEM,
  'anderson': from_grid(
    'StackOverflow: are cosines Gaussian?',
    'appendix B, Table 6',
    _STACKOVERFLOW,
    repetitions.make_anderson,
    name='anderson',
  ),
  'emnist_densities': from_grid(
    'EMNIST: cosines by repetitions and noise',
    _OURS,
    _EMNIST,
    repetitions.make_densities,
  ),
  'emnist_bars': from_grid(
    'EMNIST: ε by repetitions and noise',
    _OURS,
    _EMNIST,
    repetitions.make_bars,
  ),
  'emnist_anderson': from_grid(
    'EMNIST: are cosines Gaussian?',
    _OURS,
    _EMNIST,
    repetitions.make_anderson,
    name='emnist_anderson',
  ),
  'canife': canife.ITEM,
}
