"""An item of a paper: a table or figure, its settings, and the function that makes it."""

from collections.abc import Callable, Mapping, Sequence
import pathlib
from typing import Any, NamedTuple

from matplotlib import figure
from ml_collections import config_dict

from epe_jax import io
from epe_jax.experiment import stopping
from epe_jax.experiment.sweeps import launch as launch_lib
from epe_jax.report import tables

SIZES = {'smoke': 0, 'small': 1, 'medium': 1, 'paper': 2}
"""The scales, and which of three sizes each has.

'paper' has the papers' sizes; 'medium' trains the paper's LSTM on text, a quarter of an
hour for each run on two cores; 'small' takes about half an hour for each item on two
cores; 'smoke' shows within a minute or two that everything is in place.
"""


CAUTION = 'Caution: '
"""Begins a note of a table that is said first on its page."""

LEARNT = 1.1
"""Of an accuracy over that of the majority class: a model with less learnt nothing."""


class Product(NamedTuple):
  """The tables and figures of an item.

  Attributes:
    tables: in their order on the page.
    figures: name of the file, without its suffix -> figure.
  """

  tables: Sequence[tables.Table]
  figures: Mapping[str, figure.Figure] = {}


class Workspace(NamedTuple):
  """Where an item finds its data and keeps its runs.

  Attributes:
    folder: of its runs. What is finished there is not trained again.
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
  launch: Callable[[], launch_lib.Launcher] | None = None
  retry: bool = False


class Experiment(NamedTuple):
  """Settings, and the folder of the runs that items with these settings share.

  Attributes:
    name: of the folder.
    choose: scale -> settings.
    data: names of the data sets that it reads, the main one first.
    scales: those that it has.
  """

  name: str
  choose: Callable[[str], Mapping[str, Any]]
  data: Sequence[str] = ()
  scales: Sequence[str] = ('smoke', 'small', 'paper')

  def load(self, scale: str = 'small') -> config_dict.ConfigDict:
    """The settings at a scale."""
    return config_dict.create(**self.choose(scale))


class Item(NamedTuple):
  """A table or figure of a paper.

  Attributes:
    title: in one line.
    source: where it is in the paper.
    experiment: its settings and runs.
    make: (settings, workspace) -> tables and figures. It trains what is not trained
      yet.
  """

  title: str
  source: str
  experiment: Experiment
  make: Callable[[Any, Workspace], Product]


def from_settings(
  title: str,
  source: str,
  name: str,
  choose: Callable[[str], Mapping[str, Any]],
  make: Callable[[Any], Product],
) -> Item:
  """An item that is made from its settings alone, without runs."""

  def make_item(settings: Any, workspace: Workspace) -> Product:
    del workspace
    return stopping.wait_for(lambda: make(settings))

  return Item(title, source, Experiment(name, choose), make_item)


def from_training(
  title: str,
  source: str,
  experiment: Experiment,
  train: Callable[[Any, pathlib.Path, Mapping[str, pathlib.Path]], Any],
  make: Callable[[Any], Product],
) -> Item:
  """An item that is made from what it trains.

  Args:
    title: as in `Item`, and so are source and experiment.
    source: see there.
    experiment: see there.
    train: (settings, folder, path of each data set) -> results. It repeats nothing
      that is finished in the folder.
    make: results -> tables and figures.
  """

  def make_item(settings: Any, workspace: Workspace) -> Product:
    folder, data = workspace.folder, workspace.data
    return make(stopping.wait_for(lambda: train(settings, folder, data)))

  return Item(title, source, experiment, make_item)


def cached(
  path: pathlib.Path, settings: Mapping[str, Any], make: Callable[[], Any]
) -> Any:
  """What a JSON file keeps of an earlier call, or else makes it and keeps it.

  Args:
    path: of the file; its folder is created.
    settings: what decides the result.
    make: -> mappings, sequences, strings and numbers.

  Raises:
    ValueError: the file was made with other settings.
  """
  if not path.exists():
    run = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    io.write_json(path, {'settings': settings, 'run': run})
  stored = io.read_json(path)
  # As JSON has them: tuples are lists there.
  if stored['settings'] != io.parse_json(io.format_json(settings)):
    raise ValueError(
      f'{path} is a run of other settings or data; give another --workdir.'
    )
  return stored['run']
