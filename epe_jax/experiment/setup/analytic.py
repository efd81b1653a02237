"""The analytic ε of a run, by its mechanism and its participation."""

import math
from typing import NamedTuple

import numpy as np

from epe_jax import accounting
from epe_jax.experiment import client_rounds, run_result
from epe_jax.experiment.setup import build, participation
from epe_jax.experiment.setup import config as config_lib
from epe_jax.experiment.setup.config import Config
from epe_jax.fact import Fact


class PrivacyAnalysis(NamedTuple):
  """The privacy that follows from the mechanism of a run alone.

  Attributes:
    canaries: ε of the most frequent canary; None without canaries.
    clients: ε of the most frequent client.
    amplification: what is known of amplification by sampling; None if no clients
      are sampled.
  """

  canaries: accounting.Analytic | None
  clients: accounting.Analytic
  amplification: Fact | None


def analyze_privacy(config: Config, setup: build.Setup) -> PrivacyAnalysis:
  """Computes the privacy that follows from the mechanism of a run alone.

  Raises:
    ValueError: canaries cannot test `audit.claim`.
  """
  participants = setup.participants
  correlation, sensitivity = participants.correlation, participants.sensitivity
  of_canary, canary_norm = None, None
  if setup.is_audited:
    if correlation is not None:
      # Of what anyone sees: a tree has more nodes than it releases.
      moved = correlation.whitened @ participants.canaries
      canary_norm = float(np.linalg.norm(moved, axis=0).max())
    of_canary = compute_epsilon(
      config,
      participations=int(participants.canaries.sum(axis=0).max()),
      delta=setup.delta,
      sensitivity=canary_norm,
      ring=setup.aggregation and setup.aggregation.ring,
    )
  privacy = PrivacyAnalysis(
    canaries=of_canary,
    clients=compute_epsilon(
      config,
      participations=participants.max_rounds,
      delta=setup.delta,
      sensitivity=None if sensitivity is None else sensitivity.bound,
      ring=setup.aggregation and setup.aggregation.ring,
    ),
    amplification=find_amplification(
      config, num_clients=setup.train.num_clients, delta=setup.delta
    ),
  )
  if of_canary is not None and config.audit.claim is not None:
    client_rounds.check_claim(
      'audit.claim',
      config.audit.claim,
      of_canary.epsilon,
      client_rounds.Participations(
        int(participants.canaries.sum(axis=0).max()),
        participants.max_rounds,
        privacy.clients.epsilon,
        is_sampled=config.participation.kind in run_result.SAMPLED,
      ),
    )
  return privacy


def compute_epsilon(
  config: Config,
  *,
  participations: int,
  delta: float,
  sensitivity: float | None = None,
  ring: accounting.Ring | None = None,
) -> accounting.Analytic:
  """Computes ε of a participant in a number of rounds of a run.

  Args:
    participations: the number of rounds, >= 1.
    delta: the δ of the run, in (0, 1).
    sensitivity: how far these rounds move all releases together, in clip norms; None
      if rounds have independent noise.
    ring: what hides a client with secure aggregation; None without.

  Raises:
    ValueError: an argument is out of range.
  """
  if ring is not None:
    return accounting.epsilon_of_ring(ring, delta=delta, rounds=participations)
  if sensitivity is None:
    return accounting.epsilon_of_releases(
      config.noise_multiplier, delta=delta, participations=participations
    )
  return accounting.epsilon_of_matrix_mechanism(
    config.noise_multiplier, sensitivity, delta=delta
  )


def find_amplification(
  config: Config, *, num_clients: int, delta: float
) -> Fact | None:
  """Finds what is known of amplification by sampling.

  The attacker of the analytic ε knows the rounds of each client. Without this
  knowledge it learns less, if rounds are drawn in secret.

  Returns:
    A key with numbers; None if no clients are sampled.
  """
  kind, noise = config.participation.kind, config.noise
  period = config.participation.separation if kind == 'cyclic' else 1
  # With bands up to the period no two rounds of a client share noise.
  bands = {'independent': 1, 'banded': noise.bands}
  is_apart = bands.get(noise.correlation, math.inf) <= period
  is_gaussian = config.secure_aggregation.bits is None
  if kind in ('poisson', 'cyclic') and is_apart and is_gaussian:
    return _amplify(config, num_clients, delta, period=period)
  is_known = kind in config_lib.KNOWN_IN_ADVANCE
  if noise.correlation == 'independent' and is_known:
    return None
  return Fact('no_tight_analysis', {'kind': kind})


def _amplify(
  config: Config, num_clients: int, delta: float, *, period: int
) -> Fact:
  """ε of one who may take part in every period-th round, by coins of its own."""
  population = participation.count_population(config, num_clients)
  probability = config.clients_per_round * period / population
  rounds = -(-config.rounds // period)
  analytic = accounting.epsilon_of_poisson(
    config.noise_multiplier,
    delta=delta,
    probability=probability,
    rounds=rounds,
  )
  return Fact(
    'amplified',
    {
      'epsilon': analytic.epsilon,
      'rounds': rounds,
      'probability': probability,
    },
  )
