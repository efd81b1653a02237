"""Writes the pages of benchmarks from their result files.

  python benchmarks/page.py

docs/benchmarks.md shows benchmarks/results/*.json, the targets first; figures are
drawn beside it. In docs/internet_scale.md the tables between markers are computed
anew. A test checks that both pages are what this writes.
"""

from collections.abc import Mapping
import functools
import math
import pathlib
from typing import Any

from absl import app
import drawings
import layout
import scale
import targets

from epe_jax import io
from epe_jax.text import tables

_ROOT = pathlib.Path(__file__).parents[1]
RESULTS = _ROOT / 'benchmarks' / 'results'
PAGE = _ROOT / 'docs' / 'benchmarks.md'
PLAN = _ROOT / 'docs' / 'internet_scale.md'
_FIGURES = _ROOT / 'docs' / 'benchmarks'

_HEAD = """\
# Benchmarks

Each table is the result of one command, stored in `benchmarks/results`. `python
benchmarks/page.py` writes this page from these files, and `make bench` runs everything.
Next to each figure is its floor, which no program could beat on that machine. Whether a
figure meets its target is computed. Ratios compare programs that were timed in turn
within one session. Figures from a machine with other work (see its load) are less
reliable.

[Internet scale](internet_scale.md) extrapolates the unit costs to a million clients per
round and 10^10 parameters."""

NOT_MEASURED = 'not measured'
Records = Mapping[str, Mapping[str, Any]]


def read() -> dict[str, Any]:
  """Result files by their stem."""
  return {
    path.stem: io.read_json(path) for path in sorted(RESULTS.glob('*.json'))
  }


def page(records: Records) -> str:
  """docs/benchmarks.md, of result files by their stem."""
  parts = [_HEAD, '## Targets', _reached(records)]
  parts += ['## On a GPU', _remote(records)]
  known = set()
  for section in targets.SECTIONS:
    parts += _section(section, records.get(section.file))
    known.add(section.file)
  for name in sorted(records.keys() - known):
    shown = targets.Section(name.replace('_', ' '), name, '', '')
    parts += _section(shown, records[name])
  return '\n\n'.join(part for part in parts if part) + '\n'


def plan(text: str, records: Records) -> str:
  """docs/internet_scale.md, its tables computed anew."""
  return tables.splice(text, scale.blocks(records))


def verdict(target: targets.Target, value: float) -> str:
  """Whether a figure reaches its target, and else by how much it does not.

  >>> met = targets.Target('x', 'f', 'x', 1.2, at_most=False)
  >>> verdict(met, 1.25), verdict(met, 1.1)
  ('met', 'missed by 0.1')
  """
  missing = value - target.bound if target.at_most else target.bound - value
  if math.isnan(value):
    raise ValueError(f'{target.file}: {target.at} is not a number.')
  if missing <= 0:
    return 'met'
  return f'missed by {layout.shown(target.at, missing)}'


def measured(target: targets.Target, records: Records) -> float | None:
  """The figure of a target; None if it was not measured."""
  if target.file not in records:
    return None
  return layout.find(records[target.file], target.at)


def _line(target: targets.Target, records: Records) -> list[str]:
  sign = '≤' if target.at_most else '≥'
  value = measured(target, records)
  floor = target.floor
  if floor.startswith('='):
    found = records.get(target.file)
    floor = (
      layout.shown(floor[1:], layout.find(found, floor[1:])) if found else ''
    )
  return [
    target.what,
    f'{sign} {layout.shown(target.at, target.bound)}',
    NOT_MEASURED if value is None else layout.shown(target.at, value),
    '' if value is None else verdict(target, value),
    floor,
  ]


def _reached(records: Records) -> str:
  body = [_line(target, records) for target in targets.TARGETS]
  head = ['figure', 'target', 'measured', 'reached', 'floor']
  missed = [line for line in body if line[3].startswith('missed')]
  absent = [line for line in body if line[2] == NOT_MEASURED]
  said = f'{len(body) - len(missed) - len(absent)} of {len(body)} are met'
  said += f', {len(missed)} missed, {len(absent)} not measured.'
  why = [
    f'- {target.what}: {target.missed}'
    for target, line in zip(targets.TARGETS, body)
    if line in missed and target.missed
  ]
  if why:
    said += (
      '\n\nWhat was tried for those that are missed, and what limits them:\n\n'
    )
    said += '\n'.join(why)
  return tables.format_markdown(tables.Table('', head, body)) + f'\n\n{said}'


