"""Federated EMNIST with the paper's CNN and settings.

  python scripts/train.py --config=configs/emnist.py \
    --config.data.path=emnist_all.sqlite --workdir=runs/emnist

Without the public file, on generated handwriting of the same size:

  python scripts/train.py --config=configs/emnist.py \
    --config.data.synthetic=True --workdir=runs/images

Source: One-shot Empirical Privacy Estimation, section 5.2.1; its earlier text
for ':5x34'.
"""

from ml_collections import config_dict


def get_config(mode: str = 'full') -> config_dict.ConfigDict:
  """'full' has the paper's 15 epochs of 101 clients a round, '5x34' its earlier
  5 epochs of 34; 'smoke' shows that the file is read."""
  if mode not in ('full', '5x34', 'smoke'):
    raise ValueError(f"mode={mode!r}; give 'full', '5x34' or 'smoke'.")
  smoke = mode == 'smoke'
  return config_dict.create(
    task='emnist',
    data=dict(
      # emnist_all.sqlite or .sqlite.lzma, fed_emnist.tar.bz2, a data set of
      # TFDS, or a folder that scripts/prepare_data.py made.
      path=config_dict.placeholder(str),
      # The 10-class split instead of the 62-class one.
      only_digits=False,
      # Generated handwriting in place of a file, of the size of the real data
      # or of so many writers and train images.
      synthetic=False,
      num_clients=config_dict.placeholder(int),
      num_examples=config_dict.placeholder(int),
      # Folder of the imported columns; None: epe_jax in the user's cache.
      cache=config_dict.placeholder(str),
    ),
    # Filters of the first convolution; the layers behind it grow with it.
    model=dict(width=32),
    rounds=2 if smoke else 500,
    clients_per_round={'full': 101, '5x34': 34, 'smoke': 4}[mode],
    # Which clients take part in which round.
    participation=dict(
      # Epochs, 'shuffled' each or in 'one_order'; rounds of 'fixed_size', or
      # 'poisson', or 'limited' by the two below; or the 'log' of a real system.
      kind='shuffled',
      # Least distance between two rounds of a client; 1 is no limit.
      separation=1,
      # Rounds of a client at most; None is no limit.
      most=config_dict.placeholder(int),
      # CSV or Parquet with the columns round and client_id.
      log=config_dict.placeholder(str),
    ),
    # Clients that are trained at once; None: 1 on a CPU, elsewhere as many as
    # there is memory for.
    chunk=config_dict.placeholder(int),
    # Rounds that are sent to the device as one, for small models on a GPU.
    rounds_per_dispatch=1,
    # Clients compute in 'float32', 'tensorfloat32' or 'bfloat16'; what they
    # send, clipping, noise and canaries are float32 in all.
    precision='float32',
    client=dict(
      learning_rate=0.031,
      batch_size=16,
      epochs=1,
      # A client with more trains on as many, drawn anew each round; None: all.
      max_examples=config_dict.placeholder(int),
    ),
    # 'sgd', or 'adam' with momentum 0.
    server=dict(optimizer='sgd', learning_rate=1.0, momentum=0.9),
    clipping=dict(
      kind='adaptive',
      initial=0.1,
      quantile=0.5,
      learning_rate=0.2,
      # Std of the noise on the count, as a share of clients per round.
      count_noise=0.05,
    ),
    noise_multiplier=0.16 if mode == '5x34' else 0.0958,
    divisor='expected',
    # Without any, 0 and 0, the run is not audited.
    canaries=dict(
      # 'sphere', as in the paper; 'hadamard' is a thousand times as fast. All:
      # docs/canaries.md.
      family='sphere',
      observed=4 if smoke else 1000,
      unobserved=4 if smoke else 1000,
      # 'once_per_period', in each of `repetitions` equal periods; by
      # 'coin_flips', likewise, for those of all observed + unobserved whose own
      # fair coin says so; 'as_clients', sampled as they are; to 'replace' that
      # many of them; or by the 0/1 'matrix' of a file.
      schedule='once_per_period',
      repetitions=1,
      matrix=config_dict.placeholder(str),
      # Canaries that are made at once.
      block=64,
    ),
    audit=dict(
      # 'aggregate' is rho_bar, 'delta' the change after the server optimizer.
      sees='aggregate',
      # Rounds scored together, no more than lie between two checkpoints; None:
      # as many as memory holds, 1 for families to whom a look at one round
      # costs no more.
      buffer=config_dict.placeholder(int),
      # Bytes for what is not scored yet: 8 d for each round.
      memory=2e9,
      # None: (number of clients)^-1.1
      delta=config_dict.placeholder(float),
    ),
    evaluate_every=1 if smoke else 50,
    # Test examples drawn at random to evaluate on; None: all.
    evaluate_examples=config_dict.placeholder(int),
    checkpoint_every=1 if smoke else 50,
    seed=0,
    # True declares the run a reproducible simulation: the privacy noise and who
    # takes part then follow from the seed. Set False wherever the model will be
    # released; docs/secrets.md says what else may be.
    simulation=True,
  )
