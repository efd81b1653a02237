"""Writes recorded figures into the pages that show them, between their markers.

  python -m benchmarks.pages

Pages show a part of docs/data, and of benchmarks/results what tables.yaml asks for and
whether targets.csv is reached; one result is drawn. A test checks that the committed
pages are what this writes.
"""

from collections.abc import Callable
import pathlib
import re
from typing import Any, TypeAlias

from absl import app
import matplotlib as mpl
from matplotlib import figure, ticker
import pandas as pd
import yaml

from epe_jax import conformance, io
from epe_jax.epsilon import threshold
from epe_jax.report import tables
from epe_jax.report.figures import style
from papers import origins

_HERE = pathlib.Path(__file__).parent
DOCS = _HERE.parent / 'docs'
RESULTS = _HERE / 'results'
TABLES = yaml.safe_load((_HERE / 'tables.yaml').read_text('utf-8'))
TARGETS: Any = pd.read_csv(_HERE / 'targets.csv', keep_default_na=False)
# So many rows of a result file, and so many estimators.
_ROWS_SHOWN, _BEST_SHOWN = 6, 12
_BEST = ['estimator', 'of', 'assumes', 'exceeds', 'Gaussian', 'runs', 'score']
# Of the study of coverage: tables by how their titles begin, and bounds by the null law
# that they know.
_SHOWN_TABLES = (
  '500 + 500 canaries',
  'sphere, d = 1,024',
  'hadamard, d = 1,024',
)
_SHOWN_BOUNDS = {
  'exact': ('eps_lo', 'clopper_pearson_bonferroni', 'gaussian_lower_bound'),
  'empirical': ('eps_lo', 'rank_test', 'gdp_rank_test', 'gaussian_lower_bound'),
  'coins': ('one_run', 'one_run_gdp', 'one_run_independent_gdp'),
}
# What the page says of the rate of false alarms, if the number of checks suffices.
_RATE = 3e-3
_COLORS = {
  'hadamard': style.VERMILLION,
  'hadamard2': style.ORANGE,
  'sphere': style.BLUE,
  'jax.random': style.PURPLE,
  'stored': style.SKY,
  '|x|^2': style.BLACK,
}
_DRAWN = 'canary_kernels'
NOT_MEASURED = 'not measured'
# The block that says what made the data files of a page, and these.
_MADE = 'made'
_FILES = {
  'conformance': [
    'conformance_alarms',
    'conformance_power',
    'conformance_bugs',
  ],
  'coverage': ['coverage', 'conditions', 'simulated_reports', 'leaderboard'],
  'promises': ['fault_counts', 'soak'],
}
# A pandas.DataFrame, whose methods return unions to pyright.
Frame: TypeAlias = Any


def read_record(name: str) -> dict[str, Any] | None:
  """A result file by its stem; None if it was not measured."""
  path = RESULTS / f'{name}.json'
  return io.read_json(path) if path.exists() else None


def read_data(name: str) -> Frame:
  """A file of docs/data, its cells as they stand there."""
  path = DOCS / 'data' / f'{name}.csv'
  return pd.read_csv(path, dtype=str, keep_default_na=False)


def format_table(frame: Frame) -> str:
  """A table in Markdown, of cells that are text."""
  rows = frame.to_numpy().tolist()
  return tables.format_markdown(tables.Table('', [*frame.columns], rows))


def format_figure(path: str, value: Any) -> str:
  """A figure for people; its unit is in the name, as seconds or bytes.

  >>> format_figure('seconds/best', 0.0123), format_figure('peak_bytes', 2_500_000)
  ('12.3 ms', '2.5 MB')
  >>> format_figure('dim', 4050748), format_figure('ratio', 1.23456)
  ('4,050,748', '1.23')
  >>> format_figure('ratio', 1.00512), format_figure('x', None)
  ('1.005', '-')
  """
  if isinstance(value, str):
    return value
  if pd.isna(value):
    return '-'
  for name, unit in (('seconds', 's'), ('bytes', 'B')):
    if name in path and '_per_' not in path:
      return ticker.EngFormatter(unit)(float(f'{value:.3g}'))
  if (value == int(value) or abs(value) > 1000) and abs(value) < 1e9:
    return f'{value:,.0f}'
  # Of a ratio to what it should be like, it is the difference that counts.
  return f'{value:.3f}' if 0.9 < value < 1.1 else f'{value:.3g}'


def list_rows(
  record: dict[str, Any], rows: str, within: str = '', where: str = ''
) -> Frame:
  """Rows of a result file, which has them in a list or by their keys.

  Args:
    record: of the file.
    rows: its key; empty if the file itself is the one row.
    within: key of a list in each row, whose elements are the rows instead.
    where: which rows, as `pandas.DataFrame.query` reads it.
  """
  found = record[rows] if rows else [record]
  if isinstance(found, dict):
    found = [{'key': key, **row} for key, row in found.items()]
  meta = [key for key in found[0] if key != within] if within else None
  frame = pd.json_normalize(
    found, within or None, meta, sep='/', meta_prefix='row/'
  )
  return frame.query(where) if where else frame


