"""Audits Flower: wraps a strategy so that canaries replace designated clients.

strategy = flower.audit(strategy, delta=1e-5)         # A line more,
result = strategy.start(grid=grid, ...)
print(strategy.auditor.report())                      # and another at the end.

`epe_jax.conformance.adapters.flower` checks that a strategy clips, averages and adds
noise as it claims, which comes first.
"""

import math
import random
from typing import Any

import numpy as np

from epe_jax import extras
from epe_jax.auditor.adapters import flower_messages as messages
from epe_jax.auditor.adapters import flower_strategies
from epe_jax.auditor.adapters.flower_messages import canary_mod as canary_mod
from epe_jax.auditor.adapters.settings import Settings
from epe_jax.auditor.adapters.weights import note_larger
from epe_jax.auditor.auditor import Auditor

with extras.explain_missing():
  from flwr.serverapp.strategy import Strategy


def audit(
  strategy: Strategy,
  *,
  client_side: bool = False,
  num_examples: float | None = None,
  auditor: Auditor | None = None,
  seed: int | None = None,
  **settings: Any,
) -> 'AuditedStrategy':
  """Wraps a strategy so that canaries are among its clients and are scored.

  The result must be the outermost wrapper, which sees what is released. In each round
  one random node is designated for each canary, and its reply is replaced by the model
  that it was sent plus S c_j, where S is the clip norm of the wrapper in that round.
  The canary of a node that does not reply is left out. A round that failed is not
  observed, and its canaries are used in the next.

  Clip norm and noise multiplier are read from a wrapper for differential privacy,
  server_momentum=0 from FedAvg, the size of the model and the number of rounds from
  the call of `start`. Canaries span all floating-point arrays that are released,
  including the running statistics of batch normalization. Integer arrays are left
  unchanged.

  FedAvg weights clients by their numbers of examples. Canaries have that of a median
  client, or the given one, and ε is that of such a client. If another has a larger
  weight, the report has its ε.

  Args:
    strategy: FedAvg, a wrapper of it for differential privacy, or another; server
      optimizers need view='server_update'. If the clip norm adapts, the claim is the noise
      multiplier that the wrapper derives for updates, not the given one.
    client_side: whether designated nodes send canaries themselves, by `canary_mod`,
      with their own numbers of examples.
    num_examples: number of examples of a canary; None for the median of the replies.
    auditor: to continue with, in place of settings: one that was loaded.
    seed: of the canaries, for simulations; None for secret ones.
    **settings: of `AuditConfig`: delta, and others. Without a wrapper also clip_norm
      and noise_multiplier; rounds, if training will be started more than once.

  Raises:
    TypeError: the strategy has a loop of its own, or a setting is unknown.
    ValueError: a setting is missing, or another than the strategy has.
  """
  known = Settings(settings, auditor=auditor, seed=seed)
  flower_strategies.check_strategy(
    strategy, view=known.find('view', 'aggregate')
  )
  flower_strategies.read_claim(strategy, known)
  if flower_strategies.is_mean(strategy):
    # The next model is the mean of models, so the server adds up what is released.
    known.read('strategy', server_momentum=0.0)
  known.require(later=('dim', 'rounds'))
  return AuditedStrategy(strategy, known, client_side, num_examples)


