"""Flower's strategies as mechanisms: replies in, the change of the model out.

epe-jax check epe_jax.conformance.adapters.flower:fixed_clipping --num_clients=12
epe-jax check epe_jax.conformance.adapters.flower:local_dp --epsilon=10 \\
  --num_clients=1 --release=sum

For a strategy of your own give a factory in a file of your own:

def make(claim):
  return flower.Mechanism(make_strategy(claim), claim)
"""

from collections.abc import Callable, Sequence
from typing import Any

from jaxtyping import Float
import numpy as np

from epe_jax import conformance, extras

with extras.explain_missing():
  from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MetricRecord,
    RecordDict,
  )
  from flwr.clientapp.mod import LocalDpMod
  from flwr.serverapp import strategy as strategies
  from flwr.supercore.task_identity import TaskIdentity


_SMALLEST = 1e-12
"""Of an update in place of zeros: Flower divides by its norm, and stops at 0."""


class Mechanism:
  """A strategy that is given replies; its release is the change of the model.

  The weights of clients are their numbers of examples. If a wrapper adapts its clip
  norm, that is public.
  """

  def __init__(self, strategy: strategies.Strategy, claim: conformance.Claim):
    """Starts a run of a strategy, in its wrapper for differential privacy.

    It has to accept rounds in which clients drop out.
    """
    self._arrays, self._strategy = _make_zeros(claim), strategy
    self._grid, self._round = _Grid(claim.num_clients), 0

  @property
  def clip_norm(self) -> float | None:
    """The clip norm of a wrapper that adapts it; None for any other."""
    adapts = hasattr(self._strategy, 'clipped_count_stddev')
    return float(self._strategy.clipping_norm) if adapts else None

  def aggregate(
    self,
    updates: Sequence[Sequence[Float[np.ndarray, '...']]],
    weights: Sequence[float],
  ) -> list[Float[np.ndarray, '...']]:
    """Runs one round, as `conformance.Mechanism`."""
    _identify()
    self._round += 1
    for _ in self._strategy.configure_train(
      self._round, self._arrays, ConfigRecord(), self._grid
    ):
      pass  # Instructions, which nobody has to follow.
    before = self._arrays.to_numpy_ndarrays()
    replies = [
      _make_reply(before, update, weight)
      for update, weight in zip(updates, weights)
    ]
    arrays, _ = self._strategy.aggregate_train(self._round, replies)
    if arrays is None:
      raise conformance.Refused('aggregate_train returns None')
    self._arrays = arrays
    return [new - old for new, old in zip(arrays.to_numpy_ndarrays(), before)]


def fixed_clipping(claim: conformance.Claim) -> Mechanism:
  """Makes FedAvg with clipping to a fixed norm at the server, as Flower has it."""
  return Mechanism(
    strategies.DifferentialPrivacyServerSideFixedClipping(
      strategies.FedAvg(),
      claim.noise_multiplier,
      claim.clip_norm,
      claim.num_clients,
    ),
    claim,
  )


class LocalMod:
  """A mod for local differential privacy; its release is the message of one client.

  The claim has `num_clients=1` and `release='sum'`.
  """

  def __init__(
    self, mod: Callable[[Message, Any, Any], Message], claim: conformance.Claim
  ):
    """Starts a run of a mod that clips the update of a client and adds noise."""
    self._mod, self._arrays = mod, _make_zeros(claim)

  def aggregate(
    self,
    updates: Sequence[Sequence[Float[np.ndarray, '...']]],
    weights: Sequence[float],
  ) -> list[Float[np.ndarray, '...']]:
    """Sends the update of the client, as `conformance.Mechanism`."""
    if len(updates) != 1:
      raise conformance.Refused('a message has the update of one client')
    _identify()
    order = Message(RecordDict({'arrays': self._arrays}), 1, 'train')

    def train(order: Message, context: object) -> Message:
      reply = RecordDict({'arrays': _make_arrays(updates[0])})
      return Message(reply, reply_to=order)

    reply = self._mod(order, None, train)
    # The model was zeros, so that the new one is the update.
    return reply.content['arrays'].to_numpy_ndarrays()


def local_dp(claim: conformance.Claim) -> LocalMod:
  """Makes LocalDpMod for ε and δ of the claim; its sensitivity is the clip norm."""
  return LocalMod(
    LocalDpMod(claim.clip_norm, claim.clip_norm, claim.epsilon, claim.delta),
    claim,
  )


class _Grid:
  """As much of a grid as a strategy asks for."""

  def __init__(self, num_nodes: int):
    self._nodes = range(1, num_nodes + 1)

  def get_node_ids(self) -> range:
    return self._nodes


def _identify() -> None:
  """Says who sends messages, unless a run of Flower has."""
  try:
    TaskIdentity.run_id  # noqa: B018
  except RuntimeError:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


def _make_zeros(claim: conformance.Claim) -> ArrayRecord:
  return _make_arrays([np.zeros(shape, np.float32) for shape in claim.shapes])


def _make_arrays(tensors: Sequence[np.ndarray]) -> ArrayRecord:
  return ArrayRecord(
    {f'{i}': Array(np.array(x)) for i, x in enumerate(tensors)}
  )


def _make_reply(
  before: Sequence[np.ndarray], update: Sequence[np.ndarray], weight: float
) -> Message:
  trained = [old + tensor for old, tensor in zip(before, update)]
  if all(np.array_equal(*pair) for pair in zip(before, trained)):
    trained = [x + np.maximum(np.spacing(np.abs(x)), _SMALLEST) for x in before]
  metrics = MetricRecord({'num-examples': float(weight)})
  content = RecordDict({'arrays': _make_arrays(trained), 'metrics': metrics})
  order = Message(RecordDict({'config': ConfigRecord()}), 1, 'train')
  return Message(content, reply_to=order)
