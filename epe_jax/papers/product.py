"""The tables and figures of an item."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib import figure

from epe_jax.text import tables


class Product(NamedTuple):
  """Tables and figures.

  Attributes:
    tables: in their order on the page.
    figures: name of the file, without its suffix -> figure.
  """

  tables: Sequence[tables.Table]
  figures: Mapping[str, figure.Figure]
