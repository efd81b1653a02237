"""Writes the figures of result files into the pages that show them.

  python benchmarks/page.py

Replaces what docs/benchmarks.md and docs/frameworks.md have between their markers, by
benchmarks/results/*.json, and draws the figures of the first next to it. Pages show the
beginning of a table; the result file has all of it. A test checks that the committed
pages are what this writes.
"""

from collections.abc import Mapping
import functools
import math
import pathlib
import re
from typing import Any

from absl import app
import drawings
import layout
import targets

from epe_jax import io
from epe_jax.report import tables

_ROOT = pathlib.Path(__file__).parents[1]
RESULTS = _ROOT / 'benchmarks' / 'results'
PAGE = _ROOT / 'docs' / 'benchmarks.md'
FRAMEWORKS = _ROOT / 'docs' / 'frameworks.md'
_FIGURES = _ROOT / 'docs' / 'benchmarks'
_MARK = re.compile(r'<!-- begin (\w+) -->')
# Result file -> figure of its section, and what it shows.
_DRAWN = {
  'canary_kernels': ('kernels.svg', 'Canary kernels'),
  'growth': ('growth.svg', 'Growth'),
}

_ROWS_SHOWN = 6

NOT_MEASURED = 'not measured'
Records = Mapping[str, Mapping[str, Any]]


def read() -> dict[str, Any]:
  """Result files by their stem."""
  return {
    path.stem: io.read_json(path) for path in sorted(RESULTS.glob('*.json'))
  }


def list_sections(text: str) -> list[str]:
  """Result files that docs/benchmarks.md shows."""
  return [x for x in _MARK.findall(text) if x != 'targets']


def page(text: str, records: Records) -> str:
  """docs/benchmarks.md, with its figures replaced.

  Result files without a section are shown in new ones at the end.
  """
  for name in sorted(records.keys() - set(list_sections(text))):
    title = name.replace('_', ' ')
    text += f'\n## {title}\n\n<!-- begin {name} -->\n<!-- end {name} -->\n'
  blocks = {'targets': _reached(records)}
  for name in list_sections(text):
    blocks[name] = _show(name, records.get(name))
  return tables.splice(text, {k: f'\n{x}\n' for k, x in blocks.items()})


def frameworks(text: str, records: Records) -> str:
  """docs/frameworks.md, with the overhead of an auditor replaced."""
  record = records['auditor_overhead']
  machine = record['machine']
  threads = f'{machine["threads"]} thread{"s" * (machine["threads"] > 1)}'
  lines = [
    '',
    f'A round of {record["clients"]} clients in PyTorch with '
    f'{record["canaries"]:,} canaries, on {threads} of {machine["cpu"]} '
    '(`benchmarks/auditor_overhead.py`):',
    '',
    '| work | parameters | round | with an audit | within its calls | their share '
    '| memory, more |',
    '|---|---|---|---|---|---|---|',
  ]
  for work, x in record['works'].items():
    more = x['peak_bytes_audited'] - x['peak_bytes_plain']
    lines.append(
      f'| {work} | {x["parameters"]:,} | {x["seconds_plain"]:.2f} s '
      f'| {x["seconds_audited"]:.2f} s '
      f'| {1000 * x["seconds_of_auditor"]:.0f} ms '
      f'| {100 * x["share_of_auditor"]:.2f} % | {more / 1e6:+.0f} MB |'
    )
  return tables.splice(text, {'overhead': '\n'.join(lines)})


def verdict(target: targets.Target, value: float) -> str:
  """Whether a figure reaches its target, or by how much it misses it.

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
  return [
    target.what,
    f'{sign} {layout.shown(target.at, target.bound)}',
    NOT_MEASURED if value is None else layout.shown(target.at, value),
    '' if value is None else verdict(target, value),
  ]


def _reached(records: Records) -> str:
  body = [_line(target, records) for target in targets.TARGETS]
  missed = sum(line[3].startswith('missed') for line in body)
  absent = sum(line[2] == NOT_MEASURED for line in body)
  table = tables.Table('', ['figure', 'target', 'measured', 'reached'], body)
  return (
    f'{tables.format_markdown(table)}\n\n'
    f'{len(body) - missed - absent} of {len(body)} are met, {missed} missed, '
    f'{absent} not measured.'
  )


def _show(name: str, record: Mapping[str, Any] | None) -> str:
  """The machine, the drawing and the first table of a result file."""
  if record is None:
    return f'{NOT_MEASURED.capitalize()} yet.'
  parts = [_describe_machine(record)]
  if name in _DRAWN:
    file, title = _DRAWN[name]
    parts.append(f'![{title}](benchmarks/{file})')
  rows = targets.ROWS.get(name)
  # The first table that has rows, and the beginning of that.
  first = layout.rows(record, rows) if rows else layout.everything(record)[0]
  shown = first._replace(body=first.body[:_ROWS_SHOWN])
  parts.append(tables.format_markdown(shown))
  parts.append(
    f'All figures: [{name}.json](../benchmarks/results/{name}.json).'
  )
  return '\n\n'.join(parts)


def _describe_machine(record: Mapping[str, Any]) -> str:
  """The machine, versions, date and load of a record."""
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


PAGES = {PAGE: page, FRAMEWORKS: frameworks}
"""Page -> function of its text and the result files that replaces its figures."""


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  records = read()
  _FIGURES.mkdir(exist_ok=True)
  for name, figure in drawings.draw(records).items():
    save = functools.partial(drawings.save, figure)
    io.write_atomically(_FIGURES / name, save)
  for path, fill in PAGES.items():
    io.write_text(path, fill(path.read_text(), records))


if __name__ == '__main__':
  app.run(main)
