"""Values as JSON keeps them, and back by the types of their fields."""

import collections.abc
from collections.abc import Callable, Mapping
import dataclasses
import enum
import functools
import types
import typing
from typing import Any

import numpy as np

Hooks = Mapping[type, Callable[[Any], Any]]
"""Type -> what to do with its values in place of this module."""

_NO_HOOKS: Hooks = types.MappingProxyType({})


def to_plain(value: Any, hooks: Hooks = _NO_HOOKS) -> Any:
  """Dicts, lists, strings and numbers; some numbers may not be finite.

  Args:
    value: a dataclass, a NamedTuple, an enumeration, an array, or of such.
    hooks: by type.

  >>> class Point(typing.NamedTuple):
  ...   at: tuple[float, ...]
  >>> to_plain({'first': Point((0.5, 1.0))})
  {'first': {'at': [0.5, 1.0]}}
  """
  if type(value) in hooks:
    return hooks[type(value)](value)
  if _is_record(value):
    value = {name: getattr(value, name) for name in _name_fields(value)}
  match value:
    case enum.Enum():
      return value.value
    case np.ndarray() | np.generic():
      return value.tolist()
    case Mapping():
      return {name: to_plain(x, hooks) for name, x in value.items()}
    case tuple() | list():
      return [to_plain(x, hooks) for x in value]
    case _:
      return value


def from_plain(kind: Any, value: Any, hooks: Hooks = _NO_HOOKS) -> Any:
  """The value of a type that `to_plain` made, which may have more fields.

  Args:
    kind: the type. In a union of types with fields, the first that has all of them is
      taken.
    value: numbers that are not finite may be strings.
    hooks: by type.

  Raises:
    KeyError: a field is missing.
    TypeError: a value is of another type.
    ValueError: a value is none of a literal or an enumeration.

  >>> from_plain(tuple[float, ...], [1, 'inf'])
  (1.0, inf)
  """
  if kind in hooks:
    return hooks[kind](value)
  origin, arguments = typing.get_origin(kind), typing.get_args(kind)
  if origin in (typing.Union, types.UnionType):
    if value is None and type(None) in arguments:
      return None
    return from_plain(_choose(arguments, value), value, hooks)
  if origin is typing.Literal:
    if value not in arguments:
      raise ValueError(f'{value!r} is none of {arguments}')
    return value
  if origin is tuple:
    if arguments[-1] is ...:
      arguments = arguments[:1] * len(value)
    pairs = zip(arguments, value, strict=True)
    return tuple(from_plain(x, y, hooks) for x, y in pairs)
  if origin in (list, collections.abc.Sequence):
    return [from_plain(arguments[0], x, hooks) for x in value]
  if origin in (dict, collections.abc.Mapping):
    _, of_values = arguments
    return {name: from_plain(of_values, x, hooks) for name, x in value.items()}
  if _is_record(kind):
    hints = _find_hints(kind)
    return kind(
      **{
        name: from_plain(hints[name], value[name], hooks)
        for name in _name_fields(kind)
      }
    )
  if dtypes := _name_dtypes(kind):
    return np.array(value, int if 'int64' in dtypes else float)
  if kind is Any:
    return value
  if issubclass(kind, (float, enum.Enum)):
    return kind(value)
  if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
    raise TypeError(f'{value!r} is not of the type {kind.__name__}')
  return value


# Evaluated once, as there are many values of few types.
_find_hints = functools.cache(typing.get_type_hints)


def _choose(kinds: tuple[Any, ...], value: Any) -> Any:
  """The type of a union that a value is of: its own, or the first it can be of."""
  if type(value) in kinds:
    return type(value)

  def can_be(kind: Any) -> bool:
    if isinstance(value, dict):
      return _is_record(kind) and value.keys() >= set(_name_fields(kind))
    is_list = bool(typing.get_origin(kind) or _name_dtypes(kind))
    return is_list == isinstance(value, list)

  kinds = tuple(kind for kind in kinds if kind is not type(None))
  return next((kind for kind in kinds if can_be(kind)), kinds[0])


def _name_dtypes(kind: Any) -> Any:
  """The dtypes of an annotation of jaxtyping."""
  return getattr(kind, 'dtypes', ())


def _is_record(value: Any) -> bool:
  return dataclasses.is_dataclass(value) or hasattr(value, '_fields')


def _name_fields(value: Any) -> tuple[str, ...]:
  if hasattr(value, '_fields'):
    return value._fields
  return tuple(field.name for field in dataclasses.fields(value))