def show_record(name: str) -> str:
  """The targets; or the machine, drawing and table of a result file."""
  if name == 'targets':
    return _show_targets()
  record = read_record(name)
  if record is None:
    return f'{NOT_MEASURED.capitalize()} yet.'
  machine = dict(record['machine'])
  cpu, cores = machine.pop('cpu'), machine.pop('cores')
  said = [
    f'{cpu}, {cores} cores',
    *(f'{k} {format_figure(k, v)}' for k, v in machine.items()),
  ]
  said.append(f'{record["date"][:16].replace("T", " ")} UTC')
  for when in ('load_before', 'load_after'):
    if when in record:
      said.append(f'{when.replace("_", " ")} {record[when]:.2f}')
  if record.get('quick'):
    said.append('**small sizes, only to see that it runs**')
  parts = [', '.join(said) + '.']
  if name == _DRAWN:
    parts.append(f'![canary kernels](benchmarks/{name}.svg)')
  asked = dict(TABLES[name])
  parts.append(f'**{asked.pop("title").format(**record)}**')
  columns, shown = asked.pop('columns'), asked.pop('shown', _ROWS_SHOWN)
  frame, table = list_rows(record, **asked)[:shown], {}
  for head, path in columns.items():
    path, _, unit = path.partition(' as ')
    values = frame[path] if path in frame else [None] * len(frame)
    table[head] = [format_figure(unit or path, x) for x in values]
  parts.append(format_table(pd.DataFrame(table)))
  parts.append(
    f'All figures: [{name}.json](../benchmarks/results/{name}.json).'
  )
  return '\n\n'.join(parts)


def measure(target: Any) -> float | None:
  """The figure of a target; None if it was not measured.

  Args:
    target: a row of `TARGETS`.

  Raises:
    KeyError: the result file has no such figure.
  """
  record = read_record(target.file)
  if record is None:
    return None
  return list_rows(record, target.rows, '', target.where)[target.at].item()


def judge(target: Any, value: float | None) -> str:
  """Whether a figure reaches its target, or by how much it misses it."""
  if value is None:
    return NOT_MEASURED
  missing = (value - target.bound) * (1 if target.sign == '≤' else -1)
  if missing <= 0:
    return 'met'
  return f'missed by {format_figure(target.at, missing)}'


def _show_targets() -> str:
  rows = []
  for target in TARGETS.itertuples():
    value = measure(target)
    bound = f'{target.sign} {format_figure(target.at, target.bound)}'
    measured = format_figure(target.at, value)
    rows.append([target.figure, bound, measured, judge(target, value)])
  table = pd.DataFrame(
    rows, columns=['figure', 'target', 'measured', 'reached']
  )
  met, absent = ((table.reached == x).sum() for x in ('met', NOT_MEASURED))
  return (
    f'{format_table(table)}\n\n{met} of {len(table)} are met, '
    f'{len(table) - met - absent} missed, {absent} not measured.'
  )


def show_coverage(name: str) -> str:
  """Shares of bounds that exceed the truth, with the median; or other statements."""
  if name == 'reports':
    stored = io.read_json(DOCS / 'data' / 'simulated_reports.json')
    return tables.format_markdown(tables.Table(**stored))
  if name in ('best', 'broken'):
    return show_leaderboard(name)
  if name == 'conditions':
    frame = read_data(name)
    several = (' ' + frame.condition + ' ').str.contains(' runs ')
    return format_table(frame[~several])
  frame = read_data('coverage')
  is_shown = [
    row.study == name
    and row.table.startswith(_SHOWN_TABLES)
    and row.bound in _SHOWN_BOUNDS.get(row.null, ())
    for row in frame.itertuples()
  ]
  return format_bounds(frame[is_shown])


def format_bounds(frame: Frame) -> str:
  """A table for each title: shares that exceed, and the median bound, by truth.

  Args:
    frame: as `benchmarks.bounds.exceedance.list_records` makes its rows.
  """
  frame = frame.rename(columns={'may_exceed': 'may exceed'})
  beyond, passed = frame.exceeded_scores_percent, frame.gaussian_percent
  truth = frame.law.where(frame.law == '', frame.law + ', ')
  frame['truth'] = truth + 'ε = ' + frame.epsilon
  frame['cell'] = (
    (frame.exceeded_percent + ' %, ' + frame['median'])
    + ('; ' + beyond + ' % of scores').where(beyond != '', '')
    + ('; ' + passed + ' % pass').where(passed != '', '')
    + frame.broken.map({'': '', 'yes': ' **broken**'})
  )
  bounds = ['bound', 'null', 'assumes', 'may exceed']
  parts = []
  for title, rows in frame.groupby('table', sort=False):
    table = rows.pivot_table(
      'cell', bounds, 'truth', 'first', fill_value='', sort=False
    )
    parts.append(f'**{title}**\n\n{format_table(table.reset_index())}')
  return '\n\n'.join(parts)


