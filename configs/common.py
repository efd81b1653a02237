"""The fields that all configs share, each explained where it is set.

A new field of every run is added here, and to `experiment.setup.config`, which
has the values that it may have.
"""

from typing import Any

from ml_collections import config_dict


def make_config(**fields: Any) -> config_dict.ConfigDict:
  """Makes a config of the common fields and those of a job.

  Args:
    **fields: the fields that the job sets. For a group such as `client` it is a
      dict of the fields that have no value here, or another one.

  Returns:
    A config with every field of the job, which the command line can change.

  >>> config = make_config(rounds=10, server=dict(learning_rate=0.5))
  >>> config.rounds, config.server.learning_rate, config.server.optimizer
  (10, 0.5, 'sgd')
  """
  config = config_dict.create(
    # Which clients take part in which round.
    participation=dict(
      # Epochs, 'shuffled' each or in 'one_order'; rounds of 'fixed_size', or
      # 'poisson', 'cyclic' in groups of which each has every separation-th round, or
      # 'limited' by the two below; or the 'log' of a real system.
      kind='shuffled',
      # Smallest distance between two rounds of a client; 1 is not a limit.
      separation=1,
      # Largest number of rounds of a client; None means no limit.
      max_rounds=config_dict.placeholder(int),
      # CSV, lines of JSON or Parquet with a round and a client in each entry.
      log=config_dict.placeholder(str),
      # The names of these columns.
      log_round='round',
      log_client='client_id',
      # COLUMN=VALUE of the entries that count, such as phase=train; None: all.
      log_only=config_dict.placeholder(str),
      # Whether nobody came back from a round without an entry; else it is refused.
      log_empty_rounds=False,
    ),
    # How noise is correlated over rounds, with fixed clipping; docs/production.md.
    noise=dict(
      # 'independent', or the matrix mechanism 'tree', 'banded', 'bisr' or 'blt'.
      correlation='independent',
      # Diagonals of C in 'banded', of its inverse in 'bisr'.
      bands=4,
      # Vectors that 'blt' holds.
      buffers=3,
      # Rounds after which the mechanism starts again; None: never.
      restart=config_dict.placeholder(int),
    ),
    # Sums modulo 2^bits of integers with shares of discrete noise; docs/production.md.
    secure_aggregation=dict(
      # None: sums of floating-point vectors.
      bits=config_dict.placeholder(int),
      # Step of the grid, in clip norms; None: as fine as the ring has room for.
      granularity=config_dict.placeholder(float),
      # 'conditional', until a message is no longer than it need be, or 'stochastic'.
      rounding='conditional',
      # 'skellam' or 'discrete_gaussian'.
      noise='skellam',
    ),
    # Clients that are trained at once; None: 1 on a CPU, elsewhere as many as
    # there is memory for.
    chunk=config_dict.placeholder(int),
    # Rounds that are dispatched as one, for small models on a GPU.
    rounds_per_dispatch=1,
    # Clients compute in 'float32', 'tensorfloat32' or 'bfloat16'; what they
    # return, clipping, noise and canaries are float32 in all.
    precision='float32',
    client=dict(
      # A client with more trains on this many, drawn in each round; None: all.
      max_examples=config_dict.placeholder(int),
    ),
    # 'sgd', or 'adam' with momentum 0.
    server=dict(optimizer='sgd'),
    clipping=dict(
      kind='adaptive',
      initial=0.1,
      quantile=0.5,
      learning_rate=0.2,
      # Std of the noise on the count, as a share of clients per round.
      count_noise=0.05,
    ),
    # The job sets the numbers of observed and unobserved canaries. With 0 and 0
    # the run is not audited.
    canaries=dict(
      # 'sphere', as in the paper; 'hadamard' is a thousand times as fast. All:
      # docs/canaries.md.
      family='sphere',
      # None: 'worst_case' if noise is correlated, in rounds that give away as much
      # of one who takes part as of any client; otherwise
      # 'once_per_period', in each of `repetitions` equal periods; by
      # 'coin_flip', likewise, for those of all observed + unobserved whose own
      # coin flip says so; 'as_clients', sampled as they are; or to 'replace' that
      # many of them.
      schedule=config_dict.placeholder(str),
      # Rounds of a canary: a number, or 'as_clients' for as many as a client takes
      # part in at most, where that follows from epochs or a log.
      repetitions=config_dict.FieldReference(1, field_type=object),
      # Canaries that are generated at once.
      block=64,
    ),
    audit=dict(
      # 'aggregate' is rho_bar, 'server_update' the change of the model.
      view='aggregate',
      # Cosines of every round are kept, 8 bytes for each canary and round.
      # False: only the largest of each canary, for audits whose trace would not
      # fit; the attackers that know a canary's round or all other updates are then
      # not estimated.
      trace=True,
      # Rounds scored together, no more than lie between two checkpoints; None:
      # as many as memory holds, 1 for families whose projections of single rounds
      # cost no more.
      buffer=config_dict.placeholder(int),
      # Bytes for what is not scored yet: 8 d for each round.
      memory=2e9,
      # None: (number of clients)^-1.1
      delta=config_dict.placeholder(float),
      # ε that the run claims to have at this δ, as a Gaussian mechanism: each
      # evaluation and checkpoint tests whether its rounds so far contradict it.
      # None: no claim.
      claim=config_dict.placeholder(float),
    ),
    # Test examples drawn at random to evaluate on; None: all.
    evaluate_examples=config_dict.placeholder(int),
    # Event files for TensorBoard in the workdir's private/tensorboard, by the extra
    # 'tensorboard'.
    tensorboard=False,
    seed=0,
    # True declares the run a reproducible simulation: the privacy noise and who
    # takes part then follow from the seed. Set False wherever the model will be
    # released; docs/secrets.md says what else may be.
    simulation=True,
  )
  config.update(fields)
  return config
