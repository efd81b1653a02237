"""What other compilers make of the recorded items.

Items that take hours are not made again where only the compiler changes. Their first
rounds are, by both:

  python scripts/reproduce.py emnist --scale=paper --emnist=emnist_all.sqlite \\
    --field=rounds=10 --workdir=runs/now

The same with the compiler of the recording, in runs/then, and

  python -m papers.agreement --now=runs/now/paper --then=runs/then/paper

writes into the item.json of docs/results how much the cosines of canaries differ.
Items that another JAX made whole, in runs/newest, are compared cell by cell:

  python -m papers.agreement --newest=runs/newest/paper
"""

from collections.abc import Iterator
import pathlib
from typing import Any

from absl import app, flags
import numpy as np

from epe_jax import io
from epe_jax.audit.record import Record
from epe_jax.experiment import finished_runs
from papers import registry

RESULTS = pathlib.Path(__file__).parents[1] / 'docs' / 'results'

MOST = 1e-5
"""What cosines may differ by; those of a canary in no round have σ = d^-1/2 ~ 1e-3."""

_NOW = flags.DEFINE_string('now', None, 'Folder of a scale, by this compiler.')
_THEN = flags.DEFINE_string('then', None, 'The same, by that of the recording.')
_NEWEST = flags.DEFINE_string('newest', None, 'Folder of a scale, whole items.')


def compare_runs(
  now: pathlib.Path, then: pathlib.Path
) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields each item of both folders, and how its runs agree.

  Raises:
    ValueError: the runs of an item are not the same two times, or have no canaries.
  """
  for name, new, old in _pair_items(now, then):
    item = registry.ITEMS[name]
    folders = [folder / 'runs' / item.experiment.name for folder in (now, then)]
    found = [sorted(_find_runs(folder)) for folder in folders]
    if not found[0] or found[0] != found[1]:
      raise ValueError(f'{name} has other runs in {now} and {then}.')
    pairs = [
      [
        finished_runs.load_finished_run(folder / run).record
        for folder in folders
      ]
      for run in found[0]
    ]
    audited = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not audited:
      raise ValueError(f'{name} has no canaries, whose cosines are compared.')
    yield (
      name,
      {
        'jaxlib': [old['versions']['jaxlib'], new['versions']['jaxlib']],
        'command': new['command'],
        'rounds': min(a.num_rounds for a, _ in audited),
        'runs': len(audited),
        'difference': max(find_difference(a, b) for a, b in audited),
      },
    )


def find_difference(record: Record, other: Record) -> float:
  """The largest difference of a cosine between two records of one run.

  A residual without noise is rounding alone, and is left out.
  """
  assert record.cosines.keys() == other.cosines.keys()
  return max(
    float(np.abs(np.asarray(values) - other.cosines[name]).max())
    for name, values in record.cosines.items()
    if name != 'residual' or record.noise_multiplier
  )


def _pair_items(
  now: pathlib.Path, then: pathlib.Path
) -> Iterator[tuple[str, Any, Any]]:
  """Yields the name of each item of both folders, and what both have of it.

  Raises:
    ValueError: an item was made by two commands.
  """
  for name in registry.ITEMS:
    paths = [
      folder / registry.folder_of(name) / 'item.json' for folder in (now, then)
    ]
    if all(path.is_file() for path in paths):
      new, old = map(io.read_json, paths)
      if new['command'] != old['command']:
        raise ValueError(
          f'{name} was made by {new["command"]!r} in {now}, but by '
          f'{old["command"]!r} in {then}; give the same options.'
        )
      yield name, new, old


def _find_runs(folder: pathlib.Path) -> Iterator[str]:
  for path in folder.rglob('result.json'):
    yield str(path.parent.relative_to(folder))


def compare_tables(
  folder: pathlib.Path, results: pathlib.Path
) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields each item of both folders, and how many cells of its tables differ.

  Raises:
    ValueError: an item was made by another command, or has other rows.
  """
  for name, new, old in _pair_items(folder, results):
    cells, recorded = _list_cells(new), _list_cells(old)
    if len(cells) != len(recorded):
      raise ValueError(f'{name} has other rows than the recorded item.')
    yield (
      name,
      {
        'versions': {
          k: new['versions'][k] for k in ('python', 'jax', 'jaxlib')
        },
        'cells': len(cells),
        'differ': sum(a != b for a, b in zip(cells, recorded)),
      },
    )


def _list_cells(item: Any) -> list[str]:
  return [
    cell for table in item['tables'] for row in table['body'] for cell in row
  ]


def main(argv: list[str]) -> None:
  """Compares, and writes into docs/results."""
  now, then, newest = _NOW.value, _THEN.value, _NEWEST.value
  if newest and not (now or then or argv[1:]):
    key, found = 'repeated', compare_tables(pathlib.Path(newest), RESULTS)
  elif now and then and not (newest or argv[1:]):
    key = 'agreement'
    found = compare_runs(pathlib.Path(now), pathlib.Path(then))
  else:
    raise app.UsageError('Give --now and --then, or --newest alone.')
  for name, compared in found:
    print(name, compared)
    path = RESULTS / registry.folder_of(name) / 'item.json'
    io.write_json(path, {**io.read_json(path), key: compared})


if __name__ == '__main__':
  app.run(main)
