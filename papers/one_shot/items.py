"""The tables and figures of the paper, by name."""

from papers.grid import from_grid
from papers.item import Item, from_settings, from_training
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
_EMNIST = ('emnist',)
_STACKOVERFLOW = ('stackoverflow', 'word_count')

ITEMS = {
  'algorithm1': Item(
    'Algorithm 1 on the Gaussian mechanism',
    'section 3, Table 1 of the text of May 2023',
    'algorithm1',
    from_settings(mechanism.make_algorithm1),
  ),
  'd_sweep': Item(
    'Algorithm 1 at several dimensions',
    'the authors in answer to their reviewers',
    'd_sweep',
    from_settings(mechanism.make_d_sweep),
  ),
  'stackoverflow': from_grid(
    'StackOverflow: ε at each noise level',
    'section 5.1, Table 3',
    'stackoverflow',
    _STACKOVERFLOW,
    noise_tables.make_tables,
    name='stackoverflow',
    fixed=_ONCE,
  ),
  'emnist': from_grid(
    'EMNIST: ε at each noise level',
    'section 5.2.1, Table 4',
    'emnist',
    _EMNIST,
    noise_tables.make_tables,
    name='emnist',
    fixed=_ONCE,
  ),
  'emnist_5x34': from_grid(
    'EMNIST, 5 epochs of 34 clients a round: ε at each noise level',
    'the submission of 2023, appendix',
    'emnist_5x34',
    _EMNIST,
    noise_tables.make_tables,
    name='emnist_5x34',
  ),
  'accuracy': from_grid(
    'StackOverflow: accuracy with canaries and without',
    'the text of May 2023, Table 2',
    'accuracy',
    _STACKOVERFLOW,
    utility.make_utility,
    adjust=utility.equalize_steps,
    name='accuracy',
  ),
  'emnist_accuracy': from_grid(
    'EMNIST: accuracy with canaries and without',
    _OURS,
    'emnist_accuracy',
    _EMNIST,
    utility.make_utility,
    adjust=utility.equalize_steps,
    name='emnist_accuracy',
  ),
  'densities': from_grid(
    'StackOverflow: cosines by repetitions and noise',
    'section 5.2, Figure 1',
    'stackoverflow',
    _STACKOVERFLOW,
    repetitions.make_densities,
  ),
  'bars': from_grid(
    'StackOverflow: ε by repetitions and noise',
    'section 5.2, Figure 2',
    'stackoverflow',
    _STACKOVERFLOW,
    repetitions.make_bars,
  ),
  'runs': Item(
    'One run of many canaries against several runs of few',
    'section 5.3, Table 5',
    'runs',
    runs.make_runs,
    _STACKOVERFLOW,
  ),
  'anderson': from_grid(
    'StackOverflow: are cosines Gaussian?',
    'appendix B, Table 6',
    'stackoverflow',
    _STACKOVERFLOW,
    repetitions.make_anderson,
    name='anderson',
  ),
  'emnist_densities': from_grid(
    'EMNIST: cosines by repetitions and noise',
    _OURS,
    'emnist',
    _EMNIST,
    repetitions.make_densities,
  ),
  'emnist_bars': from_grid(
    'EMNIST: ε by repetitions and noise',
    _OURS,
    'emnist',
    _EMNIST,
    repetitions.make_bars,
  ),
  'emnist_anderson': from_grid(
    'EMNIST: are cosines Gaussian?',
    _OURS,
    'emnist',
    _EMNIST,
    repetitions.make_anderson,
    name='emnist_anderson',
  ),
  'canife': Item(
    'CANIFE next to one-shot estimates, on Fashion-MNIST',
    'section 5.4; appendix H of the submission of 2023',
    'canife',
    from_training(canife.train_canife, canife.make_canife),
    ('fashion_mnist',),
  ),
}
