"""Profiles: the longest kernels of some work, and the idle time of the device."""

import collections
from collections.abc import Callable, Iterable
import pathlib
import tempfile
from typing import Any

import jax

_LONGEST = 10


def profile(work: Callable[[], Any]) -> dict[str, Any]:
  """Profiles some work, which should be compiled already, and blocks until it is done."""
  options = jax.profiler.ProfileOptions()
  options.python_tracer_level = 0
  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder, profiler_options=options):
      jax.block_until_ready(work())
    traced = max(
      pathlib.Path(folder).rglob('*.xplane.pb'), key=lambda x: x.stat().st_size
    )
    planes = list(jax.profiler.ProfileData.from_file(str(traced)).planes)
    devices = [x for x in planes if x.name.startswith('/device:')]
    return summarize_events(
      (event.name, event.start_ns, event.duration_ns)
      for plane in devices or planes
      for line in _kernel_lines(list(plane.lines))
      for event in line.events
      if event.duration_ns > 0
    )


def summarize_events(
  events: Iterable[tuple[str, float, float]],
) -> dict[str, Any]:
  """The longest kernels, of (name, start, duration) in nanoseconds.

  Kernels of several streams may overlap: the time of each counts, and the device is
  idle only if none runs.

  >>> found = summarize_events([('a', 0, 40), ('b', 20, 30), ('a', 90, 10)])
  >>> found['idle_share'], [k['kernel'] for k in found['longest_kernels']]
  (0.4, ['a', 'b'])
  """
  events = sorted(events, key=lambda event: event[1])
  if not events:
    return {'kernels': 0, 'longest_kernels': []}
  total: dict[str, float] = collections.defaultdict(float)
  calls: dict[str, int] = collections.Counter()
  busy, end = 0.0, events[0][1]
  for name, start, duration in events:
    total[name] += duration
    calls[name] += 1
    busy += max(0.0, start + duration - max(start, end))
    end = max(end, start + duration)
  span = end - events[0][1]
  longest = sorted(total, key=lambda name: -total[name])[:_LONGEST]
  return {
    'kernels': len(events),
    'span_seconds': span / 1e9,
    'idle_share': 1 - busy / span,
    'longest_kernels': [
      {
        'kernel': name[:120],
        'calls': calls[name],
        'seconds': total[name] / 1e9,
        'share': total[name] / sum(total.values()),
      }
      for name in longest
    ],
  }


def _kernel_lines(lines: list[Any]) -> list[Any]:
  """The lines of streams on a GPU, of operations on a TPU, or else all."""
  for begin in ('Stream', 'XLA Ops'):
    if chosen := [line for line in lines if line.name.startswith(begin)]:
      return chosen
  return lines
