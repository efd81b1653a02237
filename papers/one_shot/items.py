"""The tables and figures of the paper, by name; settings of the runs they share."""

from collections.abc import Callable, Sequence
from typing import Any

from papers import grid
from papers.grid import from_grid
from papers.item import SIZES, Experiment
from papers.one_shot import (
  canife,
  mechanism,
  noise_tables,
  repetitions,
  runs,
  utility,
)

REMARKS = (
  "The paper's own versions disagree: ε_est of the final model on StackOverflow "
  'without noise is 5.49 in the text of May 2023 and 4.60 in later ones. No comparison '
  'of trained models can be expected to be closer.',
  'δ: the text says m^-1.1. The analytic ε that it prints are, as far as it rounds '
  'them, those at 341,000^-1.1 = 8.2e-7 on StackOverflow, at (101 x 500)^-1.1 = 6.7e-6 '
  'on EMNIST and near 0.0077 with 34 clients a round; for 3,383 clients m^-1.1 is '
  '1.3e-4. The pages of these tables have both δ.',
  'No page: of the text of May 2023 Table 3, Table 4 (Anderson, also in the '
  'submission) and Figures 1 and 2, which have other noise, and other repetitions: 1, 2, '
  '3, 5 and 10 in Table 4 and Figure 1; of the submission Figure 2 with its 34 clients a round.',
  'What differs from the text: the divisor of a round is the number of clients and '
  'canaries that is expected, not that of the round; where the clip norm adapts, '
  'canaries count as clipped, although their norm is S and the rule counts norms of '
  'at most S.',
)
"""On all items, for the page that lists them."""

_OURS = 'for EMNIST what the paper has for StackOverflow'
_ONCE = {'canaries.repetitions': 1}
# Noise multipliers of the paper; for StackOverflow ε is 299, 99 and 29.
_EMNIST_NOISES = (0.0, 0.0487, 0.0958, 0.2207)
_STACKOVERFLOW_NOISES = (0.0, 0.0496, 0.0986, 0.2317)


def _choose_repetitions(scale: str) -> Any:
  return 'canaries.repetitions', (1, 2) if scale == 'smoke' else (1, 2, 4, 8)


def _choose_canaries(scale: str) -> Any:
  paper = dict(observed=1000, unobserved=1000)
  canaries = grid.ROUNDS[scale].get('canaries', paper)
  fields = ('canaries.observed', 'canaries.unobserved')
  return fields, ((0, 0), (canaries['observed'], canaries['unobserved']))


def _make_experiment(
  name: str,
  config: str,
  noises: Sequence[float],
  choose_axis: Callable[[str], Any] | None = None,
) -> Experiment:
  """A grid of noise multipliers, and of another axis at each scale."""
  of_text = config == 'stackoverflow'

  def choose(scale: str) -> dict[str, Any]:
    levels = noises
    if scale == 'smoke':
      # Without noise and with some, where that is not two runs more.
      levels = noises[: 2 if choose_axis == _choose_repetitions else 1]
    if scale == 'medium' and choose_axis == _choose_canaries:
      levels = (0.0, 0.0496)
    sizes = grid.TEXT if of_text else grid.IMAGES
    others = [choose_axis(scale)] if choose_axis else []
    return dict(
      config=f'{config}:medium' if scale == 'medium' else config,
      sets=[grid.ROUNDS[scale], sizes[scale]],
      axes=(('noise_multiplier', levels), *others),
    )

  if not of_text:
    return Experiment(name, choose, ('emnist',))
  data, scales = ('stackoverflow', 'word_count'), tuple(SIZES)
  return Experiment(name, choose, data, scales)


_STACKOVERFLOW = _make_experiment(
  'stackoverflow',
  'stackoverflow',
  _STACKOVERFLOW_NOISES,
  _choose_repetitions,
)
_EMNIST = _make_experiment(
  'emnist', 'emnist', _EMNIST_NOISES, _choose_repetitions
)
_EMNIST_5X34 = _make_experiment(
  'emnist_5x34', 'emnist:5x34', (0.0, 0.16, 0.18, 0.195, 0.25, 0.315)
)
_ACCURACY = _make_experiment(
  'accuracy',
  'stackoverflow',
  (0.0, 0.0644, 0.1023, 0.1836, 0.2344),
  _choose_canaries,
)
_EMNIST_ACCURACY = _make_experiment(
  'emnist_accuracy', 'emnist', _EMNIST_NOISES, _choose_canaries
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
    'the submission of 2023, appendix D, Table 3',
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
    'the submission of 2023, appendix D, Figure 2, there with 34 clients a round and noise 0.16 to 0.195',
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
