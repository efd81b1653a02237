"""The time of a training run on a device: as measured, or what no run is faster than."""

from typing import NamedTuple

from epe_jax.planning import devices, measurements
from epe_jax.planning.devices import Sheet
from epe_jax.planning.measurements import MeasuredRound

# The parameters are read twice and written once by a local step.
_PASSES, _FLOAT = 3, 4
# Models whose numbers of parameters differ by less are one, but for their classes.
_SAME = 0.01


class Training(NamedTuple):
  """The sizes of a training run.

  Attributes:
    task: as config.task.
    rounds: T, >= 1.
    clients: of a round, the mean, > 0.
    examples: on which a client trains in a round, the mean, over its epochs; > 0.
    batch_size: of a local step, >= 1.
    dim: d, >= 1.
    flops: of an example's matrix products, forward and backward, > 0.
    precision: of the clients, as config.precision.
  """

  task: str
  rounds: int
  clients: float
  examples: float
  batch_size: int
  dim: int
  flops: float
  precision: str = 'float32'


def choose_sheet(device: str) -> Sheet:
  """The peaks of a device: 'cpu', or a key of `devices.SHEETS`."""
  if device == 'cpu':
    return measurements.load_measurements().cpu
  return devices.SHEETS[device]


def compute_floor(training: Training, sheet: Sheet) -> float:
  """Seconds of a round that no program is faster than: its roofline.

  The products run at the peak of their precision. Each local step reads a client's
  parameters twice and writes them once, as the server does, and nothing else moves.

  >>> digits = Training('digits', 20, 20, 16, 8, 55_210, 334_000)
  >>> round(1e6 * compute_floor(digits, devices.H100), 1)
  8.1
  """
  steps = training.clients * training.examples / training.batch_size
  return devices.floor_seconds(
    training.clients * training.examples * training.flops,
    _PASSES * _FLOAT * training.dim * (steps + 1),
    sheet,
    training.precision,
  )


def find_measured(training: Training, device: str) -> MeasuredRound | None:
  """A measured round of the same model and batches on a device.

  Clients of fewer examples than those that were measured take longer for each, so
  that a measurement says nothing of them.

  Args:
    training: the run.
    device: 'cpu', or a key of `devices.SHEETS`.

  Returns:
    Of several, that of the most examples a client; None if there is none.
  """
  fitting = [
    x
    for x in measurements.load_measurements().rounds
    if (x.device, x.task) == (device, training.task)
    and (x.batch_size, x.precision) == (training.batch_size, training.precision)
    and abs(x.dim / training.dim - 1) < _SAME
    and x.examples <= training.examples
  ]
  return max(fitting, key=lambda x: x.examples, default=None)
