"""Kills, full disks, flipped bits and bad input: what becomes of the work.

  python benchmarks/faults.py --out=docs/data

kills `epe-jax run`, `sweep` and `data` at random instants by random signals, and one of
several processes of a run, and repeats them, fills the disk below them, flips bits of
every kind of file that is read and in the workdir of a run that goes on, and sets fields
and arguments to values that they may not have. Writes how many trials ended how. Fails if
anything was lost. It takes about two hours on 2 cores; with --folder it goes on where it was
interrupted.
"""

from collections.abc import Callable, Sequence
import functools
import math
import pathlib
from typing import Any

from absl import app, flags
import pandas as pd
from studies import (
  bad_input,
  flipped_bits,
  full_disk,
  kills,
  study,
  trials,
)
from studies.trials import Trial
import tqdm

_KILLS = flags.DEFINE_integer(
  'kills',
  150,
  'Kills of commands that are aimed at; two in three happen before they end.',
  lower_bound=3,
)
_PROCESS_KILLS = flags.DEFINE_integer(
  'process_kills',
  6,
  'Kills of one of several processes that are aimed at; each takes minutes.',
  lower_bound=2,
)
_FLIPS = flags.DEFINE_integer(
  'flips', 200, 'Bits of each kind of file.', lower_bound=1
)
_DISKS = flags.DEFINE_integer(
  'disks', 12, 'Sizes of the disk for each command.', lower_bound=1
)
_FOLDER = flags.DEFINE_string(
  'folder', None, 'Keeps finished parts, so that they need not be repeated.'
)
_OUT = flags.DEFINE_string('out', None, 'Folder of the data file.')

_HEAD = {
  trials.SAME: 'as without it, to the last bit',
  trials.CLOSE: 'to rounding',
  trials.REFUSED: 'an error names what is wrong',
  trials.UNKNOWN: 'not noticed: no digest',
  trials.LOST: 'lost, or silent',
}
# Of these every size is tried, in kB, from next to nothing to more than is needed.
_SMALLEST, _LARGEST = 4, 6000


def list_parts(
  num_kills: int, process_kills: int, flips: int, disks: int
) -> list[study.Simulation]:
  """The parts of the study, each with the trials that it makes."""
  parts: list[study.Simulation] = []

  def add(name: str, measure: Callable[..., list[Trial]], *args) -> None:
    part = functools.partial(measure, *args)
    parts.append(study.Simulation(name, Trial, part))

  add('arguments', bad_input.try_arguments)
  for name in ('digits', 'emnist', 'stackoverflow'):
    add(f'fields of {name}', bad_input.try_config_checks, name)
  for name in flipped_bits.file_formats.FORMATS:
    add(f'bits of {name}', flipped_bits.flip_bits, name, flips)
  add('bits of a workdir', flipped_bits.flip_bits_of_workdir, flips)
  for subject in trials.SUBJECTS:
    for seed in range(math.ceil(num_kills / len(trials.SUBJECTS) / 2)):
      add(f'kills of {subject}, {seed}', kills.kill_in_a_row, subject, seed)
  for seed in range(math.ceil(process_kills / 2)):
    add(f'kills of processes, {seed}', kills.kill_processes, seed)
  if full_disk.can_mount():
    ratio = (_LARGEST / _SMALLEST) ** (1 / max(1, disks - 1))
    for subject in trials.SUBJECTS:
      for i in range(disks):
        size = round(_SMALLEST * ratio**i)
        name = f'disk of {size} kB, {subject}'
        add(name, full_disk.fill_disk, subject, size)
  return parts


def tabulate(rows: Sequence[Trial]) -> pd.DataFrame:
  """Outcomes by fault and by what it befell."""
  outcomes = pd.DataFrame({'trials': 1, **x._asdict()} for x in rows)
  for outcome, head in _HEAD.items():
    outcomes[head] = outcomes.outcome == outcome
  kinds: Any = outcomes.groupby(['fault', 'subject'], sort=False)
  counts = kinds[['trials', *_HEAD.values()]].sum().reset_index()
  return counts.rename(columns={'subject': 'what it befell'})


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  done = study.run_simulations(
    list_parts(_KILLS.value, _PROCESS_KILLS.value, _FLIPS.value, _DISKS.value),
    folder=pathlib.Path(_FOLDER.value) if _FOLDER.value else None,
    progress=functools.partial(tqdm.tqdm, unit='part'),
  )
  rows = [row for some in done for row in some]
  table = tabulate(rows)
  print(table.to_string(index=False))
  lost = [row for row in rows if row.outcome == trials.LOST]
  if _OUT.value:
    table.to_csv(pathlib.Path(_OUT.value) / 'fault_counts.csv', index=False)
  if lost:
    raise SystemExit('\n'.join(map(str, lost)))


if __name__ == '__main__':
  app.run(main)
