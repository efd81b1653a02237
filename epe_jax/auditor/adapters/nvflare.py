"""Audits NVFlare: a filter at designated sites, an aggregator at the server.

aggregator = nvflare.audit(aggregator, dim=..., rounds=..., ...)  # At the server.
filters = [aggregator.filter(site=0), ...]   # First of the result filters of a site.
...
print(aggregator.auditor.report())

Jobs name components by their class and arguments, so both also take the path of a file
of `Auditor.save`: sites and server have copies, and that of the server is written after
each round. NVFlare builds classes of others only in jobs that bring code, or if
`epe_jax` is in the `class_allow_list` of a site's resources.
"""

import math
import os
import pathlib
from typing import Any

from epe_jax import extras
from epe_jax.auditor.adapters import base
from epe_jax.auditor.auditor import Auditor

with extras.explain_missing():
  from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
  from nvflare.apis.dxo_filter import DXOFilter
  from nvflare.apis.event_type import EventType
  from nvflare.apis.fl_constant import FLContextKey, ReservedKey
  from nvflare.apis.fl_context import FLContext
  from nvflare.apis.shareable import Shareable
  from nvflare.app_common.abstract.aggregator import Aggregator
  from nvflare.app_common.app_constant import AppConstants

_CANARY = 'epe_jax_canary'
"""Key of the id of a canary, next to the update that it sends."""


def audit(
  aggregator: Aggregator,
  *,
  auditor: Auditor | None = None,
  seed: int | None = None,
  **settings: Any,
) -> 'AuditedAggregator':
  """Wraps an aggregator so that what it releases is scored.

  Args:
    aggregator: of one DXO of weight differences a site.
    **settings: dim, rounds, clip_norm, noise_multiplier, delta, and others.
      NVFlare knows none of them.
  """
  known = base.Settings(settings, auditor=auditor, seed=seed)
  return AuditedAggregator(aggregator, known.make())


class CanaryFilter(DXOFilter):
  """Sends a canary in place of a site's update, in the rounds that have one for it.

  It has to come before the filters that clip and add noise: a canary has the clip
  norm, and is treated by them as any update.
  """

  def __init__(self, auditor: Auditor | str | os.PathLike, site: int):
    """Designates a site.

    Args:
      auditor: that of the server or a copy, or its file.
      site: the number of the site among those designated, from 0: it sends canary
        number `site` of each round, and its own update where there are fewer.
    """
    kinds = [DataKind.WEIGHT_DIFF]
    super().__init__(supported_data_kinds=kinds, data_kinds_to_filter=kinds)
    if site < 0:
      raise ValueError(f'site={site}; give a number >= 0.')
    self._auditor, self._site = _load(auditor), site
    self._round: int | None = None

  def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
    """Notes the round of a task; its result need not have it."""
    if event_type == EventType.BEFORE_TASK_EXECUTION:
      task = fl_ctx.get_prop(FLContextKey.TASK_DATA)
      self._round = task.get_header(AppConstants.CURRENT_ROUND)

  def process_dxo(
    self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext
  ) -> DXO | None:
    """Returns the canary of the round; None, to keep the update, if there is none.

    Raises:
      ValueError: neither the task nor its result says which round it is of.
    """
    t = shareable.get_header(AppConstants.CURRENT_ROUND)
    t = self._round if t is None else t
    if t is None:
      raise ValueError(
        f'an update of site {self._site} has no round; set the header '
        f'{AppConstants.CURRENT_ROUND!r} of the task, as ScatterAndGather does.'
      )
    ids = self._auditor.canary_ids(int(t))
    if self._site >= len(ids):
      return None
    canary = int(ids[self._site])
    update = self._auditor.canary_update(canary, like=dxo.data)
    # With the number of steps of the site, by which the server may weigh it.
    replaced = DXO(dxo.data_kind, update, dict(dxo.meta))
    replaced.set_meta_prop(_CANARY, canary)
    return replaced


class AuditedAggregator(Aggregator):
  """The same aggregator, with an attacker who sees what it releases.

  NVFlare's `InTimeAccumulateWeightedAggregator` weighs sites by their steps times
  their `aggregation_weights`; with weigh_by_local_iter=False it divides the plain sum
  by the sum of these. Others are taken to weigh by steps.
  """

  def __init__(
    self, aggregator: Aggregator, auditor: Auditor | str | os.PathLike
  ):
    """Wraps an aggregator, which in a job is nested in the arguments of this one."""
    super().__init__()
    self._aggregator, self.auditor = aggregator, _load(auditor)
    self._path = None if isinstance(auditor, Auditor) else auditor
    # Of each update its canary, if it is one, and its weight.
    self._accepted: list[tuple[int | None, float]] = []
    self._weighted_by = MetaKey.NUM_STEPS_CURRENT_ROUND

  def filter(self, site: int) -> CanaryFilter:
    """Returns the filter of a designated site, in simulations of one process."""
    return CanaryFilter(self.auditor, site)

  def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
    """Passes an update on, and notes whose it is if it was accepted."""
    dxo = from_shareable(shareable)
    is_accepted = self._aggregator.accept(shareable, fl_ctx)
    if is_accepted:
      steps = dxo.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND)
      weights = getattr(self._aggregator, 'aggregation_weights', None) or {}
      # By the name of the DXO, once the run has started: that of a single one is ''.
      weight = weights.get('', weights).get(
        shareable.get_peer_prop(ReservedKey.IDENTITY_NAME, default='?')
      )
      if weight is not None:
        self._weighted_by = 'weight'
      factors = (1.0 if x is None else float(x) for x in (steps, weight))
      self._accepted.append((dxo.get_meta_prop(_CANARY), math.prod(factors)))
    return is_accepted

  def aggregate(self, fl_ctx: FLContext) -> Shareable:
    """Aggregates, and shows the auditor the result.

    Raises:
      ValueError: canaries of a round weigh differently.
    """
    t = int(fl_ctx.get_prop(AppConstants.CURRENT_ROUND))
    result = self._aggregator.aggregate(fl_ctx)
    accepted, self._accepted = self._accepted, []
    if not accepted:
      return result  # A round that failed is not a round.
    total = sum(weight for _, weight in accepted)
    if not getattr(self._aggregator, '_weigh_by_local_iter', True):
      accepted = [(canary, 1.0) for canary, _ in accepted]
    canaries = {canary: x for canary, x in accepted if canary is not None}
    shares = set(canaries.values()) or {accepted[0][1]}
    if len(shares) > 1:
      raise ValueError(
        f'canaries of round {t} have the weights {sorted(shares)}; let designated '
        'sites make as many steps and give them the same aggregation_weights, or '
        'set weigh_by_local_iter=False.'
      )
    share = shares.pop()
    base.note_larger(
      self.auditor,
      largest=max(x for _, x in accepted),
      canary=share,
      weighted_by=self._weighted_by,
    )
    self.auditor.observe(
      t,
      from_shareable(result).data,
      divisor=total / share,
      included=sorted(canaries),
    )
    if self._path is not None:
      self.auditor.save(self._path)
    return result


def _load(auditor: Auditor | str | os.PathLike) -> Auditor:
  if isinstance(auditor, Auditor):
    return auditor
  return Auditor.load(pathlib.Path(auditor))
