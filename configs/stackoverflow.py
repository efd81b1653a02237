"""StackOverflow next-word prediction with the paper's LSTM and settings.

  epe-jax run stackoverflow \\
    --config.data.path=stackoverflow.sqlite \\
    --config.data.word_count=stackoverflow.word_count \\
    --workdir=runs/stackoverflow

Without the public files, on generated text of as many users:

  epe-jax run stackoverflow \\
    --config.data.synthetic=True --workdir=runs/text

With the same model on two cores in a quarter of an hour, on 14.9 million words of 8,334
people (accuracy 0.130, majority class 0.072):

  epe-jax run stackoverflow:medium \\
    --config.data.path=stackoverflow.sqlite \\
    --config.data.word_count=stackoverflow.word_count

Source: One-shot Empirical Privacy Estimation, section 5.1: one epoch of 2048
rounds of 167 clients. The paper does not say how many sentences of a client
are used; client.max_examples is ours.
"""

from ml_collections import config_dict

from epe_jax.configs import common  # pyright: ignore[reportMissingImports]

MODES = 'full', 'medium', 'smoke'


def get_config(mode: str = 'full') -> config_dict.ConfigDict:
  """Makes the config of a mode.

  Args:
    mode: 'full' has the paper's settings, 'medium' fewer rounds of more clients with
      few sentences, and 'smoke' shows that the file is read.

  Raises:
    ValueError: there is no such mode.
  """
  if mode not in MODES:
    raise ValueError(f"mode={mode!r}; give 'full', 'medium' or 'smoke'.")
  smoke = mode == 'smoke'
  canaries = 4 if smoke else 1000
  config = common.make_config(
    task='stackoverflow',
    data=dict(
      # stackoverflow.sqlite or .sqlite.lzma, a data set of TFDS, or a folder that
      # `epe-jax data` made, as of examples/stack_exchange.py.
      path=config_dict.placeholder(str),
      # "word count" per line, most frequent first; None: counted on 'train'.
      word_count=config_dict.placeholder(str),
      # None: that of the folder that `epe-jax data` made, or 1,000 of other text.
      vocabulary_size=config_dict.placeholder(int) if smoke else 10_000,
      max_words=20,
      # 'heldout': users who never train; 'test': sentences of a later time.
      test_split='heldout',
      # Generated text in place of a file, at most max_sentences from a user.
      synthetic=False,
      # The first users of a file, or those that are generated.
      num_clients=100 if smoke else config_dict.placeholder(int),
      max_sentences=8 if smoke else 64,
      # Folder of the imported columns; None: epe_jax in the user's cache.
      cache=config_dict.placeholder(str),
    ),
    model=dict(
      embedding_size=16 if smoke else 96, hidden_size=32 if smoke else 670
    ),
    rounds=2 if smoke else 2048,
    clients_per_round=4 if smoke else 167,
    client=dict(
      learning_rate=1.0,
      batch_size=16,
      epochs=1,
      max_examples=32 if smoke else 256,
    ),
    server=dict(learning_rate=0.56, momentum=0.0),
    noise_multiplier=0.0986,
    # Few words move most of an update; canaries on the sphere, as in the paper, cost a
    # tenth of a round.
    canaries=dict(family='hadamard2', observed=canaries, unobserved=canaries),
    evaluate_every=1 if smoke else 50,
    evaluate_examples=200 if smoke else 10_000,
    checkpoint_every=1 if smoke else 50,
  )
  if mode == 'medium':
    # A round costs as its sentences, and what noise does to the model falls as
    # clients times the root of rounds: so many clients, each with few sentences.
    config.update(
      rounds=100,
      clients_per_round=300,
      noise_multiplier=0.0496,
      client=dict(max_examples=8, batch_size=8),
      # Few rounds take large steps, which momentum keeps stable.
      server=dict(learning_rate=2.0, momentum=0.9),
      # The norm of the first updates.
      clipping=dict(initial=0.15),
      evaluate_every=10,
      evaluate_examples=5000,
      checkpoint_every=25,
    )
  return config
