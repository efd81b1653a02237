"""What a compiled program computes and sends, with its loops counted as often as they turn.

XLA's own analysis counts the body of a loop once. So each computation with a loop or a
choice in it is analyzed by itself, and what it repeats counts as often as its condition
says, or its caller where that follows from numbers.
"""

import collections
from collections.abc import Callable, Iterator, Mapping
import functools
import re
from typing import Any, NamedTuple

import jax

# Nothing public analyzes a part of a program.
from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]
import numpy as np

_PROPERTIES = 'flops', 'bytes accessed'
_NAME = r'%?([\w.\-]+)'
_HEAD = re.compile(rf'^(?:ENTRY )?{_NAME} .*\{{$')
_BODY = re.compile(rf' while\(.*body={_NAME}')
_CONDITION = re.compile(rf'condition={_NAME}')
_BRANCHES = re.compile(
  r'branch_computations=\{([^}]*)\}|'
  rf'true_computation={_NAME}, false_computation={_NAME}'
)
_CALL = re.compile(rf' call\(.*to_apply={_NAME}')
_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_BOUND = re.compile(r'= s32\[\]\S* constant\((\d+)\)')
_SENT = re.compile(
  r'= (.*?) (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)'
  r'(?:-start)?\('
)
_SHAPE = re.compile(r'\b([a-z]+)(\d*)\w*\[([\d,]*)\]')


class Costs(NamedTuple):
  """Of a program, on each device.

  Attributes:
    flops: by XLA's count, in which a product of any precision is one.
    bytes_accessed: that its instructions read and write, in whichever memory.
    collectives: kind -> (how often, bytes of all results).
  """

  flops: float
  bytes_accessed: float
  collectives: Mapping[str, tuple[float, float]]


def count_costs(text: str, *, steps: float, most: bool = False) -> Costs:
  """Counts the costs of a program.

  Args:
    text: of the compiled program.
    steps: how often a loop turns whose condition compares two numbers that are
      computed; of such loops within each other the second, as over the batches of a
      client, and the others turn once.
    most: whether of a choice the branch counts that costs most; otherwise it is
      the one that costs least, as in a round that scores nothing.
  """
  return _Program(text, steps, np.max if most else np.min).count()


class _Program:
  """A program by its computations, each a list of lines."""

  def __init__(self, text: str, steps: float, choose: Callable[..., Any]):
    self._steps, self._choose = steps, choose
    self._lines: dict[str, list[str]] = {}
    self._entry, block = '', []
    # Frames are listed in the first lines, which are left out.
    for line in re.sub(r' ?stack_frame_id=\d+', '', text).splitlines():
      if head := _HEAD.match(line):
        block = self._lines[head[1]] = []
        if line.startswith('ENTRY'):
          self._entry = head[1]
      # A schedule and layouts in the first line are of the whole program.
      if not line.startswith('HloModule'):
        block.append(line)

  def count(self) -> Costs:
    flops, accessed, collectives = self._count(self._entry, 0)
    return Costs(flops, accessed, collectives)

  @functools.cache  # noqa: B019
  def _count(
    self, name: str, depth: int
  ) -> tuple[float, float, dict[str, tuple]]:
    """What a computation costs within so many loops that turn as numbers say."""
    total = np.array(self._analyze(name))
    sent: dict[tuple[str, int], float] = collections.defaultdict(float)
    for kind, size in self._list_sent(name):
      sent[kind, 0] += 1
      sent[kind, 1] += size

    def add(parts: list[str], times: float, depth: int) -> None:
      nonlocal total
      counted = [self._count(x, depth) for x in parts]
      # Of a choice XLA counts what costs most.
      total -= np.max([self._analyze(x) for x in parts], axis=0)
      total += times * self._choose([x[:2] for x in counted], axis=0)
      for kind in {kind for x in counted for kind in x[2]}:
        each = [x[2].get(kind, (0, 0)) for x in counted]
        for i, chosen in enumerate(self._choose(each, axis=0)):
          sent[kind, i] += times * chosen

    for line in self._lines[name]:
      if parts := self._list_parts(line):
        within = depth + self._is_open(line)
        add(parts, self._count_turns(line, depth), within)
    kinds = sorted({kind for kind, _ in sent})
    return *total.tolist(), {
      kind: (float(sent[kind, 0]), float(sent[kind, 1]))
      for kind in kinds
      if sent[kind, 0]
    }

  def _list_parts(self, line: str) -> list[str]:
    """The computations that an instruction repeats, calls or chooses from."""
    if found := _BODY.search(line) or _CALL.search(line):
      return [found[1]]
    if found := _BRANCHES.search(line):
      return re.findall(_NAME, ' '.join(x or '' for x in found.groups()))
    return []

  def _count_turns(self, line: str, depth: int) -> float:
    if not self._is_open(line):
      known = _KNOWN.search(line) or self._find_bound(line)
      return float(known[1]) if known else 1.0
    (body,) = self._list_parts(line)
    is_outer = depth == 0 and self._has_open_loop(body)
    return 1.0 if is_outer or depth > 1 else self._steps

  def _find_bound(self, line: str) -> re.Match[str] | None:
    """The number up to which a loop counts, by its condition."""
    condition = _CONDITION.search(line)
    if condition is None:
      return None
    lines = self._lines[condition[1]]
    found = [x for x in map(_BOUND.search, lines) if x]
    return found[0] if len(found) == 1 else None

  def _is_open(self, line: str) -> bool:
    """Whether it is a loop whose turns follow from numbers."""
    is_loop = _BODY.search(line) is not None
    return is_loop and not (_KNOWN.search(line) or self._find_bound(line))

  def _has_open_loop(self, name: str) -> bool:
    return any(
      self._is_open(line) or any(map(self._has_open_loop, parts))
      for line in self._lines[name]
      if (parts := self._list_parts(line))
    )

  @functools.cache  # noqa: B019
  def _analyze(self, name: str) -> tuple[float, ...]:
    """What XLA counts of a computation, as a program of its own."""
    module = _jax.hlo_module_from_text(self._cut(name))
    client = jax.devices('cpu')[0].client
    found = _jax.hlo_module_cost_analysis(client, module)
    return tuple(float(found.get(key, 0.0)) for key in _PROPERTIES)

  def _cut(self, name: str) -> str:
    """The text of a computation and of all that it uses."""
    used, waiting = {name}, [name]
    while waiting:
      named = re.findall(
        rf'%{_NAME}', '\n'.join(self._lines[waiting.pop()][1:])
      )
      new = (set(named) & self._lines.keys()) - used
      used |= new
      waiting += new
    # Those that others use come first.
    blocks = []
    for of, lines in self._lines.items():
      if of in used:
        head = lines[0].removeprefix('ENTRY ')
        blocks += ['ENTRY ' + head if of == name else head, *lines[1:], '']
    return '\n'.join(['HloModule part', '', *blocks])

  def _list_sent(self, name: str) -> Iterator[tuple[str, float]]:
    for line in self._lines[name]:
      if sent := _SENT.search(line):
        yield sent[2], sum(map(_count_bytes, _SHAPE.findall(sent[1])))


def _count_bytes(shape: tuple[str, str, str]) -> float:
  _, bits, dims = shape
  return float(
    np.prod([int(n) for n in dims.split(',') if n]) * int(bits or 8) / 8
  )
