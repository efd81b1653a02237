"""The grids of `epe-jax sweep`: the axes of each, by name.

  epe-jax sweep emnist \\
    --config.data.path=emnist_all.sqlite --grid=repetitions \\
    --workdir=runs/repetitions

An axis is a field and its values, or several fields that change together.
"""

from ml_collections import config_dict

# Of EMNIST; StackOverflow has 0, 0.0496, 0.0986 and 0.2317, by --axis.
_NOISE = ('noise_multiplier', (0.0, 0.0487, 0.0958, 0.2207))

_AXES = {
  # One-shot Empirical Privacy Estimation, section 5.2: how often a canary
  # takes part, at each noise level.
  'repetitions': (_NOISE, ('canaries.repetitions', (1, 2, 4, 8))),
  'noise': (_NOISE,),
  # How many canaries it takes: the scatter of estimates and their floors.
  'num_canaries': (
    (
      ('canaries.observed', 'canaries.unobserved'),
      ((50, 50), (100, 100), (200, 200), (500, 500), (1000, 1000)),
    ),
  ),
  # For image classifiers: d grows with the width, and must hold all canaries.
  'dimension': (('model.width', (32, 64, 128, 256)),),
  'server': (
    (
      ('server.optimizer', 'server.learning_rate', 'server.momentum'),
      (('sgd', 1.0, 0.0), ('sgd', 1.0, 0.9), ('adam', 0.01, 0.0)),
    ),
  ),
  'clipping': (
    (
      ('clipping.kind', 'clipping.initial'),
      (('adaptive', 0.1), ('fixed', 0.1), ('fixed', 0.3), ('fixed', 1.0)),
    ),
  ),
  'participation': (
    (
      ('participation.kind', 'canaries.schedule'),
      (
        ('shuffled', 'once_per_period'),
        ('one_order', 'once_per_period'),
        ('fixed_size', 'as_clients'),
        ('poisson', 'as_clients'),
        ('shuffled', 'replace'),
      ),
    ),
  ),
  # What rounding in the clients does to ε and to accuracy.
  'precision': (('precision', ('float32', 'bfloat16')),),
  # Accuracy with canaries and without.
  'utility': (
    _NOISE,
    (('canaries.observed', 'canaries.unobserved'), ((0, 0), (1000, 1000))),
  ),
}


def get_config(mode: str = 'repetitions') -> config_dict.ConfigDict:
  """Gives the axes of a grid, of which the last one changes fastest.

  Args:
    mode: the name of the grid.

  Raises:
    ValueError: there is no such grid.
  """
  if mode not in _AXES:
    raise ValueError(f'grid {mode!r}; give one of {", ".join(_AXES)}.')
  return config_dict.create(axes=_AXES[mode])
