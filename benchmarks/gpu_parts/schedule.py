"""The parts, most valuable first, and their time limits."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

SHARES_DEVICE = {'XLA_PYTHON_CLIENT_PREALLOCATE': 'false'}
"""Environment of a part that starts benchmarks, which need the device's memory."""


class Part(NamedTuple):
  """A part of the checklist.

  Attributes:
    name: of its file, gpu_NAME.json.
    functions: 'module:function' of this package, called in turn.
    limit: seconds after which it is stopped.
    least: seconds that must be left to begin it.
    environment: variables of its process besides those of its parent.
  """

  name: str
  functions: Sequence[str]
  limit: float
  least: float
  environment: Mapping[str, str] = {}


PARTS = (
  Part('device', ['ceilings:measure'], 60, 20),
  Part('same', ['checks:compare_canaries', 'checks:compare_runs'], 240, 40),
  Part('emnist_round', ['timings:emnist_round'], 180, 60),
  Part('next_word_round', ['timings:next_word_round'], 300, 60),
  Part('audited_round', ['programs:audited_round'], 180, 45, SHARES_DEVICE),
  Part('emnist', ['runs:emnist'], 300, 60),
  Part('canary_kernels', ['programs:canary_kernels'], 240, 40, SHARES_DEVICE),
  # 2 GB of a device of 80 GB.
  Part(
    'memory',
    ['checks:halve_chunk'],
    120,
    45,
    {'XLA_PYTHON_CLIENT_MEM_FRACTION': '0.03'},
  ),
  Part('precision', ['programs:precision'], 150, 60, SHARES_DEVICE),
  Part('variants', ['timings:variants'], 240, 60),
  Part('tests', ['checks:run_tests'], 180, 60, SHARES_DEVICE),
  # Last, because it takes all the time that is left; it can be resumed.
  Part('stackoverflow', ['runs:stackoverflow'], 3600, 90),
)
"""What `benchmarks/gpu.py` runs."""


def choose_limit(part: Part, seconds_left: float) -> float | None:
  """The seconds that a part gets; None if it should not be begun.

  >>> part = Part('x', ['m:f'], limit=60, least=20)
  >>> [choose_limit(part, left) for left in (100, 50, 10)]
  [60, 50, None]
  """
  if seconds_left < part.least:
    return None
  return min(part.limit, seconds_left)