def show_conformance(name: str) -> str:
  """What the conformance suite finds, and how often it is wrong."""
  frame = read_data(f'conformance_{name}')
  if name == 'bugs':
    found, named = (frame[x].eq('yes').sum() for x in ('found', 'named'))
    return (
      f'The rule that each breaks is found for {found} of {len(frame)} bugs, and '
      f'its cause named for {named}.'
    )
  if name == 'power':
    kinds = frame.fault.str.replace(r'[\d.,]+', '', regex=True)
    groups = frame.groupby(['rule', kinds], sort=False)
    head = ['rule', 'detected in every check', 'the next weaker fault']
    return format_table(
      pd.DataFrame(
        [(rule, *_find_edge(rows)) for (rule, _), rows in groups],
        columns=[*head, 'detected'],
      )
    )
  checks = frame.checks.str.replace(',', '').astype(int)
  false = frame['false alarms'].astype(int)
  rates = [
    threshold.clopper_pearson_upper(*pair, 0.05) for pair in zip(false, checks)
  ]
  less_known = ', '.join(
    f'`{rule}` ({rate:.2g})' for rule, rate in zip(frame.rule, rates) if rate > _RATE
  )  # fmt: skip
  rest = [f'`{x}`' for x in conformance.RULES if x not in set(frame.rule)]
  return (
    f'{false.sum():,} false alarms in {checks.sum():,} checks of {len(frame)} rules. '
    f'With 95 % confidence the rate is at most {_RATE:g} for each rule'
    f'{less_known and " but "}{less_known}. Not among them, as they do '
    f'not apply or need processes: {", ".join(rest)}.'
  )


def _find_edge(rows: Frame) -> tuple[str, ...]:
  """The weakest fault that is always detected, and the strongest that is not.

  Args:
    rows: degrees of one fault, from weak to strong or from strong to weak.
  """
  if rows.detected.iloc[0] == '100%':
    rows = rows[::-1]
  always = rows.detected == '100%'
  weakest = rows.fault[always].head(1).tolist() or ['-']
  missed = rows[~always][['fault', 'detected']].tail(1).values.tolist()
  return weakest[0], *(missed[0] if missed else ('-', '-'))


def show_leaderboard(name: str) -> str:
  """Of the bounds the best that never fail too often, or those that do."""
  frame = read_data('leaderboard')
  bounds = frame[frame.kind == 'bound']
  fails = bounds.exceeds.str.contains('**', regex=False)
  shown = bounds[fails] if name == 'broken' else bounds[~fails][:_BEST_SHOWN]
  return format_table(shown[_BEST])


def draw_canary_kernels(record: dict[str, Any]) -> figure.Figure:
  """Seconds of a projection of one vector against d, for each number of canaries."""
  rows = list_rows(record, 'sizes', where='vectors == 1').sort_values('dim')
  groups = rows.groupby('canaries')
  fig, axes = style.make_panels(len(groups), height=4.2, share=True)
  for panel, (count, some) in zip(axes, groups):
    for (form, color), marker in zip(_COLORS.items(), 'D^vxP '):
      seconds = some.set_index('dim')[f'project/{form}/best'].dropna()
      is_floor = form == '|x|^2'
      panel.loglog(
        seconds,
        color=color,
        marker=marker,
        ls='--' if is_floor else '-',
        label='floor' if is_floor else form,
      )
    panel.set(title=f'k = {count:,}', xlabel='dim')
  axes[0].set_ylabel('seconds of a projection')
  style.draw_legend(fig, axes)
  return fig


def show_made(page: str) -> str:
  """What made the data files of a page, as far as made.json says."""
  made = io.read_json(DOCS / 'data' / 'made.json')
  groups: dict[str, list[str]] = {}
  for name in _FILES[page]:
    origin = made.get(name)
    said = 'what made it was not recorded.'
    if origin is not None:
      said = f'`{origin["command"]}`. {origins.format_origin(origin)}'
    groups.setdefault(said, []).append(f'`{name}`')
  return '\n'.join(f'- {", ".join(names)}: {x}' for x, names in groups.items())


SHOWS: dict[str, Callable[[str], str]] = {
  'benchmarks': show_record,
  'frameworks': show_record,
  'coverage': show_coverage,
  'conformance': show_conformance,
  'promises': lambda name: format_table(read_data(name)),
}
"""Page -> what makes a block of it, by its name."""


def fill_page(name: str) -> str:
  """A page of docs/ with what stands between its markers replaced."""
  text = (DOCS / f'{name}.md').read_text('utf-8')
  blocks = {}
  for x in re.findall(r'<!-- begin (\w+) -->', text):
    block = show_made(name) if x == _MADE else SHOWS[name](x)
    blocks[x] = f'\n{block}\n'
  return tables.splice(text, blocks)


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  for name in SHOWS:
    io.write_text(DOCS / f'{name}.md', fill_page(name))
  # A figure is the same whenever and however often it is written.
  with mpl.rc_context({'svg.hashsalt': 'epe_jax', 'svg.fonttype': 'none'}):
    if record := read_record(_DRAWN):
      path = DOCS / 'benchmarks' / f'{_DRAWN}.svg'
      draw_canary_kernels(record).savefig(path, metadata={'Date': None})


if __name__ == '__main__':
  app.run(main)
