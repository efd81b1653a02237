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
  """The privacy that follows from the mechanism of a run alone."""

  # ε of the most frequent canary; None without canaries.
  canaries: accounting.Analytic | None
  clients: accounting.Analytic  # ε of the most frequent client.
  # What is known of amplification by sampling; None if no clients are sampled.
  amplification: Fact | None


def analyze_privacy(config: Config, setup: build.Setup) -> PrivacyAnalysis:
  """Computes the privacy that follows from the mechanism of a run alone.

  Raises:
    ValueError: canaries cannot test `audit.claim`.
  """
  participants, noise, delta = (
    setup.participants,
    config.noise_multiplier,
    setup.delta,
  )

  def analyze(rounds: int, sensitivity: float | None) -> accounting.Analytic:
    """Of so many rounds, which move all releases together by so many clip norms."""
    if setup.aggregation is not None:
      ring = setup.aggregation.ring
      return accounting.epsilon_of_ring(ring, delta=delta, rounds=rounds)
    if sensitivity is not None:
      return accounting.epsilon_of_matrix_mechanism(
        noise, sensitivity, delta=delta
      )
    return accounting.epsilon_of_releases(
      noise, delta=delta, participations=rounds
    )

  correlation, sensitivity = participants.correlation, participants.sensitivity
  of_client = analyze(
    participants.max_rounds, sensitivity and sensitivity.bound
  )
  of_canary = None
  if setup.is_audited:
    canary_rounds = int(participants.canaries.sum(axis=0).max())
    canary_norm = None
    if correlation is not None:
      # Of what anyone sees: a tree has more nodes than it releases.
      moved = correlation.whitened @ participants.canaries
      canary_norm = float(np.linalg.norm(moved, axis=0).max())
    of_canary = analyze(canary_rounds, canary_norm)
    if config.audit.claim is not None:
      client_rounds.check_claim(
        'audit.claim',
        config.audit.claim,
        of_canary.epsilon,
        client_rounds.Participations(
          canary_rounds,
          participants.max_rounds,
          of_client.epsilon,
          is_sampled=config.participation.kind in run_result.SAMPLED,
        ),
      )
  amplification = find_amplification(
    config, num_clients=setup.train.num_clients, delta=delta
  )
  return PrivacyAnalysis(of_canary, of_client, amplification)


def find_amplification(
  config: Config, *, num_clients: int, delta: float
) -> Fact | None:
  """Finds what is known of amplification by sampling; None without sampling.

  The attacker of the analytic ε knows the rounds of each client. Without this
  knowledge it learns less, if rounds are drawn in secret.
  """
  kind, noise = config.participation.kind, config.noise
  period, probability = participation.find_probability(config, num_clients)
  # With bands up to the period no two rounds of a client share noise.
  bands = {'independent': 1, 'banded': noise.bands}
  is_apart = bands.get(noise.correlation, math.inf) <= period
  is_gaussian = config.secure_aggregation.bits is None
  if kind in ('poisson', 'cyclic') and is_apart and is_gaussian:
    rounds = -(-config.rounds // period)
    # Of one who may take part in every period-th round, by coins of its own.
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
  is_known = kind in config_lib.KNOWN_IN_ADVANCE
  if noise.correlation == 'independent' and is_known:
    return None
  return Fact('no_tight_analysis', {'kind': kind})
