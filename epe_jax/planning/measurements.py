"""What was measured, on which plans are based: measured.json of this package.

`python benchmarks/page.py` writes that file from benchmarks/results.
"""

from collections.abc import Mapping, Sequence
import functools
import importlib.resources
import json
from typing import NamedTuple

from epe_jax.planning.devices import Sheet


class Projections(NamedTuple):
  """Seconds of a projection onto all canaries, on the CPU of `Measurements.cpu`.

  Attributes:
    dim: d.
    norm: seconds of one pass over a vector, |x|².
    canaries: k of each column of `seconds`, increasing.
    seconds: family -> vectors projected at once, as text -> seconds for each k.
  """

  dim: int
  norm: float
  canaries: Sequence[int]
  seconds: Mapping[str, Mapping[str, Sequence[float]]]


class MeasuredRound(NamedTuple):
  """A round of training that was measured.

  Attributes:
    device: 'cpu', or a key of `devices.SHEETS`.
    machine: it was measured on.
    file: of benchmarks/results.
    date: of the measurement, YYYY-MM-DD.
    task: as config.task.
    dim: d.
    batch_size: of a local step.
    precision: of the clients.
    examples: of each client, the mean.
    seconds_per_example: the seconds of a round over its examples.
  """

  device: str
  machine: str
  file: str
  date: str
  task: str
  dim: int
  batch_size: int
  precision: str
  examples: float
  seconds_per_example: float


class Measurements(NamedTuple):
  """All that plans are based on.

  Attributes:
    cpu: the CPU on which most was measured: its peaks are the speeds of a large
      product and of one pass over a large array.
    projections: of canaries.
    rounds: of training.
  """

  cpu: Sheet
  projections: Projections
  rounds: Sequence[MeasuredRound]


@functools.cache
def load_measurements() -> Measurements:
  """Loads measured.json.

  >>> {'emnist', 'stackoverflow'} <= {x.task for x in load_measurements().rounds}
  True
  """
  file = importlib.resources.files('epe_jax.planning').joinpath('measured.json')
  found = json.loads(file.read_text(encoding='utf-8'))
  return Measurements(
    # What has no role in a plan for a CPU.
    Sheet(**dict.fromkeys(('memory', 'link'), float('inf')), **found['cpu']),
    Projections(**found['projections']),
    [MeasuredRound(**x) for x in found['rounds']],
  )
