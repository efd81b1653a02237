"""The pages of benchmarks: what the result files say, and nothing else."""

import io
import itertools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
BENCHMARKS = ROOT / 'benchmarks'


@pytest.fixture
def load(load_benchmark):
  return load_benchmark


@pytest.fixture
def page(load):
  return load('page')


def target(load, **changes):
  made = load('targets').Target('it', 'file', 'a/b', 2.0)
  return made._replace(**changes)


@pytest.fixture
def fill(page):
  """docs/benchmarks.md with the figures of some records."""
  return lambda records: page.page(page.PAGE.read_text(), records)


def test_the_committed_pages_are_what_the_run_results_say(page):
  records = page.read()
  for path, replace_figures in page.PAGES.items():
    text = path.read_text()
    assert replace_figures(text, records) == text


def test_every_section_has_its_figures_or_says_that_they_are_missing(
  load, page, fill
):
  made = fill({})
  sections = page.list_sections(made)
  assert made.count('Not measured yet.') == len(sections)
  for name in sections:
    assert f'benchmarks/{name}.py' in made
  assert load('targets').ROWS.keys() <= set(sections)
  reached = made[made.index('## Targets') : made.index('## Canary kernels')]
  lines = [line for line in reached.splitlines() if re.search('[≤≥]', line)]
  targets = load('targets')
  assert len(lines) == len(targets.TARGETS)
  assert all('| not measured |  |' in line for line in lines)


@pytest.mark.parametrize(
  ('value', 'at_most', 'said'),
  [
    (1.5, True, 'met'),
    (2.0, True, 'met'),
    (2.5, True, 'missed by 0.5'),
    (2.5, False, 'met'),
    (2.0, False, 'met'),
    (1.5, False, 'missed by 0.5'),
  ],
)
def test_a_target_is_met_or_missed_by_the_figure(
  load, page, value, at_most, said
):
  asked = target(load, at_most=at_most)
  assert page.measured(asked, {'file': {'a': {'b': value}}}) == value
  assert page.verdict(asked, value) == said


def test_a_figure_that_is_no_number_is_refused(load, page):
  with pytest.raises(ValueError, match='a/b is not a number'):
    page.verdict(target(load), float('nan'))


def test_a_path_that_leads_nowhere_is_an_error_and_not_an_empty_cell(
  load, page
):
  record = {'a': {'c': 1}}
  with pytest.raises(ValueError, match=r"'a/b' leads nowhere at 'b'.*'c'"):
    page.measured(target(load), {'file': record})
  assert page.measured(target(load), {'file': {'a': {'b': None}}}) is None
  optional = target(load, at='a/b?')
  assert page.measured(optional, {'file': record}) is None
  assert page.measured(optional, {'file': {'a': {'b': 3}}}) == 3
  layout = load('layout')
  found = {'sizes': [{'d': 1, 'k': 2, 'x': 3}, {'d': 1, 'k': 4, 'x': 5}]}
  assert layout.find(found, 'sizes[d=1,k=4]/x') == 5
  with pytest.raises(ValueError, match=r'no \[d=2\] among 2'):
    layout.find(found, 'sizes[d=2]/x')
  with pytest.raises(ValueError, match='is no step'):
    layout.find(found, 'sizes[/x')


def test_a_file_of_any_form_is_shown_to_its_last_figure(load):
  record = {
    'points': [{'m': 1, 'seconds': {'a': 0.5}}, {'m': 2, 'bytes': 17}],
    'works': {'A': {'ratio': 3.25}, 'B': {'ratio': 4.75}},
    'nested': {'x': {'y': 6.125}},
    'ok': True,
    'several': [7, 8],
    'machine': {'cpu': 'not a figure'},
  }
  made = load('layout').everything(record)
  cells = {cell for table in made for row in table.body for cell in row}
  wanted = {'500 ms', '17 B', 'A', '3.25', '4.75', '6.12', 'yes', '7, 8'}
  assert wanted <= cells
  assert 'not a figure' not in cells
  for table in made:
    assert all(len(row) == len(table.head) for row in table.body)


