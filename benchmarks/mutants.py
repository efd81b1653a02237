"""Measures which faults of the core its tests notice.

  python benchmarks/mutants.py --folder=runs/mutants --out=docs/reliability.md

draws mutants of each room of the core, which are single changes that cosmic-ray makes, such
as < for <=, and runs the tests that execute the changed line until one fails. It works on
copies of the last commit, and measures first which tests execute what. The score is the
share that tests kill, with an interval of 95 % confidence. It takes hours, and with
--sample=0, for all mutants, days. With the same --folder it goes on where it was
interrupted; after a commit it measures again the coverage that differs, and asks again only
of survivors. Those are argued in studies/survivors.toml.
"""

import collections
from collections.abc import Mapping, Sequence
import concurrent.futures
import json
import os
import pathlib
import queue
import shutil
import subprocess
import tempfile
import threading
import tomllib
from typing import Any, NamedTuple

from absl import app, flags
from scipy import stats
from studies import data_files, mutation
import tqdm

from epe_jax import io
from epe_jax.text import tables

ROOT = pathlib.Path(__file__).resolve().parents[1]
ROOMS = ('epsilon', 'accounting', 'canaries', 'training', 'audit')
ARGUED = pathlib.Path(mutation.__file__).with_name('survivors.toml')

_SAMPLE = flags.DEFINE_integer(
  'sample', 150, 'Mutants of each room; 0 for all.', lower_bound=0
)
_SEED = flags.DEFINE_integer('seed', 0, 'Of the sample.', lower_bound=0)
_ROOMS = flags.DEFINE_list('rooms', [*ROOMS], 'Folders of epe_jax.')
_TESTS = flags.DEFINE_list(
  'tests',
  [
    *(f'{tests}/{room}' for tests in ('tests', 'epe_jax') for room in ROOMS),
    *('tests/test_arguments.py', 'tests/sampling', 'tests/auditor'),
    *('tests/conformance', 'tests/dpsgd', 'tests/experiment', 'tests/planning'),
    *('tests/report', 'tests/scores'),
  ],
  'Folders of tests and doctests that may kill mutants.',
)
_SECONDS = flags.DEFINE_float(
  'seconds', 60.0, "Of the tests that a mutant meets in its room's folder, and elsewhere."
)  # fmt: skip
_WORKERS = flags.DEFINE_integer(
  'workers', os.cpu_count() or 1, 'Processes.', lower_bound=1
)
_FOLDER = flags.DEFINE_string(
  'folder',
  None,
  'Keeps coverage and verdicts, so that the run can be continued.',
)
_OUT = flags.DEFINE_string(
  'out', None, 'Page to write into; its data files are in data/ next to it.'
)

# What tests import and what a fork need not import again.
_PACKAGES = (
  *('pytest', 'beartype', 'dp_accounting', 'flax', 'hypothesis', 'jax'),
  *('jaxtyping', 'numpy', 'optax', 'scipy.stats', 'coverage'),
)
_KILLED = ('killed', 'timeout')
_COVERAGE_LIMIT = 3 * 3600.0


def draw_mutants(
  root: pathlib.Path, folder: str, sample: int, seed: int
) -> tuple[list[mutation.Mutant], int]:
  """A random sample of the mutants of a folder, and how many there are.

  A larger sample has all mutants of a smaller one with the same seed, and a change of
  one file draws other mutants of this file alone.
  """
  mutants = [
    mutant
    for path in sorted((root / folder).rglob('*.py'))
    for mutant in mutation.list_mutants(root, str(path.relative_to(root)))
  ]
  mutants.sort(
    key=lambda m: mutation.hash_text(
      f'{seed} {m.file} {m.operator} {m.occurrence}'
    )
  )
  return mutants[: sample or None], len(mutants)


