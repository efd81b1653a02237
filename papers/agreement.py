"""Compares the runs of items under two compilers, for items that take hours.

  python scripts/reproduce.py emnist --scale=paper --emnist=emnist_all.sqlite \\
    --field=rounds=10 --workdir=runs/now

The same with the compiler that recorded the item, in runs/then, and

  python -m papers.agreement --now=runs/now/paper --then=runs/then/paper

writes into the item.json of docs/results how much the cosines of canaries differ.
"""

from collections.abc import Iterator
import pathlib
import sys

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


def compare_folders(
  now: pathlib.Path, then: pathlib.Path
) -> Iterator[tuple[str, dict[str, object]]]:
  """Yields each item of both folders, and how its runs agree.

  Raises:
    ValueError: the runs of an item are not the same two times, or have no canaries.
  """
  for name, item in registry.ITEMS.items():
    at = pathlib.Path(registry.folder_of(name), 'item.json')
    if not ((now / at).is_file() and (then / at).is_file()):
      continue
    new, old = io.read_json(now / at), io.read_json(then / at)
    if new['command'] != old['command']:
      raise ValueError(
        f'{name} was made by other commands; repeat one of them.'
      )
    folders = [folder / 'runs' / item.experiment.name for folder in (now, then)]
    found = [sorted(_find_runs(folder)) for folder in folders]
    if not found[0] or found[0] != found[1]:
      raise ValueError(f'{name} has other runs in {now} and {then}.')
    pairs = [
      [_load_record(folder / run) for folder in folders] for run in found[0]
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
  """The largest difference of a cosine between two records of one run."""
  assert record.cosines.keys() == other.cosines.keys()
  return max(
    float(np.abs(np.asarray(values) - other.cosines[name]).max())
    for name, values in record.cosines.items()
  )


def _find_runs(folder: pathlib.Path) -> Iterator[str]:
  for path in folder.rglob('result.json'):
    yield str(path.parent.relative_to(folder))


def _load_record(workdir: pathlib.Path) -> Record | None:
  return finished_runs.load_finished_run(workdir).record


def main(argv: list[str]) -> None:
  """Compares, and writes into docs/results."""
  if len(argv) > 1 or not (_NOW.value and _THEN.value):
    raise app.UsageError('Give --now and --then, and nothing else.')
  for name, agreement in compare_folders(
    pathlib.Path(_NOW.value), pathlib.Path(_THEN.value)
  ):
    print(name, agreement)
    path = RESULTS / registry.folder_of(name) / 'item.json'
    if not path.is_file():
      print(f'{name} has no page.', file=sys.stderr)
      continue
    io.write_json(path, {**io.read_json(path), 'agreement': agreement})


if __name__ == '__main__':
  app.run(main)