def test_a_run_result_without_a_section_is_shown_too(fill):
  record = {
    'speed': 31.5,
    'machine': {'cpu': 'fast', 'cores': 3, 'numpy': '9'},
    'date': '2026-01-02T03:04:05+00:00',
    'load_before': 0.25,
  }
  made = fill({'of_its_own': record})
  section = made[made.index('## of its own') :]
  for said in ('fast, 3 cores', 'numpy 9', '2026-01-02 03:04', '0.25', '31.5'):
    assert said in section


def kernels():
  """A result of benchmarks/canary_kernels.py, its figures made up."""
  forms = {'|x|^2': 0.001, 'hadamard': 0.004, 'sphere': 12.0, 'stored': 0.5}
  rows = []
  for dim in (100_000, 4_050_748):
    scale = dim / 4_050_748
    projections = {name: {'best': scale * x} for name, x in forms.items()}
    rows.append(
      {
        'dim': dim,
        'canaries': 2000,
        'vectors': 1,
        'stored_bytes': 4 * 2000 * dim,
        'project': projections,
        'passes': {name: x / 0.001 for name, x in forms.items()},
        'superpose_2': {'hadamard': {'best': 0.25}},
      }
    )
  machine = {'cpu': 'made up', 'cores': 1}
  return {'sizes': rows, 'machine': machine, 'date': '2026-01-01T00:00:00'}


def test_kernels_are_shown_next_to_their_floor_and_their_target(fill):
  made = fill({'canary_kernels': kernels()})
  target = next(line for line in made.splitlines() if '2,000 cosines' in line)
  assert '| ≤ 5 | 4 | met |' in target
  section = made[made.index('## Canary kernels') :]
  # d, k, vectors, floor, hadamard, and no hadamard2 in the file.
  assert '| 4,050,748 | 2,000 | 1 | 1 ms | 4 ms | - | 12 s |' in section
  assert '1 of 39 are met, 0 missed, 38 not measured.' in made


def test_a_figure_is_the_same_file_whenever_it_is_drawn(load):
  drawings = load('drawings')
  drawn = []
  for _ in range(2):
    file = io.BytesIO()
    figures = drawings.draw({'canary_kernels': kernels()})
    drawings.save(figures['kernels.svg'], file)
    drawn.append(file.getvalue())
  assert drawn[0] == drawn[1]
  assert b'one pass' in drawn[0]


def test_make_runs_every_benchmark_and_each_has_a_section(page):
  makefile = (ROOT / 'Makefile').read_text().replace('\\\n', ' ')
  listed = re.search('^BENCHMARKS := (.*)$', makefile, re.M)[1].split()
  assert sorted(listed) == sorted(page.list_sections(page.PAGE.read_text()))
  recording = {
    path.stem
    for path in BENCHMARKS.glob('*.py')
    if '\n  harness.run(' in path.read_text()
  }
  of_gpu = (BENCHMARKS / 'gpu.py').read_text()
  assert all(f"'{name}'" in of_gpu for name in recording - set(listed))


def test_exponents_are_slopes_of_logarithms(load):
  sizes = [1.0, 4.0, 16.0]
  growth = load('growth')
  assert growth.exponent(sizes, [3 * x**2 for x in sizes]) == pytest.approx(2)
  assert growth.exponent(sizes, [5.0] * 3) == pytest.approx(0)
  points = [
    {'direction': 'dim', 'dim': x, 'seconds': {'a': x}, 'bytes': {'a': 1 / x}}
    for x in sizes
  ]
  # A size at which one form was too dear says nothing of it.
  points.append(
    {'direction': 'dim', 'dim': 64.0, 'seconds': {'b': 1}, 'bytes': {'b': 1}}
  )
  found = growth.exponents(points)['dim']
  assert found['of_time']['a'] == pytest.approx(1)
  assert found['of_memory']['a'] == pytest.approx(-1)


@pytest.mark.parametrize('dim', [1e5, 1e6, 4e6])
def test_the_model_has_as_many_parameters_as_asked_for(load, dim):
  growth = load('growth')
  units = growth.hidden(int(dim))
  sizes = (256, units, units, 10)
  have = sum(a * b + b for a, b in itertools.pairwise(sizes))
  assert have == pytest.approx(dim, rel=0.01)
