"""Models of any framework as vectors in pieces, without copies.

A model is an array, or a list, tuple or mapping of models: NumPy arrays, PyTorch or
JAX arrays, state dicts, parameters in a tree. Its vector has the entries of mappings
in the order of their keys, as JAX flattens dicts, so that it does not depend on the
order in which a framework lists them. PyTorch's state dicts are OrderedDicts, so these
are sorted too; JAX keeps their order.
"""

import collections
from collections.abc import Mapping
import functools
import itertools
import re
import sys
from typing import Any

import numpy as np

from epe_jax.auditor.host_canaries.base import Pieces

RULE = (
  'dim counts every floating-point number that a round releases: running statistics '
  'of batch normalization where they are released, integer counters never'
)

_STATISTICS = re.compile(
  'running_(mean|var)|moving_(mean|variance)|batch_stats'
)


def flatten(model: Any, name: str = 'model') -> dict[str, np.ndarray]:
  """Returns the arrays of a model by name, in the order of its vector.

  Memory is shared if the framework allows it, as NumPy and PyTorch on the CPU do; a
  copy is read-only.

  Args:
    model: arrays, nested.
    name: of the model, for errors.

  Raises:
    ValueError: an array has no floating-point numbers or is empty, a leaf is not an
      array, or a PyTorch tensor occurs twice.
  """
  arrays: dict[str, np.ndarray] = {}
  addresses: dict[tuple[int, int], str] = {}
  for key, leaf in _list_leaves(model, name):
    arrays[key] = _view(leaf, key)
    if _is_torch(leaf):
      address = leaf.data_ptr(), leaf.numel()
      if (first := addresses.setdefault(address, key)) != key:
        raise ValueError(
          f'{key} and {first} are one tensor; give tied parameters once.'
        )
  return arrays


def _list_leaves(model: Any, name: str) -> list[tuple[str, Any]]:
  if isinstance(model, Mapping):
    parts = [(f'{name}[{key!r}]', model[key]) for key in _sort_keys(model)]
  elif isinstance(model, list | tuple):
    parts = [(f'{name}[{i}]', x) for i, x in enumerate(model)]
  else:
    return [(name, model)]
  return [leaf for path, x in parts for leaf in _list_leaves(x, path)]


def _sort_keys(model: Mapping[Any, Any]) -> list[Any]:
  try:
    return sorted(model)
  except TypeError:  # Of several types, which JAX refuses.
    return sorted(model, key=str)


def view_writable(arrays: Mapping[str, np.ndarray]) -> Pieces:
  """Returns what `flatten` returned as a vector in pieces, to be written to.

  Raises:
    ValueError: an array is not contiguous or cannot be written, such as one of
      JAX or on a GPU.
  """
  for key, array in arrays.items():
    is_shared = array.flags.c_contiguous and array.flags.writeable
    if not is_shared or array.dtype not in (np.float32, np.float64):
      raise ValueError(
        f'{key} cannot be added to in place; give contiguous float32 or float64 '
        'arrays in memory of the host, or call `injection` and add it yourself.'
      )
  return [x.reshape(-1) for x in arrays.values()]


def unflatten(pieces: Pieces, like: Any) -> Any:
  """Returns a vector in the structure, shapes and array types of a model.

  Args:
    pieces: of the lengths of the arrays of `like`, in the order of `flatten`.
    like: the model.
  """
  remaining = iter(pieces)

  def build(node: Any) -> Any:
    if isinstance(node, Mapping):
      built = {key: build(node[key]) for key in _sort_keys(node)}
      # A dict, an OrderedDict or the like, in the order of the model.
      make: Any = type(node)
      if isinstance(node, collections.defaultdict):
        make = functools.partial(make, node.default_factory)
      return make((key, built[key]) for key in node)
    if isinstance(node, list | tuple):
      parts = [build(x) for x in node]
      is_named = hasattr(node, '_fields')
      return type(node)(*parts) if is_named else type(node)(parts)
    piece = next(remaining).reshape(np.shape(node))
    if _is_torch(node):
      return _make_tensor(piece, node)
    jax = sys.modules.get('jax')
    if jax is not None and isinstance(node, jax.Array):
      return jax.numpy.asarray(piece, node.dtype)
    return piece

  return build(like)


def add(model: Any, update: Any) -> Any:
  """Returns the sum of two models of one structure, which are not changed."""
  pairs = zip(flatten(model).values(), flatten(update).values())
  return unflatten([(x + y).reshape(-1) for x, y in pairs], model)


def describe_difference(name: str, sizes: Mapping[str, int], dim: int) -> str:
  """Says that arrays have not `dim` numbers; statistics if these are the difference.

  Args:
    name: of the model.
    sizes: the size of each array, by name.
    dim: d of the audit, another number than that of the arrays.

  >>> sizes = {'weight': 100, 'running_mean': 10, 'running_var': 10}
  >>> describe_difference('like', sizes, 100)[35:90]
  'The difference is running_mean (10), running_var (10). '
  """
  excess = sum(sizes.values()) - dim
  shown = {n: x for n, x in sizes.items() if _STATISTICS.search(n)}
  what = 'The difference is'
  if sum(shown.values()) != excess:
    shown = dict(itertools.islice(sizes.items(), 8))
    what = 'Its arrays begin with'
  arrays = ', '.join(f'{n} ({x:,})' for n, x in shown.items())
  return (
    f'{name} has {sum(sizes.values()):,} numbers, but dim={dim:,}. {what} {arrays}. '
    f'Leave dim out where it is read, or set it: {RULE}.'
  )


def _make_tensor(piece: np.ndarray, like: Any) -> Any:
  torch = sys.modules['torch']
  tensor = torch.from_numpy(piece).to(like.device, like.dtype)
  if tensor.itemsize < 4 and not bool(torch.isfinite(tensor).all()):
    raise ValueError(
      f'canaries of a norm this large overflow {like.dtype}; lower clip_norm, or '
      'add them in float32.'
    )
  return tensor


def _view(leaf: Any, name: str) -> np.ndarray:
  if _is_torch(leaf):
    tensor = leaf.detach().cpu()
    # NumPy has no bfloat16; float32 holds it exactly.
    array = (tensor.float() if leaf.itemsize < 4 else tensor).numpy()
    if leaf.device.type != 'cpu' or leaf.itemsize < 4:
      array.flags.writeable = False
  else:
    if isinstance(leaf, int | float) or not hasattr(leaf, '__array__'):
      raise ValueError(
        f'{name} is a {type(leaf).__name__} and no array; give arrays, or lists, '
        'tuples and mappings of them, such as a state dict.'
      )
    array = np.asarray(leaf)
    if array.dtype.name == 'bfloat16':
      array = array.astype(np.float32)
      array.flags.writeable = False
  if array.size == 0:
    raise ValueError(
      f'{name} has no numbers; give some, or leave it out: {RULE}.'
    )
  if not np.issubdtype(array.dtype, np.floating):
    raise ValueError(
      f'{name} has {array.size} numbers of type {array.dtype}; give '
      f'{name}.astype(float), or if it is not part of what is released, leave it out: '
      f'{RULE}.'
    )
  return array


def _is_torch(leaf: Any) -> bool:
  torch = sys.modules.get('torch')
  return torch is not None and isinstance(leaf, torch.Tensor)
