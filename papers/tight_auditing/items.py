"""The tables and figures of the paper, by name."""

from collections.abc import Callable
import importlib
from typing import Any

from epe_jax import extras
from papers.item import Item, Product, from_settings, from_training
from papers.tight_auditing import (
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


def _simulated(
  title: str, source: str, experiment: str, make: Callable[[Any], Product]
) -> Item:
  """An item without a model."""
  return Item(title, source, experiment, from_settings(make))


def _trained(
  title: str,
  source: str,
  experiment: str,
  make: Callable[[Any], Product],
  train: Callable[..., Any] = _train_games,
) -> Item:
  """An item of audited trainings, by default of white-box games."""
  return Item(title, source, experiment, from_training(train, make), _DATA)


ITEMS = {
  'figure3': _simulated(
    'A Gaussian step: ε over the number of observations',
    'section 4.1, Figure 3',
    'tight_figure3',
    gaussian_steps.make_figure3,
  ),
  'figure4': _simulated(
    'A Gaussian step: ε at every threshold',
    'section 5.2, Figure 4',
    'tight_figure4',
    gaussian_steps.make_figure4,
  ),
  'figure5': _simulated(
    'Error rates of a subsampled step',
    'section 5.4, Figure 5',
    'tight_figure5',
    curves.make_figure5,
  ),
  'figure13': _simulated(
    'Algorithm 4 and the exact trade-off curve',
    'appendix A, Figure 13',
    'tight_figure13',
    curves.make_figure13,
  ),
  'figure14': _simulated(
    '(ε, δ)-DP at several thresholds, over the number of observations',
    'appendix C.1, Figure 14',
    'tight_figure14',
    gaussian_steps.make_figure14,
  ),
  'table1_simulated': _simulated(
    'Lower limits of ε by the law of observations',
    'section 6.2, Table 1, without a model',
    'tight_table1_simulated',
    simulated_table.make_table1,
  ),
  'clipping_bug': _simulated(
    'Bug: clipping after averaging',
    'section 6.3, Figure 7, without a model',
    'tight_clipping_bug',
    bug_hunts.make_clipping,
  ),
  'seeds_bug': _simulated(
    'Bug: noise from 100 seeds',
    'section 6.3, Figure 8, without a model',
    'tight_seeds_bug',
    bug_hunts.make_seeds,
  ),
  'scale_bug': _simulated(
    'Bug: noise that is too small',
    'section 6.3, Figure 9, without a model',
    'tight_scale_bug',
    bug_hunts.make_scale,
  ),
  'table1': _trained(
    'White-box audits of trained models',
    'section 6.2, Table 1',
    'tight_table1',
    white_box_results.make_table1,
  ),
  'figure6': _trained(
    'Audits of trained models, by estimator',
    'section 6.2, Figure 6',
    'tight_table1',
    white_box_results.make_figure6,
  ),
  'convnet': _trained(
    'A private ConvNet, its accuracy and its audit',
    'appendix B, the ConvNet of Table 1, on images that are at hand',
    'tight_convnet',
    white_box_results.make_convnet,
  ),
  'figure15': _trained(
    'Kinds of canary gradients',
    'appendix C.2, Figure 15',
    'tight_gradient_canaries',
    white_box_results.make_figure15,
  ),
  'figure16': _trained(
    'Kinds of canary inputs',
    'appendix C.3, Figure 16',
    'tight_input_canaries',
    white_box_results.make_figure16,
  ),
  'figure17': _trained(
    'Canary inputs in the first steps',
    'appendix D.1, Figure 17',
    'tight_input_canaries',
    white_box_results.make_figure17,
  ),
  'figure10': _trained(
    'Canary inputs at several ε',
    'section 6.4, Figure 10',
    'tight_inputs_by_epsilon',
    white_box_results.make_figure10,
  ),
  'figure11': _trained(
    'Clipping without noise, black box',
    'section 6.4, Figure 11',
    'tight_clipped_black_box',
    _call_late('black_box', 'make_figure11'),
    _train_models,
  ),
  'figure12': _trained(
    'Private models, black box',
    'section 6.4, Figure 12',
    'tight_black_box',
    _call_late('black_box', 'make_figure12'),
    _train_models,
  ),
  'figure18': _trained(
    'Models of different depths',
    'appendix D.2, Figure 18',
    'tight_depths',
    white_box_results.make_figure18,
  ),
  'figure19': _trained(
    'Augmentations of each image',
    'appendix D.3, Figure 19',
    'tight_augmentations',
    white_box_results.make_figure19,
  ),
  'trained_bugs': _trained(
    'Bugs in the steps of a training',
    'section 6.3, Figures 7, 8 and 9',
    'tight_trained_bugs',
    white_box_results.make_bugs,
  ),
}
