"""How long the runs of items take on devices, before any of them is trained."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import pathlib
from typing import Any, NamedTuple

from epe_jax.experiment import config_fields, config_files, training_sizes
from epe_jax.experiment.config_files import Config
from epe_jax.papers import registry
from epe_jax.papers.item import Workspace
from epe_jax.planning import plans, training_costs
from epe_jax.planning.measurements import MeasuredRound
from epe_jax.planning.training_costs import Training
from epe_jax.text import tables

# Fields that axes of grids set, and that training takes no time for.
_AUDITED = ('canaries', 'noise_multiplier', 'server')
_REASONS = {
  'no_training': 'they train nothing',
  'no_grid': 'their runs are no grid of configs',
  'other_scale': 'the scale lacks them',
}
_HEAD = ('item', 'runs', 'shared', 'rounds x clients x examples', 'a run')


class ItemHours(NamedTuple):
  """The runs of an item that no item before it has, and their time.

  Attributes:
    name: of the item.
    experiment: whose runs it shares with other items.
    runs: number of its own runs.
    shared: number of runs that items before it have made.
    training: the sizes of a run.
    measured: the round by which time is planned; None for a floor.
    seconds_of_run: the longest of them, or what one would take if all are shared.
    device_seconds: of all its own runs on one device.
    seconds: the same on all devices, a run on each at a time.
  """

  name: str
  experiment: str
  runs: int
  shared: int
  training: Training
  measured: MeasuredRound | None
  seconds_of_run: float
  device_seconds: float
  seconds: float


class HoursPlan(NamedTuple):
  """How long the runs of items take.

  Attributes:
    scale: of the items.
    device: 'cpu', or a key of `devices.SHEETS`.
    jobs: number of devices.
    items: in the order in which they are made.
    not_planned: name of an item -> why, a key.
  """

  scale: str
  device: str
  jobs: int
  items: Sequence[ItemHours]
  not_planned: Mapping[str, str]

  @property
  def device_seconds(self) -> float:
    """Of all runs on one device."""
    return sum(x.device_seconds for x in self.items)

  @property
  def seconds(self) -> float:
    """Of all items in sequence, each on all devices."""
    return sum(x.seconds for x in self.items)

  def to_json(self) -> dict[str, Any]:
    """Everything that the plan says, for a file."""
    total = {'device_seconds': self.device_seconds, 'seconds': self.seconds}
    items = [
      x._asdict()
      | {
        'training': x.training._asdict(),
        'basis': _name_basis(x),
        'measured': x.measured and x.measured._asdict(),
      }
      for x in self.items
    ]
    return self._asdict() | {'items': items, 'total': total}

  def __str__(self) -> str:
    return tables.format_text(tables.fold_table(make_table(self)))


def plan_items(
  names: Iterable[str],
  scale: str,
  *,
  jobs: int,
  device: str,
  fields: Mapping[str, Any] | None = None,
) -> HoursPlan:
  """Plans the runs that `epe-jax reproduce` makes for items, in an empty workdir.

  Args:
    names: of `registry.ITEMS`, in the order in which they are made.
    scale: of configs/paper.py.
    jobs: number of devices, >= 1; each has one run at a time.
    device: 'cpu', or a key of `devices.SHEETS`.
    fields: field of a run's config -> its value, in place of that of the scale.

  Raises:
    ValueError: a field is unknown, or has a value that it may not have.
  """
  settings = config_files.load_config(f'paper:{scale}')
  # Lists the same runs as with data, which are not read.
  workspace = Workspace(pathlib.Path(), synthetic=True, fields=fields or {})
  made, known = set[tuple[str, str]](), dict[str, Training]()
  items, not_planned = [], {}
  for name in names:
    item = registry.ITEMS[name]
    if item.list_points is None:
      not_planned[name] = 'no_grid' if item.data else 'no_training'
      continue
    if item.experiment not in settings:
      not_planned[name] = 'other_scale'
      continue
    points = item.list_points(settings[item.experiment], workspace)
    own = [x for x in points if (item.experiment, x.name) not in made]
    made |= {(item.experiment, x.name) for x in own}
    configs = [config_fields.check_config(x.config) for x in own or points]
    trainings = [_describe(config, known) for config in configs]
    times = [_time_run(x, device) for x in trainings]
    of_own = sorted(times, reverse=True) if own else []
    items.append(
      ItemHours(
        name,
        item.experiment,
        runs=len(own),
        shared=len(points) - len(own),
        training=trainings[0],
        measured=training_costs.find_measured(trainings[0], device),
        seconds_of_run=max(times),
        device_seconds=sum(of_own),
        # Of each wave of runs, the longest.
        seconds=sum(of_own[::jobs]),
      )
    )
  return HoursPlan(scale, device, jobs, items, not_planned)


def list_grids(scale: str) -> list[str]:
  """Names of all items of a scale whose runs are a grid, on data of known sizes."""
  settings = config_files.load_config(f'paper:{scale}')
  return [
    name
    for name, item in registry.ITEMS.items()
    if item.list_points is not None
    and item.experiment in settings
    and item.data
  ]


def make_table(plan: HoursPlan) -> tables.Table:
  """A line for each item, and one for all of them."""
  time = plans.format_seconds
  body = [
    [
      x.name,
      f'{x.runs}',
      f'{x.shared}',
      f'{x.training.rounds:,} x {x.training.clients:,} x {x.training.examples:.3g}',
      time(x.seconds_of_run),
      time(x.device_seconds),
      time(x.seconds),
      _name_basis(x),
    ]
    for x in plan.items
  ]
  if len(body) > 1:
    basis = ' and '.join(dict.fromkeys(map(_name_basis, plan.items)))
    total = time(plan.device_seconds), time(plan.seconds)
    runs = sum(x.runs for x in plan.items)
    body.append(['all', f'{runs}', '', '', '', *total, basis])
  devices = f'{plan.jobs} device' + 's' * (plan.jobs > 1)
  head = [*_HEAD, 'all, one device', f'all, {devices}', 'basis']
  name = training_costs.choose_sheet(plan.device).name
  title = f"Training at scale '{plan.scale}' on {name}"
  return tables.Table(title, head, body, list(_list_notes(plan)))


def _list_notes(plan: HoursPlan) -> Iterator[str]:
  for key, words in _REASONS.items():
    if names := [n for n, why in plan.not_planned.items() if why == key]:
      yield f'Not planned, as {words}: {", ".join(names)}.'
  if not plan.items:
    return
  yield (
    'Training alone: starting, loading data, evaluating and auditing take more. Runs '
    'that an earlier item made are shared, and trained once. Items are made one '
    'after the other, with one run at a time on each device.'
  )
  for x in dict.fromkeys(x.measured for x in plan.items if x.measured):
    yield (
      f'Measured: {1e3 * x.seconds_per_example:.2g} ms for each example of '
      f'{x.task}, in rounds of {x.examples:.3g} a client, on {x.machine}, {x.date}.'
    )
  floors = [x for x in plan.items if x.measured is None]
  if floors:
    name = training_costs.choose_sheet(plan.device).name
    yield (
      f'Floor: no run is faster at the peaks of {name}. It is no forecast: programs '
      'reach a part of the peaks, and with small models a small one.'
    )
  yield (
    'Examples: those of a mean client of the public data, or client.max_examples if '
    'that is less. With such a cap the true mean is smaller'
    + (', so that a floor is not strictly one.' if floors else '.')
  )


def _name_basis(hours: ItemHours) -> str:
  return 'measured' if hours.measured else 'floor'


def _describe(config: Config, known: dict[str, Training]) -> Training:
  """The sizes of a run; those of a model are counted once."""
  fields = {k: x for k, x in config.to_dict().items() if k not in _AUDITED}
  key = str(fields)
  if key not in known:
    known[key] = training_sizes.describe_training(config)
  return known[key]


def _time_run(training: Training, device: str) -> float:
  """Seconds of a run: as measured, or its floor."""
  measured = training_costs.find_measured(training, device)
  if measured is None:
    sheet = training_costs.choose_sheet(device)
    return training.rounds * training_costs.compute_floor(training, sheet)
  examples = training.rounds * training.clients * training.examples
  return examples * measured.seconds_per_example
