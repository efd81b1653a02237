"""Audits federated learning with pfl-research: canaries replace some users.

canaries = pfl.audit(postprocessors, rounds=..., delta=...)   # A line more,
backend = SimulatedBackend(..., postprocessors=postprocessors)
...
print(canaries.auditor.report())                              # and another at the end.
"""

from collections.abc import MutableSequence
import math
import os
from typing import Any

import numpy as np

from epe_jax import accounting, extras
from epe_jax.auditor.adapters import base
from epe_jax.auditor.auditor import Auditor
from epe_jax.auditor.host_canaries import structures
from epe_jax.epsilon import tradeoff
from epe_jax.fact import Fact

with extras.explain_missing():
  from pfl.common_types import Saveable
  from pfl.context import CentralContext, UserContext
  from pfl.exception import CheckpointNotFoundError
  from pfl.hyperparam import HyperParam, get_param_value
  from pfl.internal.ops.selector import get_default_framework_module as get_ops
  from pfl.metrics import Metrics
  from pfl.postprocessor.base import Postprocessor
  from pfl.privacy.ftrl_mechanism import BandedMatrixFactorizationMechanism
  from pfl.privacy.gaussian_mechanism import GaussianMechanism
  from pfl.privacy.privacy_mechanism import (
    CentrallyAppliedPrivacyMechanism,
    PrivacyMetricName,
  )
  from pfl.stats import TrainingStatistics

_FILE = 'canary_audit.npz'


def audit(
  postprocessors: MutableSequence[Postprocessor],
  *,
  auditor: Auditor | None = None,
  seed: int | None = None,
  **settings: Any,
) -> 'CanaryPostprocessor':
  """Puts canaries in front of the postprocessors of a backend, in place.

  They replace the first m users of round t, whose training is lost, so let cohorts be
  as much larger. Weights, clipping and noise treat a canary like any user; what is
  scored is the noisy sum.

  Clip norm and noise multiplier are read from a Gaussian mechanism that is applied
  centrally, also where its clipping bound adapts; the number of parameters from the
  first statistics. With a local mechanism each of n users adds noise of its own, and
  the noise multiplier, which is of the sum, is sqrt(n) times the mechanism's: each
  round compares them. Of a `BandedMatrixFactorizationMechanism` matrix, rounds and
  separation are read too, and canaries take part in the worst-case rounds of a user:
  often the same for all, so let num_observed be below the size of a cohort, or set
  other `repetitions`.

  With `RestoreTrainingCallback([model, algorithm, canaries], ...)` an audit resumes
  together with training; then its auditor is the restored one.

  Args:
    postprocessors: the list for the backend, with its mechanism.
    **settings: rounds, the central iterations that will be made, delta, and others.
      Without a central mechanism also clip_norm and noise_multiplier.

  Returns:
    The first postprocessor, with the auditor.

  References:
    pfl-research: simulation framework for private federated learning, 2024.
  """
  known = base.Settings(settings, auditor=auditor, seed=seed)
  known.refuse_other_views("sums are observed; set 'aggregate'")
  canaries = CanaryPostprocessor(known, postprocessors)
  canaries._read_mechanism(auditor.num_rounds_observed if auditor else 0)
  known.require('dim')
  if known.find('strategy') is not None:
    place = [is_banded(x) for x in postprocessors].index(True) + 1
    postprocessors.insert(place, canaries._before_noise)
  postprocessors.insert(0, canaries)
  return canaries


def is_banded(postprocessor: Postprocessor) -> bool:
  """Whether it adds noise to sums that is correlated over rounds."""
  return isinstance(
    postprocessor, CentrallyAppliedPrivacyMechanism
  ) and isinstance(
    postprocessor.underlying_mechanism, BandedMatrixFactorizationMechanism
  )


class _SumBeforeNoise(Postprocessor):
  """Keeps each sum that the mechanism before it in the list adds noise to."""

  vector: np.ndarray | None = None

  def postprocess_server(
    self,
    *,
    stats: TrainingStatistics,
    central_context: CentralContext,
    aggregate_metrics: Metrics,
  ) -> tuple[TrainingStatistics, Metrics]:
    """Returns statistics as they are."""
    _, weights = stats.get_weights()
    arrays = structures.flatten(list(weights), 'statistics').values()
    self.vector = np.concatenate([x.reshape(-1) for x in arrays])
    return stats, Metrics()