def _remote(records: Records) -> str:
  sheet = targets.costs.H200
  said = (
    f'The floors follow from the data sheet of one {sheet.name}: '
    f'{sheet.float32 / 1e12:g} TFLOP/s in float32 and '
    f'{sheet.bandwidth / 1e12:g} TB/s, whichever takes longer. Its matrix units do '
    f'{sheet.tf32 / 1e12:g} (TF32) and {sheet.bfloat16 / 1e12:g} (bfloat16), '
    'dense. The floors are not measurements. They assume that each local step reads '
    "a client's parameters twice and writes them once, and moves nothing else."
  )
  body, commands = [], []
  for remote in targets.REMOTE:
    line = _line(remote.target, records)
    line[4] = line[4] or remote.time
    body.append(line)
    if line[2] == NOT_MEASURED and remote.command not in commands:
      commands.append(remote.command)
  table = tables.Table(
    '', ['figure', 'target', 'measured', 'reached', 'floor'], body
  )
  parts = [said, tables.format_markdown(table)]
  parts.append(
    'The command has these parts, in this order; `--parts=NAME` runs one of them.'
  )
  parts.append(tables.format_markdown(_remote_parts(records)))
  if commands:
    listed = '\n'.join(map(_broken, commands))
    parts.append(f'To measure what is not measured:\n\n```sh\n{listed}\n```')
  return '\n\n'.join(parts)


def _remote_parts(records: Records) -> tables.Table:
  """The parts of benchmarks/gpu.py, and on what device each was measured."""
  body = []
  for part in targets.REMOTE_PARTS:
    found = records.get(f'gpu_{part.name}')
    state = NOT_MEASURED
    if found is not None and found.get('quick'):
      state = 'small sizes, only to see that it runs'
    elif found is not None:
      state = f'{found["machine"]["device"]}, {found["date"][:10]}'
      if not found['finished']:
        state += ', not to its end'
    body.append([part.name, part.what, part.floor, state])
  return tables.Table('', ['part', 'figures', 'floor', 'measured'], body)


def _broken(command: str) -> str:
  """A command in lines that fit."""
  return command.replace(' && ', '\n').replace(' --', ' \\\n  --')


def _section(
  section: targets.Section, record: Mapping[str, Any] | None
) -> list[str]:
  parts = [f'## {section.title}', section.said]
  if section.command:
    parts.append(f'```sh\n{section.command}\n```')
  if record is None:
    return [*parts, f'{NOT_MEASURED.capitalize()} yet.']
  parts.append(_made(record))
  if section.figure:
    parts.append(f'![{section.title}](benchmarks/{section.figure})')
  shown = [layout.rows(record, rows) for rows in section.rows]
  parts += map(tables.format_markdown, shown or layout.everything(record))
  parts.append(
    f'All figures: [{section.file}.json]'
    f'(../benchmarks/results/{section.file}.json).'
  )
  return parts


def _made(record: Mapping[str, Any]) -> str:
  """The machine, versions, date and load of a record, in a line."""
  machine = dict(record['machine'])
  cpu, cores = machine.pop('cpu', ''), machine.pop('cores', '')
  device = machine.pop('device', None)
  said = [f'{cpu}, {cores} cores' + (f', {device}' if device else '')]
  said.append(', '.join(f'{name} {x}' for name, x in machine.items()))
  said.append(record['date'][:16].replace('T', ' ') + ' UTC')
  for when in ('before', 'after'):
    if f'load_{when}' in record:
      said.append(f'load of the machine {when}: {record[f"load_{when}"]:.2f}')
  if record.get('quick'):
    said.append('**small sizes, only to see that it runs**')
  return '; '.join(filter(None, said)) + '.'


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  records = read()
  _FIGURES.mkdir(exist_ok=True)
  for name, figure in drawings.draw(records).items():
    save = functools.partial(drawings.save, figure)
    io.write_atomically(_FIGURES / name, save)
  pages = {PAGE: page(records), PLAN: plan(PLAN.read_text(), records)}
  for path, text in pages.items():
    io.write_text(path, text)


if __name__ == '__main__':
  app.run(main)
