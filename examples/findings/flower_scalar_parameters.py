"""flwr 1.41, 1.42: parameters without an axis, such as a temperature, are not clipped.

The update of a 0-d array is a NumPy scalar, and `array *= scaling_factor` in
clip_inputs_inplace (supercore/differential_privacy.py) binds a name instead of
writing to it. The scalar counts in the norm, so all else is scaled down, and is then
released as it was sent. All four wrappers and LocalDpMod clip by this code or by its
copy in adaptive_clip_inputs_inplace. `epe-jax check` finds it if a shape is `()`.

  python examples/findings/flower_scalar_parameters.py
"""

import logging

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as strategies
from flwr.supercore.task_identity import TaskIdentity
import numpy as np

logging.disable(logging.INFO)
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
CLIENTS, CLIP_NORM = 20, 1.0


def make_record(weight: float, temperature: float) -> ArrayRecord:
  arrays = {
    'weight': np.full(100, weight),
    'temperature': np.array(temperature),
  }
  return ArrayRecord({key: Array(x) for key, x in arrays.items()})


strategy = strategies.DifferentialPrivacyServerSideFixedClipping(
  strategies.FedAvg(), 0.0, CLIP_NORM, CLIENTS
)
strategy.current_arrays = make_record(0.0, 0.0)
replies = []
for i in range(CLIENTS):
  content = RecordDict(
    {
      'arrays': make_record(1e-6, 1000.0 if i == 0 else 0.0),
      'metrics': MetricRecord({'num-examples': 10}),
    }
  )
  order = Message(RecordDict(), i + 1, 'train')
  replies.append(Message(content, reply_to=order))
released = strategy.aggregate_train(1, replies)[0]
moved = float(released['temperature'].numpy())
print(
  f'one of {CLIENTS} clients moves the temperature by {moved:g}; clipped to '
  f'{CLIP_NORM:g} it would move the whole model by {CLIP_NORM / CLIENTS:g}'
)
