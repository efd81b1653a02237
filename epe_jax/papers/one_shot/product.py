"""What one item of the paper is made into: tables and figures."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib import figure

from epe_jax.experiment import finished_runs
from epe_jax.report import tables


class Run(NamedTuple):
  """A finished run of a grid.

  Attributes:
    settings: dotted field -> value, what its point sets.
    said: what its files hold.
  """

  settings: Mapping[str, Any]
  said: finished_runs.FinishedRun

  @property
  def noise(self) -> float:
    """z."""
    return float(self.said.result['noise_multiplier'])

  @property
  def repetitions(self) -> int:
    """How often a canary took part."""
    return int(self.said.result['repetitions'])


class Product(NamedTuple):
  """Tables, and figures by file name without its suffix."""

  tables: Sequence[tables.Table]
  figures: Mapping[str, figure.Figure]


def about(runs: Sequence[Run]) -> list[str]:
  """The data and sizes of runs, as sentences."""
  said = {}
  for run in runs:
    r = run.said.result
    audited = (
      f'{r["num_observed"]:,} canaries that took part and '
      f'{r["num_unobserved"]:,} that did not'
      if r['audit'].attacks
      else 'no canaries'
    )
    sizes = (
      f'{r["rounds"]:,} rounds of {r["config"]["clients_per_round"]:,} clients, '
      f'd = {r["dim"]:,}, {audited}'
    )
    said[f'Data: {r["data"]}.'] = None
    said[f'{sizes[0].upper()}{sizes[1:]}.'] = None
  return list(said)
