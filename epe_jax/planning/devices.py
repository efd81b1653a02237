"""How fast devices could be: the peaks of their data sheets, and the floors they set."""

from typing import NamedTuple


class Sheet(NamedTuple):
  """The peaks of a device, which no program reaches.

  Attributes:
    name: of the device, for people.
    float32: flops per second, outside of matrix units.
    tf32: of its matrix units, dense.
    bfloat16: likewise.
    bandwidth: bytes per second of its memory.
    memory: bytes.
    link: bytes per second to devices of other hosts, each way.
  """

  name: str
  float32: float
  tf32: float
  bfloat16: float
  bandwidth: float
  memory: float
  link: float

  def find_peak(self, precision: str) -> float:
    """Flops per second in a precision of `training.local_training`."""
    return {
      'float32': self.float32,
      'tensorfloat32': self.tf32,
      'bfloat16': self.bfloat16,
    }[precision]


A100 = Sheet('NVIDIA A100', 19.5e12, 156e12, 312e12, 2.039e12, 80e9, link=25e9)
"""Figures of the data sheet of 80 GB with SXM; a network of 200 Gbit/s a device."""
H100 = Sheet('NVIDIA H100', 67e12, 494.7e12, 989.4e12, 3.35e12, 80e9, link=50e9)
"""Figures of the data sheet with SXM; the link is a network of 400 Gbit/s a device."""
H200 = Sheet('NVIDIA H200', 67e12, 494.7e12, 989.4e12, 4.8e12, 141e9, link=50e9)
"""Likewise."""

SHEETS = {'a100': A100, 'h100': H100, 'h200': H200}
"""The devices of a plan, by their names on the command line."""


def floor_seconds(
  flops: float, nbytes: float, sheet: Sheet, precision: str = 'float32'
) -> float:
  """Minimum time of some work: arithmetic and memory at their peaks.

  >>> floor_seconds(67e12, 4.8e12, H200)
  1.0
  """
  return max(flops / sheet.find_peak(precision), nbytes / sheet.bandwidth)
