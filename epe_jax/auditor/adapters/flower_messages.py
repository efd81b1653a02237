"""Canaries in Flower's messages: as replies of clients, and as orders to them.

app = ClientApp(mods=[fixedclipping_mod, canary_mod])   # Last: what clips is outside.

A client needs the canary alone, as a vector. With the key and the index it would have
all canaries, and could remove those of others from what is released.
"""

from collections.abc import Iterable, Mapping, Sequence
import io

from jaxtyping import Float
import numpy as np

from epe_jax import extras

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
  from flwr.supercore.differential_privacy import KEY_NORM_BIT


_KEY = 'epe_jax.canary'


def canary_mod(
  msg: Message, ctxt: Context, call_next: ClientAppCallable
) -> Message:
  """Has a designated client send its canary, and others what they trained.

  The client trains all the same, so that its metrics are those of a client; nothing
  of its updates is sent.

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
      replace_update(reply.content, arrays[0], update)
    # One that has no mod would be taken for a canary that nobody can see.
    reply.content[_KEY] = ConfigRecord({'included': True})
  return reply


def add_order(message: Message, update: Mapping[str, np.ndarray]) -> None:
  """Puts a canary into the instruction of one client.

  Args:
    message: its records may be shared with others, and are not changed.
    update: S c_j, by the names of arrays.
  """
  buffer = io.BytesIO()
  np.savez(buffer, **update)
  content = RecordDict(dict(message.content))
  # Into a record that is there, as Flower's mods refuse a second one.
  key = next(iter(content.config_records), _KEY)
  config = dict(content.get(key, {}))
  content[key] = ConfigRecord({**config, _KEY: buffer.getvalue()})
  message.content = content


def remove_receipts(replies: Iterable[Message]) -> None:
  """Removes what `canary_mod` left in the replies of designated clients.

  Raises:
    ValueError: a client has no mod.
  """
  for reply in replies:
    if reply.content.pop(_KEY, None) is None:
      raise ValueError(
        f'node {reply.metadata.src_node_id} was to send a canary, but sent another '
        'update; give its ClientApp mods=[canary_mod], after all other mods.'
      )


def replace_update(
  content: RecordDict, sent: ArrayRecord, update: Mapping[str, np.ndarray]
) -> None:
  """Replaces the model of a reply by the one that was sent and an update.

  Args:
    content: of the reply.
    sent: the model.
    update: of arrays in it, by name; others stay as they were sent.
  """
  arrays = dict(sent)
  for name in update:
    x = sent[name].numpy()
    arrays[name] = Array(np.asarray(x + update[name], x.dtype))
  for key in list(content.array_records):
    content[key] = ArrayRecord(arrays)


def replace_metrics(
  content: RecordDict, key: str | None, weight: float
) -> None:
  """Gives a reply the weight of a canary, which was not clipped."""
  for metrics in content.metric_records.values():
    if key in metrics:
      metrics[key] = type(metrics[key])(weight)
    if KEY_NORM_BIT in metrics:
      metrics[KEY_NORM_BIT] = 0


def find_weights(
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


def subtract(
  arrays: ArrayRecord, sent: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """What is left of a model without the one that was sent."""
  return {name: arrays[name].numpy() - x for name, x in sent.items()}


def add_updates(
  replies: Sequence[Message],
  weights: Float[np.ndarray, ' n'],
  sent: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
  """The weighted sum of the updates in replies."""
  total = {name: np.zeros_like(x) for name, x in sent.items()}
  for reply, weight in zip(replies, weights.tolist()):
    for arrays in reply.content.array_records.values():
      for name, x in subtract(arrays, sent).items():
        total[name] += weight * x
  return total