class CanaryPostprocessor(base.Audited, Postprocessor, Saveable):
  """Replaces the statistics of some users by canaries; made by `audit`."""

  def __init__(
    self,
    settings: base.Settings,
    postprocessors: MutableSequence[Postprocessor],
  ):
    self._settings, self._postprocessors = settings, postprocessors
    self._before_noise = _SumBeforeNoise()
    # Noise multiplier of each user, of a mechanism that is local.
    self._local_noise: float | None = None
    self._start_next_round()

  def postprocess_one_user(
    self, *, stats: TrainingStatistics, user_context: UserContext
  ) -> tuple[TrainingStatistics, Metrics]:
    """Returns a canary, or the statistics once all canaries of a round are in.

    Raises:
      ValueError: a mechanism came first, or round or statistics are not the audit's.
      NotImplementedError: users are simulated in several processes.
    """
    if any(isinstance(n, PrivacyMetricName) for n, _ in user_context.metrics):
      raise ValueError(
        'a privacy mechanism precedes the canaries, so they would be observed '
        'without its noise; give postprocessors=[canaries, ..., mechanism].'
      )
    if self._ids is None:
      if get_ops().distributed.world_size > 1:
        raise NotImplementedError(
          'several processes would each put all canaries in; simulate in one.'
        )
      _, weights = stats.get_weights()
      arrays = structures.flatten(list(weights), 'statistics')
      sizes = {name: x.size for name, x in arrays.items()}
      self._settings.read_dim('first statistics', sizes)
      auditor = self._settings.make()
      t = auditor.num_rounds_observed
      self._ids = list(auditor.canary_ids(t))
      # The auditor, or the mechanism, may be that of a checkpoint.
      self._read_mechanism(t)
      _note_sensitivity(auditor)
    if self._ids:
      metadata, weights = stats.get_weights()
      # Below a bound that adapts.
      scale = self._scale and base.BELOW * self._scale
      update = self.auditor.canary_update(
        self._ids.pop(), like=list(weights), clip_norm=scale
      )
      stats = stats.from_weights(metadata, update)
    return stats, Metrics()

  def postprocess_server(
    self,
    *,
    stats: TrainingStatistics,
    central_context: CentralContext,
    aggregate_metrics: Metrics,
  ) -> tuple[TrainingStatistics, Metrics]:
    """Scores all canaries by the sum of statistics, and returns it as it is.

    Raises:
      ValueError: the cohort had fewer users than the round has canaries, or local
        mechanisms add up to another noise than the auditor was told.
    """
    if self._local_noise is not None:
      num = central_context.cohort_size
      self._settings.check(
        f'sum of {num} local mechanisms',
        noise_multiplier=self._local_noise * math.sqrt(num),
      )
    t = self.auditor.num_rounds_observed
    ids = self.auditor.canary_ids(t)
    if self._ids:
      raise ValueError(
        f'round {t} has {len(ids)} canaries, but its cohort only '
        f'{len(ids) - len(self._ids)} users; give larger cohorts, more rounds, '
        'or a smaller num_observed.'
      )
    # The sum is divided by the weight of the cohort only after all this.
    _, release = stats.get_weights()
    others = self._before_noise.vector
    if others is not None:
      others -= self.auditor.injection(t, clip_norm=self._scale).update
    self.auditor.observe(
      t,
      list(release),
      divisor=1.0,
      included=ids,
      others=others,
      clip_norm=self._scale,
    )
    self._start_next_round()
    return stats, Metrics()

  def save(self, dir_path: str) -> None:
    """Writes the audit next to the other checkpoints."""
    self.auditor.save(os.path.join(dir_path, _FILE))

  def load(self, dir_path: str) -> None:
    """Goes on with the audit that `save` wrote."""
    path = os.path.join(dir_path, _FILE)
    if not os.path.exists(path):
      raise CheckpointNotFoundError(path)
    self._settings.made = Auditor.load(path)

  def _start_next_round(self) -> None:
    # Canaries that are still to come; None before the first user of the round.
    self._ids: list[int] | None = None
    self._scale: float | None = None

  def _read_mechanism(self, t: int) -> None:
    """Reads a Gaussian mechanism, or compares it with what the auditor was told."""
    for x in self._postprocessors:
      is_central = isinstance(x, CentrallyAppliedPrivacyMechanism)
      inner = x.underlying_mechanism if is_central else x
      if not isinstance(inner, GaussianMechanism):
        continue
      bound, noise = inner.clipping_bound, float(inner.relative_noise_stddev)
      clip_norm = float(get_param_value(bound))
      if isinstance(bound, HyperParam):
        # A bound that adapts does so before the release can be scored.
        self._scale = clip_norm
        # An auditor that goes on has that of the first round.
        clip_norm = self._settings.find('clip_norm') if t else clip_norm
      if is_central:
        self._settings.read(
          'mechanism', clip_norm=clip_norm, noise_multiplier=noise
        )
        if is_banded(x):
          self._read_strategy(inner.query_matrix)
        break
      self._settings.check('mechanism', clip_norm=clip_norm)
      self._local_noise = noise

  def _read_strategy(self, strategy: np.ndarray) -> None:
    """Reads C of a banded mechanism, and the rounds that it allows a user."""
    rounds = len(strategy)
    # It has a band less than rounds from one participation to the next.
    lags = np.subtract.outer(np.arange(rounds), np.arange(rounds))
    separation = int(lags[strategy != 0].max()) + 2
    self._settings.read('mechanism', rounds=rounds)
    self._settings.read_strategy(
      'mechanism', strategy.astype(np.float64), min_separation=separation
    )


def _note_sensitivity(auditor: Auditor) -> None:
  """Notes a matrix that a user moves further than the mechanism accounts for.

  It accounts for columns of norm 1 that do not overlap.
  """
  config = auditor.config
  z, b, k = config.noise_multiplier, config.min_separation, config.repetitions
  if config.strategy is None or b is None or not z:
    return
  schema = accounting.ParticipationSchema(b, k)
  norm = accounting.find_sensitivity(config.strategy, schema).norm
  if norm > 1.01 * k**0.5:
    found, claimed = (
      float(tradeoff.epsilon_gdp(x / z, config.delta)) for x in (norm, k**0.5)
    )
    note = {'source': 'mechanism', 'norm': float(norm), 'accounted': k**0.5}
    note |= {'epsilon': found, 'claimed': claimed, 'delta': config.delta}
    auditor.add_note(Fact('larger_sensitivity', note))
