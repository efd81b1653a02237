"""Federated EMNIST with the paper's CNN and settings.

  epe-jax run emnist \\
    --config.data.path=emnist_all.sqlite --workdir=runs/emnist

Without the public file, on generated handwriting of the same size:

  epe-jax run emnist \\
    --config.data.synthetic=True --workdir=runs/images

Source: One-shot Empirical Privacy Estimation, section 5.2.1; its earlier text
for ':5x34'.
"""

from ml_collections import config_dict

from epe_jax.configs import common  # pyright: ignore[reportMissingImports]

MODES = 'full', '5x34', 'smoke'


def get_config(mode: str = 'full') -> config_dict.ConfigDict:
  """Makes the config of a mode.

  Args:
    mode: 'full' has the paper's 15 epochs of 101 clients a round, '5x34' its
      earlier 5 epochs of 34, and 'smoke' shows that the file is read.

  Raises:
    ValueError: there is no such mode.
  """
  if mode not in MODES:
    raise ValueError(f"mode={mode!r}; give 'full', '5x34' or 'smoke'.")
  smoke = mode == 'smoke'
  canaries = 4 if smoke else 1000
  return common.make_config(
    task='emnist',
    data=dict(
      # emnist_all.sqlite or .sqlite.lzma, a data set of TFDS, or a folder that
      # `epe-jax data` made.
      path=config_dict.placeholder(str),
      # The 10-class split instead of the 62-class one.
      only_digits=False,
      # Generated handwriting in place of a file.
      synthetic=False,
      # The first clients of a file; writers and train images that are generated.
      num_clients=50 if smoke else config_dict.placeholder(int),
      num_examples=2_000 if smoke else config_dict.placeholder(int),
      # Folder of the imported columns; None: epe_jax in the user's cache.
      cache=config_dict.placeholder(str),
    ),
    # Filters of the first convolution; the later layers grow with it.
    model=dict(width=32),
    rounds=2 if smoke else 500,
    clients_per_round={'full': 101, '5x34': 34, 'smoke': 4}[mode],
    client=dict(learning_rate=0.031, batch_size=16, epochs=1),
    server=dict(learning_rate=1.0, momentum=0.9),
    noise_multiplier=0.16 if mode == '5x34' else 0.0958,
    canaries=dict(observed=canaries, unobserved=canaries),
    evaluate_every=1 if smoke else 50,
    checkpoint_every=1 if smoke else 50,
  )