def judge_mutants(
  mutants: Sequence[mutation.Mutant],
  coverage: mutation.Coverage,
  servers: Sequence[mutation.Server],
  kept: pathlib.Path,
  tests: str,
  seconds: float,
) -> list[dict[str, Any]]:
  """What became of mutants, each as a row of the data file.

  Args:
    mutants: to run the tests on.
    coverage: of the tests.
    servers: work side by side.
    kept: file of verdicts; those of earlier runs hold if the mutated file is the same,
      and if nothing killed the mutant, only with the same tests.
    tests: name of the state of the tests.
    seconds: as for `mutation.choose_tests`.
  """
  known = {}
  if kept.exists():
    for line in kept.read_text(encoding='utf-8').splitlines():
      verdict = json.loads(line)
      if verdict['status'] in _KILLED or verdict['tests'] == tests:
        known[verdict['mutant']] = verdict
  free: queue.Queue[mutation.Server] = queue.Queue()
  for server in servers:
    free.put(server)
  lock = threading.Lock()

  def judge(mutant: mutation.Mutant) -> dict[str, Any]:
    server = free.get()
    try:
      source = (server.tree / mutant.file).read_text(encoding='utf-8')
      changed = mutation.mutate(source, mutant)
      before, after = mutation.describe_change(source, changed)
      name = mutation.hash_text(f'{mutant.file}\n{changed}')
      if name not in known:
        room = mutant.file.split('/')[1]
        near = f'tests/{room}/', f'epe_jax/{room}/'
        verdict = server.judge(mutant, coverage, near, seconds)
        known[name] = {'mutant': name, 'tests': tests, **verdict._asdict()}
        with lock, kept.open('a', encoding='utf-8') as file:
          print(json.dumps(known[name]), file=file, flush=True)
      return {
        'file': mutant.file,
        'line': mutant.line,
        'operator': mutant.operator,
        'before': before,
        'after': after,
        **{x: known[name][x] for x in ('status', 'test', 'seconds')},
      }
    finally:
      free.put(server)

  with concurrent.futures.ThreadPoolExecutor(len(servers)) as pool:
    verdicts = pool.map(judge, mutants)
    return list(
      tqdm.tqdm(verdicts, total=len(mutants), unit='mutant', mininterval=30)
    )


def summarize_room(
  rows: Sequence[Mapping[str, Any]],
  total: int,
  files: Sequence[Mapping[str, Any]],
) -> dict[str, str]:
  """The score and the coverage of a room.

  Args:
    rows: of its mutants.
    total: how many there are.
    files: their summaries of coverage.
  """
  count = collections.Counter(row['status'] for row in rows)
  killed = sum(count[status] for status in _KILLED)
  interval = stats.binomtest(killed, len(rows)).proportion_ci(0.95, 'exact')
  share = lambda part, of: (
    f'{sum(f[part] for f in files) / max(1, sum(f[of] for f in files)):.1%}'
  )
  return {
    'mutants': f'{total:,}',
    'drawn': f'{len(rows):,}',
    'killed': f'{killed:,}',
    'of these by time': str(count['timeout']),
    'survived': str(count['survived']),
    'not covered': str(count['not covered']),
    'score': f'{killed / len(rows):.0%}',
    '95 % interval': f'{interval.low:.0%} to {interval.high:.0%}',
    'lines': share('covered_lines', 'num_statements'),
    'branches': share('covered_branches', 'num_branches'),
  }


def make_blocks(folder: pathlib.Path) -> dict[str, str]:
  """What the page shows between its markers, from its data files.

  Args:
    folder: of the data files.
  """
  if not (folder / 'mutants.csv').exists():
    return {'mutants': 'Not measured yet: `python benchmarks/mutants.py`.'}
  rooms = data_files.read_records(folder / 'mutant_rooms.csv')
  rows = data_files.read_records(folder / 'mutants.csv')
  argued = {
    (x['file'], x['before'], x['after']): x['why']
    for x in tomllib.loads(ARGUED.read_text(encoding='utf-8'))['survivors']
  }
  explain = lambda row: argued.get((row['file'], row['before'], row['after']))
  alive = [row for row in rows if row['status'] not in _KILLED]
  for room in rooms:
    prefix = f'epe_jax/{room["room"]}/'
    equal = [r for r in alive if r['file'].startswith(prefix) and explain(r)]
    others = int(room['drawn'].replace(',', '')) - len(equal)
    room['argued'] = str(len(equal))
    room['killed of the others'] = (
      f'{int(room["killed"].replace(",", "")) / others:.0%}'
    )
  score = data_files.make_table(
    rooms,
    [
      *('room', 'mutants', 'drawn', 'killed', 'score', '95 % interval'),
      *('argued', 'killed of the others', 'lines', 'branches'),
    ],
  )
  body = [
    [
      f'{row["file"].removeprefix("epe_jax/")}:{row["line"]}',
      ' → '.join(map(_format_code, (row['before'], row['after']))),
      explain(row) or '**to be killed**',
    ]
    for row in alive
  ]
  survivors = tables.Table('', ['where', 'change', 'why no test fails'], body)
  parts = [
    tables.format_markdown(score),
    data_files.link('data/mutants.csv', 'a row per mutant, with the test that kills it'),
    tables.format_markdown(survivors) if body else 'No mutant survived.',
  ]  # fmt: skip
  return {'mutants': '\n\n'.join(parts)}


def _format_code(text: str) -> str:
  return f'`{text}`' if text else 'nothing'


class Plan(NamedTuple):
  """What is measured, and how.

  Attributes:
    rooms: folders of epe_jax.
    tests: folders and files of tests.
    sample: mutants of each room; 0 for all.
    seed: of the sample.
    seconds: as for `mutation.choose_tests`.
    workers: processes.
    packages: to import before tests are.
  """

  rooms: Sequence[str]
  tests: Sequence[str]
  sample: int
  seed: int
  seconds: float
  workers: int
  packages: Sequence[str] = _PACKAGES


