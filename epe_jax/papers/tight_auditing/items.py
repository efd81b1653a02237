"""The tables and figures of the paper, by name."""

from collections.abc import Callable
import importlib
from typing import Any

from epe_jax import extras
from epe_jax.papers.item import Item, from_settings, from_training
from epe_jax.papers.tight_auditing import (
  bug_hunts,
  curves,
  gaussian_steps,
  simulated_table,
  white_box_results,
)


def _call_late(module: str, name: str) -> Callable[..., Any]:
  """A function of a module that needs the extra for DP-SGD."""

  def call(*args: Any) -> Any:
    with extras.explain_missing():
      imported = importlib.import_module(f'{__package__}.{module}')
    return getattr(imported, name)(*args)

  return call


_train_games = _call_late('white_box_games', 'train_games')
_train_models = _call_late('black_box', 'train_models')
_DATA = ('cifar10', 'fashion_mnist', 'purchase100')

ITEMS = {
  'figure3': Item(
    'A Gaussian step: ε over the number of observations',
    'section 4.1, Figure 3',
    'tight_figure3',
    from_settings(gaussian_steps.make_figure3),
  ),
  'figure4': Item(
    'A Gaussian step: ε at every threshold',
    'section 5.2, Figure 4',
    'tight_figure4',
    from_settings(gaussian_steps.make_figure4),
  ),
  'figure5': Item(
    'Error rates of a subsampled step',
    'section 5.4, Figure 5',
    'tight_figure5',
    from_settings(curves.make_figure5),
  ),
  'figure13': Item(
    'Algorithm 4 and the exact trade-off curve',
    'appendix A, Figure 13',
    'tight_figure13',
    from_settings(curves.make_figure13),
  ),
  'figure14': Item(
    '(ε, δ)-DP at several thresholds, over the number of observations',
    'appendix C.1, Figure 14',
    'tight_figure14',
    from_settings(gaussian_steps.make_figure14),
  ),
  'table1_simulated': Item(
    'Lower limits of ε by the law of observations',
    'section 6.2, Table 1, without a model',
    'tight_table1_simulated',
    from_settings(simulated_table.make_table1),
  ),
  'clipping_bug': Item(
    'Bug: clipping after averaging',
    'section 6.3, Figure 7, without a model',
    'tight_clipping_bug',
    from_settings(bug_hunts.make_clipping),
  ),
  'seeds_bug': Item(
    'Bug: noise from 100 seeds',
    'section 6.3, Figure 8, without a model',
    'tight_seeds_bug',
    from_settings(bug_hunts.make_seeds),
  ),
  'scale_bug': Item(
    'Bug: noise that is too small',
    'section 6.3, Figure 9, without a model',
    'tight_scale_bug',
    from_settings(bug_hunts.make_scale),
  ),
  'table1': Item(
    'White-box audits of trained models',
    'section 6.2, Table 1',
    'tight_table1',
    from_training(_train_games, white_box_results.make_table1),
    _DATA,
  ),
  'figure6': Item(
    'Audits of trained models, by estimator',
    'section 6.2, Figure 6',
    'tight_table1',
    from_training(
      _train_games,
      white_box_results.make_figure6,
    ),
    _DATA,
  ),
  'convnet': Item(
    'A private ConvNet, its accuracy and its audit',
    'appendix B, the ConvNet of Table 1, on images that are at hand',
    'tight_convnet',
    from_training(
      _train_games,
      white_box_results.make_convnet,
    ),
    _DATA,
  ),
  'figure15': Item(
    'Kinds of canary gradients',
    'appendix C.2, Figure 15',
    'tight_gradient_canaries',
    from_training(
      _train_games,
      white_box_results.make_figure15,
    ),
    _DATA,
  ),
  'figure16': Item(
    'Kinds of canary inputs',
    'appendix C.3, Figure 16',
    'tight_input_canaries',
    from_training(
      _train_games,
      white_box_results.make_figure16,
    ),
    _DATA,
  ),
  'figure17': Item(
    'Canary inputs in the first steps',
    'appendix D.1, Figure 17',
    'tight_input_canaries',
    from_training(
      _train_games,
      white_box_results.make_figure17,
    ),
    _DATA,
  ),
  'figure10': Item(
    'Canary inputs at several ε',
    'section 6.4, Figure 10',
    'tight_inputs_by_epsilon',
    from_training(
      _train_games,
      white_box_results.make_figure10,
    ),
    _DATA,
  ),
  'figure11': Item(
    'Clipping without noise, black box',
    'section 6.4, Figure 11',
    'tight_clipped_black_box',
    from_training(
      _train_models,
      _call_late('black_box', 'make_figure11'),
    ),
    _DATA,
  ),
  'figure12': Item(
    'Private models, black box',
    'section 6.4, Figure 12',
    'tight_black_box',
    from_training(
      _train_models,
      _call_late('black_box', 'make_figure12'),
    ),
    _DATA,
  ),
  'costs': Item(
    'Audits of one training and of many: ε and cost',
    'section 6.4, Algorithms 1 and 2, next to a one-shot audit',
    'tight_costs',
    from_training(
      _call_late('costs', 'train_costs'),
      _call_late('costs', 'make_costs'),
    ),
    _DATA,
  ),
  'figure18': Item(
    'Models of different depths',
    'appendix D.2, Figure 18',
    'tight_depths',
    from_training(
      _train_games,
      white_box_results.make_figure18,
    ),
    _DATA,
  ),
  'figure19': Item(
    'Augmentations of each image',
    'appendix D.3, Figure 19',
    'tight_augmentations',
    from_training(
      _train_games,
      white_box_results.make_figure19,
    ),
    _DATA,
  ),
  'trained_bugs': Item(
    'Bugs in the steps of a training',
    'section 6.3, Figures 7, 8 and 9',
    'tight_trained_bugs',
    from_training(_train_games, white_box_results.make_bugs),
    _DATA,
  ),
}
