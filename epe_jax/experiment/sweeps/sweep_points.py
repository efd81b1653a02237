"""The points of a sweep: a grid of configs that differ in a few fields."""

from collections.abc import Iterator, Mapping, Sequence
import copy
import functools
import itertools
import os
from typing import Any, NamedTuple

from epe_jax import io
from epe_jax.experiment.setup import config as config_lib
from epe_jax.experiment.setup.config import Config

# The field of a config that a point with many seeds has beyond those of a run.
NUM_SEEDS = 'num_seeds'


class Point(NamedTuple):
  """One run of a grid."""

  name: str  # Of its folder: the fields that it sets, as field=value.
  # Dotted field -> value, in the order of the axes.
  settings: dict[str, Any]
  config: Config


Axis = tuple[str | Sequence[str], Sequence[Any]]
"""A field and its values; or several fields, and the values of each step."""


def make_grid(base: Config, axes: Sequence[Axis]) -> list[Point]:
  """Combines the values of all axes to points; the last one changes fastest.

  Raises:
    ValueError: base lacks a field of an axis, or has a group there; a value is of
      another type than the field, two axes set the same field, an axis has no values,
      or two points have the same name.

  >>> from ml_collections import config_dict
  >>> base = config_dict.create(noise=0.1, canaries=dict(repetitions=1))
  >>> axes = [('noise', (0.0, 0.1)), ('canaries.repetitions', (1, 2))]
  >>> [point.name for point in make_grid(base, axes)][1:3]
  ['noise=0.0,canaries.repetitions=2', 'noise=0.1,canaries.repetitions=1']
  """
  fields = [
    name
    for names, _ in axes
    for name in ([names] if isinstance(names, str) else names)
  ]
  known = [*io.flatten(base.to_dict())]
  for name in fields:
    if fields.count(name) > 1:
      raise ValueError(f'two axes set {name}; keep one of them.')
    config_lib.check_field(name, known)
    if name not in known:
      below = [field for field in known if field.startswith(f'{name}.')]
      raise ValueError(
        f'axis {name!r} is a group of fields; give one of {", ".join(below)}.'
      )
  points = []
  for values in itertools.product(*(_iterate_steps(axis) for axis in axes)):
    settings = {k: v for step in values for k, v in step.items()}
    config = copy.deepcopy(base)
    for field, value in settings.items():
      _set_field(config, field, value)
    name = ','.join(f'{k}={v}' for k, v in settings.items()) or 'base'
    points.append(Point(name.replace(os.sep, '_'), settings, config))
  names = [point.name for point in points]
  if len(set(names)) < len(names):
    raise ValueError(f'axes={axes!r} make one point twice; give each once.')
  return points


def add_seeds(points: Sequence[Point], num_seeds: int) -> list[Point]:
  """Lets each point be many runs, with the seeds s, s + 1, ..., in one process.

  Raises:
    ValueError: num_seeds is out of range, or a point sets the seed.
  """
  if num_seeds < 1:
    raise ValueError(f'num_seeds={num_seeds}; give 1 or more.')
  if any('seed' in point.settings for point in points):
    raise ValueError(
      'an axis sets the seed, as num_seeds does; give one of them.'
    )
  return [
    point._replace(
      config=config_lib.replace_fields(point.config, **{NUM_SEEDS: num_seeds})
    )
    for point in points
  ]


def split_seeds(config: Config) -> tuple[Config, int | None]:
  """The config of a run, and the number of seeds if its point has many."""
  fields = config.to_dict()
  num_seeds = fields.pop(NUM_SEEDS, None)
  return type(config)(fields), num_seeds


def _iterate_steps(axis: Axis) -> Iterator[Mapping[str, Any]]:
  """Iterates over the settings of the steps along an axis."""
  names, values = axis
  if not values:
    raise ValueError(f'axis {names!r} has no values; give at least one.')
  for value in values:
    if isinstance(names, str):
      yield {names: value}
    elif len(names) == len(value):
      yield dict(zip(names, value))
    else:
      raise ValueError(
        f'axis {tuple(names)} has the step {tuple(value)}; give a value for '
        'each field.'
      )


def _set_field(config: Config, name: str, value: Any) -> None:
  *path, last = name.split('.')
  group = functools.reduce(getattr, path, config)
  try:
    group[last] = value
  except TypeError as error:
    raise ValueError(
      f'axis {name!r} has the value {value!r}, which is of type '
      f'{type(value).__name__}, and not {group.get_type(last).__name__} as '
      f'{name}={group[last]!r} of the config; give values of that type.'
    ) from error
