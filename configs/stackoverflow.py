"""StackOverflow next-word prediction with the paper's LSTM and settings.

  python scripts/train.py --config=configs/stackoverflow.py \
    --config.data.path=stackoverflow.sqlite \
    --config.data.word_count=stackoverflow.word_count --workdir=runs/stackoverflow

Without the public files, on generated text of as many users:

  python scripts/train.py --config=configs/stackoverflow.py \
    --config.data.synthetic=True --workdir=runs/text

Source: One-shot Empirical Privacy Estimation, section 5.1: one epoch of 2048
rounds of 167 clients. The paper does not say how many sentences of a client
are used; client.max_examples is ours.
"""

from ml_collections import config_dict


def get_config(mode: str = 'full') -> config_dict.ConfigDict:
  """'full' has the paper's settings; 'smoke' shows that the file is read."""
  if mode not in ('full', 'smoke'):
    raise ValueError(f"mode={mode!r}; give 'full' or 'smoke'.")
  smoke = mode == 'smoke'
  return config_dict.create(
    task='stackoverflow',
    data=dict(
      # stackoverflow.sqlite or .sqlite.lzma, stackoverflow.tar.bz2, a data set
      # of TFDS, Posts.xml of any Stack Exchange site, or a folder that
      # scripts/prepare_data.py made.
      path=config_dict.placeholder(str),
      # "word count" per line, most frequent first; None: counted on 'train'.
      word_count=config_dict.placeholder(str),
      vocabulary_size=10_000,
      max_words=20,
      # 'heldout': users who never train; 'test': sentences of a later time.
      test_split='heldout',
      # Generated text in place of a file, of as many users as the real data or
      # of num_clients, with at most max_sentences from each.
      synthetic=False,
      num_clients=config_dict.placeholder(int),
      max_sentences=64,
      # Folder of the imported columns; None: epe_jax in the user's cache.
      cache=config_dict.placeholder(str),
    ),
    model=dict(embedding_size=96, hidden_size=670),
    rounds=2 if smoke else 2048,
    clients_per_round=4 if smoke else 167,
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
      learning_rate=1.0,
      batch_size=16,
      epochs=1,
      # A client with more trains on as many, drawn anew each round; None: all.
      max_examples=32 if smoke else 256,
    ),
    # 'sgd', or 'adam' with momentum 0.
    server=dict(optimizer='sgd', learning_rate=0.56, momentum=0.0),
    clipping=dict(
      kind='adaptive',
      initial=0.1,
      quantile=0.5,
      learning_rate=0.2,
      # Std of the noise on the count, as a share of clients per round.
      count_noise=0.05,
    ),
    noise_multiplier=0.0986,
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
    evaluate_examples=200 if smoke else 10_000,
    checkpoint_every=1 if smoke else 50,
    seed=0,
    # True declares the run a reproducible simulation: the privacy noise and who
    # takes part then follow from the seed. Set False wherever the model will be
    # released; docs/secrets.md says what else may be.
    simulation=True,
  )
