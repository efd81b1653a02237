"""Participation: which clients and canaries take part in which round.

A schedule of clients is a function t -> indices of the clients of round t. Nothing
but the seed and the round decides, so resuming a run needs no replay. Participation of
canaries is a 0/1 matrix [T, k] whose row t holds the canaries of round t; a canary
that takes part in no round is unobserved. Arguments that many functions share:

  seed: of `streams.sequence`; give 128 random bits to keep cohorts secret.
  rng: randomness of canaries, independent of that of noise and data.
  rounds: T >= 1.
  num: k, the number of canaries, >= 0.
  num_clients: N, the number of real clients.
  clients_per_round: m, 1 to N.
  expected_clients: m, more than 0 and at most N.

A ValueError is raised where one is out of range.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
