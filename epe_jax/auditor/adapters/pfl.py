"""Audits federated learning with pfl-research: canaries replace some users.

canaries = CanaryPostprocessor(auditor)               # A line more,
backend = SimulatedBackend(..., postprocessors=[canaries, mechanism])
...
print(auditor.report())                               # and another at the end.
"""

import os

from pfl.common_types import Saveable
from pfl.context import CentralContext, UserContext
from pfl.exception import CheckpointNotFoundError
from pfl.hyperparam import HyperParamClsOrFloat, get_param_value
from pfl.internal.ops.selector import get_default_framework_module as get_ops
from pfl.metrics import Metrics
from pfl.postprocessor.base import Postprocessor
from pfl.privacy.privacy_mechanism import PrivacyMetricName
from pfl.stats import TrainingStatistics

from epe_jax.auditor.adapters import versions
from epe_jax.auditor.auditor import Auditor

versions.check_version('pfl', first='0.6', last='0.6')

_FILE = 'canary_audit.npz'


class CanaryPostprocessor(Postprocessor, Saveable):
  """Replaces the statistics of some users by canaries, and scores what is released.

  Give it as the first postprocessor. Users' statistics pass from the first to the
  last, so a canary is weighted, clipped and noised as anybody's; sums from the last
  to the first, so what is scored is the noisy sum. The canaries of round t are the
  first m users of its cohort: their training is lost, so let cohorts be as much
  larger.

  Mechanisms may be central or local. With a local one each of n users adds noise of
  its own, and the noise multiplier in the config, which is of the sum, is sqrt(n)
  times the mechanism's.

  With `RestoreTrainingCallback([model, algorithm, canaries], ...)` an audit resumes
  together with training; then `auditor` is the restored one.

  References:
    pfl-research: simulation framework for private federated learning, 2024.
  """

  def __init__(
    self, auditor: Auditor, *, clip_norm: HyperParamClsOrFloat | None = None
  ):
    """Makes the postprocessor of one run.

    Args:
      auditor: dim is the number of trained parameters, clip_norm is the clipping
        bound of the mechanism, noise_multiplier its relative noise, and the rounds
        are the central iterations that will be made.
      clip_norm: the bound where it adapts, as the `mutable_clipping_bound` of
        AdaptiveClippingGaussianMechanism; None for that of the auditor.

    Raises:
      ValueError: the auditor is for changes of the model.
    """
    if auditor.config.sees != 'aggregate':
      raise ValueError(
        f"sees={auditor.config.sees!r}, but sums are observed; set 'aggregate'."
      )
    self.auditor = auditor
    self._clip_norm = clip_norm
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
      t = self.auditor.num_rounds_observed
      self._ids = list(self.auditor.canary_ids(t))
      # A bound that adapts does so before the release can be scored.
      if self._clip_norm is not None:
        self._scale = float(get_param_value(self._clip_norm))
    if self._ids:
      metadata, weights = stats.get_weights()
      update = self.auditor.canary_update(
        self._ids.pop(), like=list(weights), clip_norm=self._scale
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
      ValueError: the cohort had fewer users than the round has canaries.
    """
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
    self.auditor.observe(
      t, list(release), divisor=1.0, included=ids, clip_norm=self._scale
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
    self.auditor = Auditor.load(path)

  def _start_next_round(self) -> None:
    # Canaries that are still to come; None before the first user of the round.
    self._ids: list[int] | None = None
    self._scale = self.auditor.config.clip_norm