def measure(
  root: pathlib.Path, folder: pathlib.Path, plan: Plan
) -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
  """Measures the score of the last commit.

  Args:
    root: of the checkout.
    folder: keeps what is finished.
    plan: what to measure.

  Returns:
    A row for each room, and one for each of its mutants.

  Raises:
    SystemExit: something has not been committed, or a test fails without a mutant.
  """
  if changed := _git(root, 'status', '--porcelain', '--', 'epe_jax', 'tests'):
    raise SystemExit(f'The last commit is measured; commit first:\n{changed}')
  base = _check_out(root, folder)
  # Of all rooms, so that coverage is kept whichever are measured.
  sources = [f'epe_jax/{room}' for room in ROOMS]
  states = [
    _git(root, 'rev-parse', f'HEAD:{x}') for x in (*sources, *plan.tests)
  ]
  package = ''.join(states[: len(sources)])
  parts = {
    tests: folder / 'coverage' / f'{mutation.hash_text(package + state)}.data'
    for tests, state in zip(plan.tests, states[len(sources) :])
  }
  (folder / 'coverage').mkdir(exist_ok=True)
  samples = {
    room: draw_mutants(base, f'epe_jax/{room}', plan.sample, plan.seed)
    for room in plan.rooms
  }
  servers: list[mutation.Server] = []
  start = lambda tree: servers.append(
    mutation.Server(tree, plan.packages, folder / 'compiled')
  )
  try:
    start(base)
    servers[0].measure_coverage(sources, parts, _COVERAGE_LIMIT)
    coverage = servers[0].read_coverage(
      sources, parts.values(), folder / 'coverage.json'
    )
    for i in range(plan.workers):
      start(mutation.copy_tree(base, folder / f'tree_{i}'))
    rows = judge_mutants(
      [mutant for mutants, _ in samples.values() for mutant in mutants],
      coverage,
      servers[1:],
      folder / 'verdicts.jsonl',
      mutation.hash_text(f'{"".join(states)} {plan.seconds}'),
      plan.seconds,
    )
    check_killers(servers[0], rows, coverage)
  finally:
    for server in servers:
      server.close()
  rooms = []
  for room, (_, total) in samples.items():
    inside = f'epe_jax/{room}/'
    summaries = [
      file['summary']
      for name, file in coverage.files.items()
      if name.startswith(inside)
    ]
    chosen = [row for row in rows if row['file'].startswith(inside)]
    rooms.append({'room': room, **summarize_room(chosen, total, summaries)})
  return rooms, rows


def _git(root: pathlib.Path, *arguments: str) -> str:
  done = subprocess.run(
    ['git', *arguments], cwd=root, check=True, capture_output=True, text=True
  )
  return done.stdout.strip()


def _check_out(root: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
  """A copy of the last commit."""
  base, archive = folder / 'base', folder / 'base.tar'
  shutil.rmtree(base, ignore_errors=True)
  base.mkdir(parents=True)
  _git(root, 'archive', f'--output={archive}', 'HEAD')
  shutil.unpack_archive(archive, base, filter='data')
  return base


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  plan = Plan(
    _ROOMS.value,
    _TESTS.value,
    _SAMPLE.value,
    _SEED.value,
    _SECONDS.value,
    _WORKERS.value,
  )
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(_FOLDER.value or temporary).resolve()
    rooms, rows = measure(ROOT, folder, plan)
  print(tables.format_text(data_files.make_table(rooms, list(rooms[0]))))
  if _OUT.value:
    page = pathlib.Path(_OUT.value)
    data = page.parent / 'data'
    write_data(data, rooms, rows)
    io.write_text(page, tables.splice(page.read_text(), make_blocks(data)))


def write_data(
  folder: pathlib.Path,
  rooms: Sequence[Mapping[str, str]],
  rows: Sequence[Mapping[str, Any]],
) -> None:
  """Writes the data files of the page."""
  shown = [
    {name: str(x) for name, x in row.items() if name != 'seconds'} for row in rows
  ]  # fmt: skip
  data_files.write_records(folder / 'mutant_rooms.csv', rooms)
  data_files.write_records(folder / 'mutants.csv', shown)


def check_killers(
  server: mutation.Server,
  rows: Sequence[Mapping[str, Any]],
  coverage: mutation.Coverage,
) -> None:
  """Runs the tests that killed mutants without a mutant.

  Raises:
    SystemExit: one fails, because of others or by chance; it killed nothing.
  """
  killers = sorted({row['test'] for row in rows} & coverage.seconds.keys())
  if killers:
    files = sorted({test.partition('::')[0] for test in killers})
    result = server.run_tests(files, killers, _COVERAGE_LIMIT)
    if result['status'] != 0:
      raise SystemExit(f'Tests fail without a mutant: {result["failed"]}.')


if __name__ == '__main__':
  app.run(main)
