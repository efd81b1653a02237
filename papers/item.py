"""An item of a paper: a table or figure, and the function that makes it."""

from collections.abc import Callable, Mapping, Sequence
import pathlib
from typing import Any, NamedTuple

from matplotlib import figure

from epe_jax.experiment import stopping
from epe_jax.experiment.sweeps import launchers
from epe_jax.report import tables


class Product(NamedTuple):
  """The tables and figures of an item.

  Attributes:
    tables: in their order on the page.
    figures: name of the file, without its suffix -> figure.
  """

  tables: Sequence[tables.Table]
  figures: Mapping[str, figure.Figure]


class Workspace(NamedTuple):
  """Where an item finds its data and keeps its runs.

  Attributes:
    folder: of its runs, which it shares with the items of the same experiment.
      What is finished there is not trained again.
    data: path of each data set, by name.
    synthetic: whether to train on generated data where no path is given.
    only_digits: whether to train on the digits of EMNIST alone.
    fields: field of a run's config -> its value, in place of that of the scale.
    launch: makes what starts the runs; None for one on each accelerator.
    retry: whether to repeat runs that failed.
  """

  folder: pathlib.Path
  data: Mapping[str, pathlib.Path] = {}
  synthetic: bool = False
  only_digits: bool = False
  fields: Mapping[str, Any] = {}
  launch: Callable[[], launchers.Launcher] | None = None
  retry: bool = False


Make = Callable[[Any, Workspace], Product]
"""(settings of the experiment, workspace) -> tables and figures."""


class Item(NamedTuple):
  """A table or figure of a paper.

  Attributes:
    title: in one line.
    source: where it is in the paper.
    experiment: a field of papers/settings.py, with its settings. Items of the same
      experiment share its runs.
    make: makes it from the settings, training first what is not trained yet.
    data: names of the data sets that it reads, the main one first.
  """

  title: str
  source: str
  experiment: str
  make: Make
  data: Sequence[str] = ()


def from_settings(make: Callable[[Any], Product]) -> Make:
  """Makes an item from its settings alone, without runs."""

  def make_item(settings: Any, workspace: Workspace) -> Product:
    del workspace
    return stopping.wait_for(lambda: make(settings))

  return make_item


def from_training(
  train: Callable[[Any, pathlib.Path, Mapping[str, pathlib.Path]], Any],
  make: Callable[[Any], Product],
) -> Make:
  """Makes an item from what it trains.

  Args:
    train: (settings, folder, path of each data set) -> results. It repeats
      nothing that is finished in the folder.
    make: results -> tables and figures.
  """

  def make_item(settings: Any, workspace: Workspace) -> Product:
    folder, data = workspace.folder, workspace.data
    return make(stopping.wait_for(lambda: train(settings, folder, data)))

  return make_item
