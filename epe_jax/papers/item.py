"""What a paper shows, and how it is made again."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from epe_jax.papers import product


class Item(NamedTuple):
  """A table or figure of a paper.

  Attributes:
    title: in one line.
    source: where it is in the paper.
    experiment: what it is made from, a field of configs/paper.py. Items of the same
      experiment share its runs.
    kind: what `make` takes. For 'mechanism' the settings of the experiment, for
      'grid' the finished runs of its federated grid, for 'comparison' the rows of
      `run_comparison.compare` and the source of their data, for 'training' what
      `train` returns.
    make: returns tables and figures.
    train: for kind 'training': (settings, folder, data) -> what `make` takes. It
      trains in the folder, which all items of the experiment share, and repeats
      nothing that is finished there; data is the path of each `--data`, by name.
    fixed: for kind 'grid': the value of each axis of which it takes one alone.
  """

  title: str
  source: str
  experiment: str
  kind: str
  make: Callable[..., product.Product]
  train: Callable[..., Any] | None = None
  fixed: Mapping[str, Any] = {}