class AuditedStrategy(Strategy):
  """A strategy with canaries among its clients; made by `audit`."""

  def __init__(
    self,
    strategy: Strategy,
    settings: Settings,
    client_side: bool,
    num_examples: float | None,
  ):
    self.strategy, self._settings = strategy, settings
    self._client_side, self._num_examples = client_side, num_examples
    inner = flower_strategies.find_inner(strategy)
    self._weighted_by = getattr(inner, 'weighted_by_key', None)
    self._names, self._designated = [], {}

  @property
  def auditor(self) -> Auditor:
    """The auditor.

    Raises:
      ValueError: training was not started yet.
    """
    return self._settings.auditor

  def start(self, grid, initial_arrays, num_rounds=3, *args, **kwargs):
    """As of the strategy; the final model is observed as well."""
    if self._settings.find('rounds') is None:
      self._settings.read('call of start', rounds=num_rounds)
    self._make_auditor(initial_arrays)
    observed = self.auditor.num_rounds_observed
    if num_rounds > (left := self.auditor.config.rounds - observed):
      raise ValueError(
        f'num_rounds={num_rounds}, but the audit has {left} rounds left; make one '
        'of as many rounds as training will have.'
      )
    result = super().start(grid, initial_arrays, num_rounds, *args, **kwargs)
    if self.auditor.num_rounds_observed > observed:
      initial = None if observed else self._take(initial_arrays)
      self.auditor.observe_final(self._take(result.arrays), initial=initial)
    return result

  def configure_train(self, server_round, arrays, config, grid):
    """As of the strategy; designates a node for each canary of the round."""
    asked = [*self.strategy.configure_train(server_round, arrays, config, grid)]
    self._designated = {}
    if not asked:
      return asked
    auditor = self._make_auditor(arrays)
    t = auditor.num_rounds_observed
    ids, largest = auditor.canary_ids(t), auditor.planned[t:].sum(axis=1).max()
    # Of all rounds to come, so that training does not end in the middle.
    if len(asked) < largest:
      raise ValueError(
        f'round {server_round} asks {len(asked)} nodes, but a round has up to '
        f'{largest} canaries. Ask more nodes, with min_available_nodes as many, so '
        'that the first round waits for them; or make more rounds, or lower '
        f'num_observed={auditor.config.num_observed}.'
      )
    self._arrays, self._sent = arrays, self._take(arrays)
    self._clip_norm = flower_strategies.find_clip_norm(
      self.strategy, self._settings
    )
    # Not the global stream, which Flower samples nodes with and may have a seed.
    chosen = random.SystemRandom().sample(asked, len(ids))
    for message, canary in zip(chosen, ids.tolist()):
      self._designated[message.metadata.dst_node_id] = canary
      if self._client_side:
        messages.add_order(message, self._make_update(canary))
    return asked

  def aggregate_train(self, server_round, replies):
    """As of the strategy, with canaries; observes what it returns."""
    replies, key = list(replies), self._weighted_by
    valid = [x for x in replies if not x.has_error()]
    canary_of = lambda x: self._designated.get(x.metadata.src_node_id)
    canaries = {canary_of(x): x for x in valid if canary_of(x) is not None}
    others = [x for x in valid if canary_of(x) is None]
    if self._client_side:
      messages.remove_receipts(canaries.values())
    else:
      weights = messages.find_weights(valid, key)
      examples = self._num_examples or np.median(weights)
      for canary, reply in canaries.items():
        update = self._make_update(canary)
        messages.replace_update(reply.content, self._arrays, update)
        messages.replace_metrics(reply.content, key, examples)
    weights = messages.find_weights([*canaries.values(), *others], key)
    released, metrics = self.strategy.aggregate_train(server_round, replies)
    if not released:
      return released, metrics
    count = len(canaries)
    weight = np.mean(weights[:count] if count else weights)
    auditor = self.auditor
    if count:
      # The wrapper adds noise for as many clients, no matter how many reply.
      expected = getattr(self.strategy, 'num_sampled_clients', len(weights))
      note_larger(
        auditor,
        largest=weights.max(),
        canary=weight,
        weighted_by=str(key),
        option='' if self._client_side else 'num_examples',
        share=expected * weights.max() / weights.sum(),
      )
    # The wrapper has put what it clipped into the replies.
    of_others = self._knows_others() and messages.add_updates(
      others, weights[count:] / weights.sum(), self._sent
    )
    auditor.observe(
      auditor.num_rounds_observed,
      messages.subtract(released, self._sent),
      divisor=weights.sum() / weight,
      included=list(canaries),
      others=of_others or None,
      clip_norm=self._clip_norm,
    )
    return released, metrics

  def configure_evaluate(self, server_round, arrays, config, grid):
    """As of the strategy."""
    return self.strategy.configure_evaluate(server_round, arrays, config, grid)

  def aggregate_evaluate(self, server_round, replies):
    """As of the strategy."""
    return self.strategy.aggregate_evaluate(server_round, replies)

  def summary(self):
    """As of the strategy."""
    self.strategy.summary()

  def __getattr__(self, name):
    return getattr(self.__dict__.get('strategy'), name)

  def _make_auditor(self, arrays):
    # FedAvg returns integers as floating-point numbers, from its first round on.
    if not self._names:
      self._names = [
        name for name, x in arrays.items() if x.dtype.startswith('float')
      ]
      sizes = {name: math.prod(arrays[name].shape) for name in self._names}
      self._settings.read_dim('initial model', sizes)
    return self._settings.make()

  def _knows_others(self):
    config = self.auditor.config
    is_claimed = config.noise_multiplier is not None
    is_mean = config.view == 'aggregate' and (
      flower_strategies.is_mean(self.strategy)
    )
    return is_mean and is_claimed and not self._client_side

  def _take(self, arrays):
    return {name: arrays[name].numpy() for name in self._names}

  def _make_update(self, canary):
    # A little below the clip norm: rounded as part of the model it may not be above.
    scale = (1 - 1e-5) * self._clip_norm
    return self.auditor.canary_update(canary, like=self._sent, clip_norm=scale)
