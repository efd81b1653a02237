"""The norms of what a run is expected to release."""

from collections.abc import Mapping
import itertools

from jaxtyping import Float, Int
import numpy as np

from epe_jax.audit import attack_scores, record, statistics
from epe_jax.audit.record import Record, respond_at_end
from epe_jax.epsilon.types import NullLaw
from epe_jax.planning.planned_run import PlannedRun
from epe_jax.training.round_scalars import RoundScalars


class Geometry:
  """The norms of what a run is expected to release, in units of the clip norm.

  Attributes:
    run: the run.
    agreement: of its clients; 0 if it is not known.
    own: [repetitions, k] rounds of each canary that takes part.
    weights: [T] weight of each round in the final model.
    kept: [k] weight of each canary in the final model.
    squares: [T] |v|² of each round.
    in_round: [T] number of canaries in each round.
    change_square: |v|² of the change of the model.
    final_square: |v|² of the final model; None if the norm of the initial one is not
      given.
  """

  def __init__(self, run: PlannedRun):
    self.run = run
    self.agreement = a = run.client_agreement or 0.0
    n, z = run.clients_per_round, run.noise_multiplier
    self.own = _assign_rounds(run)
    self.in_round = np.bincount(self.own.ravel(), minlength=run.rounds)
    of_noise = z**2 * run.dim
    self.squares = self.in_round + n + a * n * max(n - 1, 0) + of_noise
    self.weights = respond_at_end(run.rounds, momentum=run.server_momentum)
    self.kept = self.weights[self.own].sum(axis=0)
    of_clients = n * np.sum(self.weights**2)
    of_clients += a * (n**2 * np.sum(self.weights) ** 2 - of_clients)
    self.change_square = float(
      np.sum(self.kept**2) + of_clients + of_noise * np.sum(self.weights**2)
    )
    self.final_square = None
    if run.initial_norm is not None:
      # The initial model, in units of what the server adds for a canary.
      canary_norm = run.server_learning_rate * run.clip_norm
      canary_norm /= n + self.own.size / run.rounds
      initial_square = (run.initial_norm / canary_norm) ** 2
      self.final_square = self.change_square + initial_square

  @property
  def shares(self) -> Float[np.ndarray, ' T']:
    """The share of |v|² of each round that canaries make up."""
    return self.in_round / self.squares

  @property
  def correlation(self) -> float:
    """Of the cosines of one canary with two rounds, in which clients agree."""
    shared = self.agreement * self.run.clients_per_round**2
    return float(min(np.mean(shared / self.squares), 1.0))

  @property
  def own_shifts(self) -> Float[np.ndarray, 'k n']:
    """By how much own rounds shift a cosine, in units of 1/√d, largest first."""
    shifts = np.sqrt(self.run.dim / self.squares[self.own])
    return -np.sort(-shifts, axis=0).T

  def choose_null(self, share: float) -> NullLaw:
    """The null law of cosines with a vector, given the share of its canaries."""
    can_fit = self.run.num_outside >= 2
    return attack_scores.choose_null(self.run.dim, share, can_fit=can_fit)

  def make_record(
    self, cosines: Mapping[str, Float[np.ndarray, '... k']]
  ) -> Record:
    """The record of such a run.

    Args:
      cosines: of the canaries that take part, followed by the others; without any,
        the record is of the former alone, and enough for the limits of attackers.
    """
    run, one = self.run, np.ones(self.run.rounds)
    z = run.noise_multiplier
    num = run.num_canaries if cosines else run.num_inside
    included = np.zeros((run.rounds, num), bool)
    included[self.own, np.arange(run.num_inside)] = True
    is_coin_flip = run.design == 'coin_flip'
    rounds = RoundScalars(
      clip_norm=one,
      canary_norm=one,
      noise_std=z * one,
      num_clients=run.clients_per_round * one,
      num_canaries=self.in_round,
      sum_norm=np.sqrt(self.squares - self.in_round - z**2 * run.dim),
      aggregate_norm=np.sqrt(self.squares),
      residual_norm=z * np.sqrt(run.dim) * one,
      effective_dimension=run.dim * one,
    )
    return record.make_record(
      cosines,
      rounds,
      included=included,
      assigned=statistics.assign_held_out(included) if is_coin_flip else None,
      dim=run.dim,
      delta=run.delta,
      design=run.design,
      momentum=run.server_momentum,
      noise_multiplier=z,
      periods=run.repetitions,
    )


def _assign_rounds(run: PlannedRun) -> Int[np.ndarray, 'n k']:
  """Rounds of each canary, as the schedule `once_per_period` assigns them."""
  rng = np.random.default_rng(0)
  bounds = np.arange(run.repetitions + 1) * run.rounds // run.repetitions
  return np.stack(
    [
      rng.permutation(start + np.arange(run.num_inside) % (stop - start))
      for start, stop in itertools.pairwise(bounds)
    ]
  )
