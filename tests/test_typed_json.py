"""What is written and read is what it was, by the types of its fields."""

import dataclasses
import enum
import json
from typing import Any, Literal, NamedTuple

from jaxtyping import Float, Int
import numpy as np
import pytest

from epe_jax import typed_json


class Color(enum.StrEnum):
  RED = 'red'


class Square(NamedTuple):
  side: float


class Ellipse(NamedTuple):
  axes: tuple[float, float]
  color: Color | None = None


@dataclasses.dataclass(frozen=True)
class Drawing:
  shape: Square | Ellipse | None
  kind: Literal['sketch', 'painting']
  values: dict[str, float | int | str | list[str]]
  counts: Int[np.ndarray, ' n']
  many: float | Float[np.ndarray, ' n']
  anything: Any = None


def read(value):
  plain = json.loads(json.dumps(typed_json.to_plain(value)))
  return typed_json.from_plain(type(value), plain)


@pytest.mark.parametrize(
  'shape', [None, Square(2.0), Ellipse((1.0, np.inf), Color.RED)]
)
@pytest.mark.parametrize('many', [0.5, np.array([0.5, np.nan])])
def test_what_is_read_is_what_was_written(shape, many):
  values: dict[str, Any] = {'x': 1.5, 'n': 3, 'key': 'inf', 'keys': ['a']}
  drawing = Drawing(shape, 'sketch', values, np.arange(3), many, {'a': [1]})
  found = read(drawing)
  np.testing.assert_array_equal(found.many, many)
  assert type(found.many) is type(many)
  np.testing.assert_array_equal(found.counts, drawing.counts, strict=True)
  assert found.shape == shape
  assert found.values == values
  assert type(found.values['n']) is int
  assert found.anything == drawing.anything


@pytest.mark.parametrize(
  ('kind', 'value', 'error'),
  [
    (Square, {}, KeyError),
    (Square, {'side': 'wide'}, ValueError),
    (Ellipse, {'axes': [1.0], 'color': None}, ValueError),
    (Ellipse, {'axes': [1.0, 2.0], 'color': 'blue'}, ValueError),
    (int, 1.5, TypeError),
    (int, True, TypeError),
    (str, 1, TypeError),
    (bool, 1, TypeError),
    (Literal['sketch'], 'painting', ValueError),
  ],
)
def test_what_is_of_another_type_is_refused(kind, value, error):
  with pytest.raises(error):
    typed_json.from_plain(kind, value)


def test_hooks_stand_in_for_types():
  hooks = {Color: lambda color: 1}
  assert typed_json.to_plain([Color.RED], hooks) == [1]
  back = {Color: lambda number: Color.RED}
  assert typed_json.from_plain(tuple[Color, ...], [1], back) == (Color.RED,)
