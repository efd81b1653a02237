"""The default job: handwritten digits that come with scikit-learn.

  epe-jax run digits --workdir=runs/digits

Fields that are not set here are explained in configs/common.py.
"""

from ml_collections import config_dict

from epe_jax.configs import common  # pyright: ignore[reportMissingImports]


def get_config(mode: str = 'full') -> config_dict.ConfigDict:
  """Makes the config of a mode.

  Args:
    mode: 'full' audits with 1000 + 1000 canaries, and 'smoke' shows that it
      runs.

  Raises:
    ValueError: there is no such mode.
  """
  if mode not in ('full', 'smoke'):
    raise ValueError(f"mode={mode!r}; give 'full' or 'smoke'.")
  smoke = mode == 'smoke'
  canaries = 20 if smoke else 1000
  return common.make_config(
    task='digits',
    data=dict(
      num_clients=200,
      # Dirichlet label skew: small is skewed, large is even.
      concentration=1.0,
    ),
    # Units of each of two hidden layers.
    model=dict(width=200),
    rounds=6 if smoke else 100,
    clients_per_round=40,
    client=dict(learning_rate=0.1, batch_size=8, epochs=1),
    server=dict(learning_rate=1.0, momentum=0.9),
    noise_multiplier=0.2,
    canaries=dict(observed=canaries, unobserved=canaries),
    evaluate_every=2 if smoke else 5,
    checkpoint_every=2 if smoke else 50,
  )
