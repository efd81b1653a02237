"""Audits Flower: wraps a strategy so that canaries replace designated clients.

strategy = flower.audit(strategy, delta=1e-5)         # A line more,
result = strategy.start(grid=grid, ...)
print(strategy.auditor.report())                      # and another at the end.

`epe_jax.conformance.adapters.flower` checks that a strategy clips, averages and adds
noise as it claims, which comes first.
"""

from collections.abc import Mapping, Sequence
import io
import math
import random
from typing import Any

from jaxtyping import Float
import numpy as np

from epe_jax import extras
from epe_jax.auditor.adapters import base
from epe_jax.auditor.auditor import Auditor

with extras.explain_missing():
  from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    RecordDict,
  )
  from flwr.clientapp.typing import ClientAppCallable
  from flwr.serverapp import strategy as strategies
  from flwr.serverapp.strategy import Strategy
  from flwr.supercore.differential_privacy import KEY_NORM_BIT

_KEY = 'epe_jax.canary'
# Of batches, in batch normalization of PyTorch.
_COUNTER = 'num_batches_tracked'
_FIXED = (
  strategies.DifferentialPrivacyServerSideFixedClipping,
  strategies.DifferentialPrivacyClientSideFixedClipping,
)
_WRAPPERS = (
  *_FIXED,
  strategies.DifferentialPrivacyServerSideAdaptiveClipping,
  strategies.DifferentialPrivacyClientSideAdaptiveClipping,
)
_OPTIMIZERS = (
  strategies.FedAdagrad,
  strategies.FedAdam,
  strategies.FedAvgM,
  strategies.FedYogi,
)


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
      optimizers need view='server_update'. If the clip norm adapts, the claim is the
      noise multiplier that the wrapper derives for updates, not the given one.
    client_side: whether designated nodes send canaries themselves, by `canary_mod`,
      with their own numbers of examples.
    num_examples: number of examples of a canary; None for the median of the replies.
    **settings: without a wrapper also clip_norm and noise_multiplier;
      rounds, if training will be started more than once.

  Raises:
    TypeError: the strategy has a loop of its own, or a setting is unknown.
    ValueError: a setting is missing or another than the strategy has, or it releases
      no mean of updates, and one is to be seen.
  """
  known = base.Settings(settings, auditor=auditor, seed=seed)
  if type(strategy).start is not Strategy.start:
    raise TypeError(
      f'{type(strategy).__name__} has a `start` of its own, which the audit would '
      'not be part of; override that of what `audit` returns instead.'
    )
  inner = _find_inner(strategy)
  if known.find('view', 'aggregate') == 'aggregate' and isinstance(
    inner, _OPTIMIZERS
  ):
    raise ValueError(
      f"view='aggregate', but {type(inner).__name__} is a server optimizer, which "
      "releases no mean; set view='server_update'."
    )
  audited = AuditedStrategy(strategy, known, client_side, num_examples)
  audited._read_claim()
  if audited._is_mean:
    # The next model is the mean of models, so the server adds up what is released.
    known.read('strategy', server_momentum=0.0)
  known.require('dim', 'rounds')
  return audited


class AuditedStrategy(base.Audited, Strategy):
  """A strategy with canaries among its clients; made by `audit`."""

  def __init__(
    self,
    strategy: Strategy,
    settings: base.Settings,
    client_side: bool,
    num_examples: float | None,
  ):
    self.strategy, self._settings = strategy, settings
    self._client_side, self._num_examples = client_side, num_examples
    inner = _find_inner(strategy)
    # Whether what is aggregated is certain to be a mean of models.
    own = type(inner).aggregate_train
    self._is_mean = own is strategies.FedAvg.aggregate_train
    self._weighted_by = getattr(inner, 'weighted_by_key', None)
    self._names, self._designated = [], {}

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
    self._clip_norm = self._read_claim()
    # Not the global stream, which Flower samples nodes with and may have a seed.
    chosen = random.SystemRandom().sample(asked, len(ids))
    for message, canary in zip(chosen, ids.tolist()):
      self._designated[message.metadata.dst_node_id] = canary
      if self._client_side:
        _add_order(message, self._make_update(canary))
    return asked

  def aggregate_train(self, server_round, replies):
    """As of the strategy, with canaries; observes what it returns."""
    replies, key = list(replies), self._weighted_by
    valid = [x for x in replies if not x.has_error()]
    canary_of = lambda x: self._designated.get(x.metadata.src_node_id)
    canaries = {canary_of(x): x for x in valid if canary_of(x) is not None}
    others = [x for x in valid if canary_of(x) is None]
    weights = _find_weights(valid, key)
    for canary, reply in canaries.items():
      if self._client_side:
        _remove_receipt(reply)
      else:
        examples = self._num_examples or np.median(weights)
        _replace_update(reply.content, self._arrays, self._make_update(canary))
        _replace_metrics(reply.content, key, examples)
    weights = _find_weights([*canaries.values(), *others], key)
    released, metrics = self.strategy.aggregate_train(server_round, replies)
    if not released:
      return released, metrics
    count = len(canaries)
    weight = np.mean(weights[:count] if count else weights)
    auditor = self.auditor
    if count:
      # The wrapper adds noise for as many clients, no matter how many reply.
      expected = getattr(self.strategy, 'num_sampled_clients', len(weights))
      base.note_larger(
        auditor,
        largest=weights.max(),
        canary=weight,
        weighted_by=str(key),
        option='' if self._client_side else 'num_examples',
        share=expected * weights.max() / weights.sum(),
      )
    # The wrapper has put what it clipped into the replies.
    of_others = self._knows_others() and _add_updates(
      others, weights[count:] / weights.sum(), self._sent
    )
    auditor.observe(
      auditor.num_rounds_observed,
      _subtract(released, self._sent),
      divisor=weights.sum() / weight,
      included=list(canaries),
      others=of_others or None,
      clip_norm=self._clip_norm,
      noise_std=self._find_noise_std(),
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
    # FedAvg returns integers as floating-point numbers, also to a run that goes on.
    if not self._names:
      self._names = [
        name
        for name, x in arrays.items()
        if x.dtype.startswith('float') and not name.endswith(_COUNTER)
      ]
      sizes = {name: math.prod(arrays[name].shape) for name in self._names}
      self._settings.read_dim('initial model', sizes)
    return self._settings.make()

  def _read_claim(self):
    """Reads a wrapper for differential privacy; returns S of the next round."""
    strategy, settings = self.strategy, self._settings
    if not isinstance(strategy, _WRAPPERS):
      return settings.find('clip_norm')
    clip_norm = float(strategy.clipping_norm)
    settings.read(
      'strategy',
      # One that adapts: a resumed auditor has that of the first round.
      clip_norm=clip_norm
      if isinstance(strategy, _FIXED)
      else settings.find('clip_norm', clip_norm),
      noise_multiplier=float(strategy.noise_multiplier),
    )
    return clip_norm

  def _find_noise_std(self):
    """Of the noise of a wrapper, which knows no weights."""
    z = self.auditor.config.noise_multiplier
    if z is None or not isinstance(self.strategy, _WRAPPERS):
      return None
    return z * self._clip_norm / self.strategy.num_sampled_clients

  def _knows_others(self):
    config = self.auditor.config
    is_claimed = config.noise_multiplier is not None
    is_mean = config.view == 'aggregate' and self._is_mean
    return is_mean and is_claimed and not self._client_side

  def _take(self, arrays):
    return {name: arrays[name].numpy() for name in self._names}

  def _make_update(self, canary):
    # Rounded as part of the model it may not be above the clip norm.
    scale = base.BELOW * self._clip_norm
    return self.auditor.canary_update(canary, like=self._sent, clip_norm=scale)


def canary_mod(
  msg: Message, ctxt: Context, call_next: ClientAppCallable
) -> Message:
  """Replaces the update of a designated client by its canary.

  app = ClientApp(mods=[fixedclipping_mod, canary_mod])   # Last: others clip it.

  The client trains all the same, so that its metrics are those of a client; nothing
  of its updates is sent. It gets the canary alone, as a vector: with the key and the
  index it would have all canaries, and could remove those of others from what is
  released.

  Args:
    msg: the instruction.
    ctxt: of the ClientApp.
    call_next: the next mod, or the ClientApp.
  """
  records = msg.content.config_records.values()
  order = next((x.pop(_KEY) for x in records if _KEY in x), None)
  # The ClientApp may empty the record that it was sent.
  arrays = [ArrayRecord(dict(x)) for x in msg.content.array_records.values()]
  reply = call_next(msg, ctxt)
  if order is not None and reply.has_content():
    with np.load(io.BytesIO(order), allow_pickle=False) as update:
      _replace_update(reply.content, arrays[0], update)
    # Without a mod a client would be counted as a canary that cannot be detected.
    reply.content[_KEY] = ConfigRecord({'included': True})
  return reply


def _add_order(message: Message, update: Mapping[str, np.ndarray]) -> None:
  """Puts a canary into the instruction of a client, whose records may be shared."""
  buffer = io.BytesIO()
  np.savez(buffer, **update)
  content = RecordDict(dict(message.content))
  # Into a record that is there, as Flower's mods refuse a second one.
  key = next(iter(content.config_records), _KEY)
  config = dict(content.get(key, {}))
  content[key] = ConfigRecord({**config, _KEY: buffer.getvalue()})
  message.content = content


def _remove_receipt(reply: Message) -> None:
  """Removes what `canary_mod` left in the reply of a designated client."""
  if reply.content.pop(_KEY, None) is None:
    raise ValueError(
      f'node {reply.metadata.src_node_id} was to send a canary, but sent another '
      'update; give its ClientApp mods=[canary_mod], after all other mods.'
    )


def _replace_update(
  content: RecordDict, sent: ArrayRecord, update: Mapping[str, np.ndarray]
) -> None:
  """Replaces the model of a reply by the one that was sent and an update."""
  arrays = dict(sent)
  for name in update:
    x = sent[name].numpy()
    arrays[name] = Array(np.asarray(x + update[name], x.dtype))
  for key in list(content.array_records):
    content[key] = ArrayRecord(arrays)


def _replace_metrics(
  content: RecordDict, key: str | None, weight: float
) -> None:
  """Gives a reply the weight of a canary, which was not clipped."""
  for metrics in content.metric_records.values():
    if key in metrics:
      metrics[key] = type(metrics[key])(weight)
    if KEY_NORM_BIT in metrics:
      metrics[KEY_NORM_BIT] = 0


def _find_weights(
  replies: Sequence[Message], key: str | None
) -> Float[np.ndarray, ' n']:
  """The weights of replies in a mean; all 1 unless each names one."""
  metrics = [
    record for x in replies for record in x.content.metric_records.values()
  ]
  if len(metrics) != len(replies) or any(key not in x for x in metrics):
    # Flower says what is wrong with them, where it needs weights.
    return np.ones(len(replies))
  return np.array([float(x[key]) for x in metrics])


def _subtract(
  arrays: ArrayRecord, sent: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """What is left of a model without the one that was sent."""
  return {name: arrays[name].numpy() - x for name, x in sent.items()}


def _add_updates(
  replies: Sequence[Message],
  weights: Float[np.ndarray, ' n'],
  sent: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
  """The weighted sum of the updates in replies."""
  total = {name: np.zeros_like(x) for name, x in sent.items()}
  for reply, weight in zip(replies, weights.tolist()):
    for arrays in reply.content.array_records.values():
      for name, x in _subtract(arrays, sent).items():
        total[name] += weight * x
  return total


def _find_inner(strategy: Strategy) -> Strategy:
  """The strategy within all wrappers for differential privacy."""
  while isinstance(strategy, _WRAPPERS):
    strategy = strategy.strategy
  return strategy
