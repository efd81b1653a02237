"""The tables and figures of the paper, by name."""

from epe_jax.papers.item import Item
from epe_jax.papers.one_shot import (
  canife,
  mechanism,
  noise_tables,
  repetitions,
  runs,
  utility,
)

_OURS = 'not in the paper, which has it for StackOverflow'
_ONCE = {'canaries.repetitions': 1}

ITEMS = {
  'algorithm1': Item(
    'Algorithm 1 on the Gaussian mechanism',
    'section 3, Table 1 of the text of May 2023',
    'algorithm1',
    'mechanism',
    mechanism.make_algorithm1,
  ),
  'd_sweep': Item(
    'Algorithm 1 at several dimensions',
    'the authors in answer to their reviewers',
    'd_sweep',
    'mechanism',
    mechanism.make_d_sweep,
  ),
  'stackoverflow': Item(
    'StackOverflow: ε at each noise level',
    'section 5.1, Table 3',
    'stackoverflow',
    'grid',
    noise_tables.make_stackoverflow,
    fixed=_ONCE,
  ),
  'emnist': Item(
    'EMNIST: ε at each noise level',
    'section 5.2.1, Table 4',
    'emnist',
    'grid',
    noise_tables.make_emnist,
    fixed=_ONCE,
  ),
  'emnist_5x34': Item(
    'EMNIST, 5 epochs of 34 clients a round: ε at each noise level',
    'the submission of 2023, appendix',
    'emnist_5x34',
    'grid',
    noise_tables.make_emnist_5x34,
  ),
  'accuracy': Item(
    'StackOverflow: accuracy with canaries and without',
    'the text of May 2023, Table 2',
    'accuracy',
    'grid',
    utility.make_stackoverflow,
  ),
  'emnist_accuracy': Item(
    'EMNIST: accuracy with canaries and without',
    _OURS,
    'emnist_accuracy',
    'grid',
    utility.make_emnist,
  ),
  'densities': Item(
    'StackOverflow: cosines by repetitions and noise',
    'section 5.2, Figure 1',
    'stackoverflow',
    'grid',
    repetitions.make_densities,
  ),
  'bars': Item(
    'StackOverflow: ε by repetitions and noise',
    'section 5.2, Figure 2',
    'stackoverflow',
    'grid',
    repetitions.make_bars,
  ),
  'runs': Item(
    'One run of many canaries against several runs of few',
    'section 5.3, Table 5',
    'runs',
    'comparison',
    runs.make_runs_table,
  ),
  'anderson': Item(
    'StackOverflow: are cosines Gaussian?',
    'appendix B, Table 6',
    'stackoverflow',
    'grid',
    repetitions.make_stackoverflow_anderson,
  ),
  'emnist_densities': Item(
    'EMNIST: cosines by repetitions and noise',
    _OURS,
    'emnist',
    'grid',
    repetitions.make_densities,
  ),
  'emnist_bars': Item(
    'EMNIST: ε by repetitions and noise',
    _OURS,
    'emnist',
    'grid',
    repetitions.make_bars,
  ),
  'emnist_anderson': Item(
    'EMNIST: are cosines Gaussian?',
    _OURS,
    'emnist',
    'grid',
    repetitions.make_emnist_anderson,
  ),
  'canife': Item(
    'CANIFE beside one-shot estimates, on Fashion-MNIST',
    'section 5.4; appendix H of the submission of 2023',
    'canife',
    'training',
    canife.make_canife,
    canife.train_canife,
  ),
}
