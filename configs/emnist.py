"""Federated EMNIST with the paper's CNN and settings (15 epochs x 101 clients).

  python scripts/train.py --config=configs/emnist.py \
    --config.data.path=emnist_all.sqlite --workdir=runs/emnist

Source: One-shot Empirical Privacy Estimation, section 5.2.1.
"""

from ml_collections import config_dict


def get_config(mode: str = 'full') -> config_dict.ConfigDict:
  """'full' has the paper's settings; 'smoke' shows that the file is read."""
  if mode not in ('full', 'smoke'):
    raise ValueError(f"mode={mode!r}; give 'full' or 'smoke'.")
  smoke = mode == 'smoke'
  return config_dict.create(
    task='emnist',
    data=dict(
      # TFF's emnist_all.sqlite or emnist_all.sqlite.lzma.
      path=config_dict.placeholder(str),
      # The 10-class split instead of the 62-class one.
      only_digits=False,
      # Folder of the imported columns; None: epe_jax in the user's cache.
      cache=config_dict.placeholder(str),
    ),
    rounds=2 if smoke else 500,
    clients_per_round=4 if smoke else 101,
    chunk=1,
    client=dict(learning_rate=0.031, batch_size=16, epochs=1),
    server=dict(learning_rate=1.0, momentum=0.9),
    clipping=dict(
      kind='adaptive',
      initial=0.1,
      quantile=0.5,
      learning_rate=0.2,
      # Std of the noise on the count, as a share of clients per round.
      count_noise=0.05,
    ),
    noise_multiplier=0.0958,
    divisor='expected',
    canaries=dict(observed=4, unobserved=4, repetitions=1, block=16)
    if smoke
    else dict(observed=1000, unobserved=1000, repetitions=1, block=16),
    audit=dict(
      # 'aggregate' is rho_bar, 'delta' the change after the server optimizer.
      sees='aggregate',
      # Rounds scored together: buffer x d floats of memory.
      buffer=25,
      # None: (number of clients)^-1.1
      delta=config_dict.placeholder(float),
    ),
    evaluate_every=1 if smoke else 50,
    checkpoint_every=1 if smoke else 50,
    seed=0,
    # True declares the run a reproducible simulation: the privacy noise then
    # follows from the seed. Set False wherever the model will be released.
    simulation=True,
  )
