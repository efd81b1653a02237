"""The default job: handwritten digits that come with scikit-learn.

  epe-jax run digits --workdir=runs/digits

Fields that are not set here are explained in configs/common.py.
"""

from ml_collections import config_dict

from epe_jax.configs import common  # pyright: ignore[reportMissingImports]

MODES = 'full', 'smoke'


def get_config(mode: str = 'full') -> config_dict.ConfigDict:
  """Makes the config of a mode.

  It trains one epoch: a client takes part in one round, and so does a canary, so
  that what is measured of canaries holds for clients.

  Args:
    mode: 'full' audits with 100 + 100 canaries, five a round: so few that they are
      less than a hundredth of it with half of the noise, too. 'smoke' shows that it
      runs: in fewer and larger rounds, in which clients take part twice and canaries
      once.

  Raises:
    ValueError: there is no such mode.
  """
  if mode not in MODES:
    raise ValueError(f"mode={mode!r}; give 'full' or 'smoke'.")
  smoke = mode == 'smoke'
  canaries = dict(observed=20, unobserved=20)
  clipping = audit = {}
  if not smoke:
    canaries = dict(observed=100, unobserved=100, repetitions='as_clients')
    # In so few rounds it cannot adapt from afar.
    clipping = dict(initial=1.0)
    # By default n^-1.1, of so few clients hardly below 1/n.
    audit = dict(delta=1e-5)
  return common.make_config(
    task='digits',
    data=dict(
      num_clients=200 if smoke else 400,
      # Dirichlet label skew: small is skewed, large is even.
      concentration=1.0,
    ),
    # Units of each of two hidden layers.
    model=dict(width=200),
    rounds=6 if smoke else 20,
    clients_per_round=40 if smoke else 20,
    client=dict(learning_rate=0.1, batch_size=8, epochs=1 if smoke else 5),
    server=dict(learning_rate=1.0, momentum=0.9),
    clipping=clipping,
    noise_multiplier=0.2,
    canaries=canaries,
    audit=audit,
    evaluate_every=2,
    checkpoint_every=2 if smoke else 10,
  )
