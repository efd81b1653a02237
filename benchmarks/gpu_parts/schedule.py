"""The parts, most valuable first, and their time limits."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

SHARES_DEVICE = {'XLA_PYTHON_CLIENT_PREALLOCATE': 'false'}
"""Environment of a part that starts benchmarks, which need the device's memory."""


class Part(NamedTuple):
  """A part of benchmarks/gpu.py.

  Attributes:
    name: as for `--parts`; its result file is gpu_NAME.json.
    what: the figures that it measures, in words.
    floor: of its figures.
    functions: 'module:function' of this package, called in turn.
    limit: seconds after which it is stopped.
    least: seconds that must be left to begin it.
    environment: variables of its process besides those of its parent.
  """

  name: str
  what: str
  floor: str
  functions: Sequence[str]
  limit: float
  least: float
  environment: Mapping[str, str] = {}


PARTS = (
  Part(
    'device',
    'the device, its driver; large products in each precision, copying, reading',
    'its data sheet',
    ['ceilings:measure'],
    60,
    20,
  ),
  Part(
    'same',
    'canaries of every family, and runs of the three tasks, against the '
    'processor: bits, cosines, ε, programs compiled',
    'no difference',
    ['checks:compare_canaries', 'checks:compare_runs'],
    240,
    40,
  ),
  Part(
    'emnist_round',
    'rounds of EMNIST: seconds, chunk, memory, share of the peak, the longest '
    'kernels and the idle share of a profile; audited / unaudited',
    '-',
    ['timings:emnist_round'],
    180,
    60,
  ),
  Part(
    'next_word_round',
    'the same of StackOverflow, 167 clients of 256 sentences; in float32, '
    'tensorfloat32 and bfloat16',
    '-',
    ['timings:next_word_round'],
    300,
    60,
  ),
  Part(
    'audited_round',
    'work B audited / unaudited, Hadamard and sphere',
    '1',
    ['programs:audited_round'],
    180,
    45,
    SHARES_DEVICE,
  ),
  Part(
    'emnist',
    'the run of 500 rounds, with data and estimates',
    '-',
    ['runs:emnist'],
    300,
    60,
  ),
  Part(
    'canary_kernels',
    'all families: a projection, and two canaries put in',
    'a pass',
    ['programs:canary_kernels'],
    240,
    40,
    SHARES_DEVICE,
  ),
  Part(
    'memory',
    'a chunk that is too large is halved until it fits',
    '-',
    ['checks:halve_chunk'],
    120,
    45,
    # 2 GB of a device of 80 GB.
    {'XLA_PYTHON_CLIENT_MEM_FRACTION': '0.03'},
  ),
  Part(
    'precision',
    'tensorfloat32 and bfloat16: what cosines and ε move by',
    '0',
    ['programs:precision'],
    150,
    60,
    SHARES_DEVICE,
  ),
  Part(
    'variants',
    'other chunks, several rounds of a dispatch, barriers without branches',
    'as the rounds',
    ['timings:variants'],
    240,
    60,
  ),
  # Last, because it takes all the time that is left; it can be resumed.
  Part(
    'stackoverflow',
    'the run of 2,048 rounds, as far as the time goes',
    '-',
    ['runs:stackoverflow'],
    3600,
    90,
  ),
)
"""What `benchmarks/gpu.py` runs, in this order."""


def choose_limit(part: Part, seconds_left: float) -> float | None:
  """The seconds that a part gets; None if it should not be begun.

  >>> part = Part('x', '', '', ['m:f'], limit=60, least=20)
  >>> [choose_limit(part, left) for left in (100, 50, 10)]
  [60, 50, None]
  """
  if seconds_left < part.least:
    return None
  return min(part.limit, seconds_left)
