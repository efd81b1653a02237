"""The pages of benchmarks and studies: what is recorded, and nothing else."""

import json
import math
import pathlib
import re
import types

import pandas as pd
import pytest

from epe_jax.report import tables

ROOT = pathlib.Path(__file__).parents[2]
BENCHMARKS = ROOT / 'benchmarks'


@pytest.fixture
def pages(load_benchmark):
  return load_benchmark('pages')


@pytest.fixture
def results(pages, monkeypatch, tmp_path):
  """A folder of result files, empty at first."""
  monkeypatch.setattr(pages, 'RESULTS', tmp_path)
  return tmp_path


def list_sections():
  text = (ROOT / 'docs' / 'benchmarks.md').read_text()
  return re.findall(r'<!-- begin (\w+) -->', text)


def test_the_committed_pages_are_what_is_recorded(pages):
  for name in pages.SHOWS:
    page = (ROOT / 'docs' / f'{name}.md').read_text()
    assert pages.fill_page(name) == page


def test_every_section_has_its_figures_or_says_that_they_are_missing(
  pages, results
):
  made = pages.fill_page('benchmarks')
  sections = set(list_sections()) - {'targets'}
  assert made.count('Not measured yet.') == len(sections)
  assert sections == pages.TABLES.keys()
  for name in sections:
    assert f'benchmarks.speed.{name}' in made
  assert made.count('| - | not measured |') == len(pages.TARGETS)


def test_a_figure_that_a_result_lacks_is_an_error_and_not_an_empty_cell(
  pages, results
):
  target = types.SimpleNamespace(
    file='file', rows='', where='', at='a/b', sign='≤', bound=2.0
  )
  assert pages.measure(target) is None
  (results / 'file.json').write_text(
    '{"a": {"c": 1}, "sizes": [{"d": 1, "x": 3}, {"d": 2, "x": 5}]}'
  )
  with pytest.raises(KeyError, match='a/b'):
    pages.measure(target)
  vars(target).update(rows='sizes', where='d == 2', at='x')
  assert pages.measure(target) == 5
  target.where = 'd == 3'
  with pytest.raises(ValueError, match='size 1'):
    pages.measure(target)


@pytest.mark.parametrize(
  ('value', 'sign', 'said'),
  [
    (1.5, '≤', 'met'),
    (2.0, '≤', 'met'),
    (2.5, '≤', 'missed by 0.5'),
    (2.5, '≥', 'met'),
    (2.0, '≥', 'met'),
    (1.5, '≥', 'missed by 0.5'),
    (None, '≥', 'not measured'),
  ],
)
def test_a_target_is_met_or_missed_by_the_figure(pages, value, sign, said):
  target = types.SimpleNamespace(at='a/b', sign=sign, bound=2.0)
  assert pages.judge(target, value) == said


def test_every_column_is_a_figure_of_its_result(pages):
  for name, asked in pages.TABLES.items():
    rows = pages.list_rows(
      pages.read_record(name),
      *(asked.get(key, '') for key in ('rows', 'within', 'where')),
    )
    for path in asked['columns'].values():
      assert path.partition(' as ')[0] in rows, (name, path)


def test_bounds_that_fail_too_often_are_not_among_the_best(pages):
  assert '**broken**' not in pages.show_leaderboard('best')
  assert '**broken**' in pages.show_leaderboard('broken')


def test_each_framework_has_a_short_text_and_the_page_says_whether_it_was_sent(
  load_benchmark,
):
  docs = ROOT / 'docs'
  page = (docs / 'findings.md').read_text(encoding='utf-8')
  texts = sorted(docs.glob('findings/*.md'))
  assert len(texts) > 5
  for text in texts:
    assert len(text.read_text(encoding='utf-8').split()) < 170, text
    row = rf'\(findings/{text.name}\) \|.*\| (no|\d{{4}}-\d\d-\d\d) \|'
    assert re.search(row, page), text
  text = load_benchmark('conformance.findings')._describe_finding(
    {'rule': 'resume', 'measured': '', 'epsilon': math.inf},
    {'claimed_epsilon': 4.377, 'delta': 1e-5},
  )
  assert text[text.index('ε') :] in page


def test_every_module_of_mechanisms_is_checked(load_benchmark):
  modules = (BENCHMARKS / 'conformance').glob('*_subjects.py')
  checked = {
    f'{x}_subjects' for x in load_benchmark('conformance.findings')._MODULES
  }
  assert {x.stem for x in modules} == checked


def test_the_version_of_what_comes_from_a_repository_has_its_commit(
  load_benchmark, monkeypatch
):
  findings = load_benchmark('conformance.findings')
  origin = '{"vcs_info": {"commit_id": "0123456789"}}'
  package = types.SimpleNamespace(version='2.3', read_text=lambda _: origin)
  monkeypatch.setattr(findings.metadata, 'distribution', lambda _: package)
  assert findings._describe_version('any') == '2.3 at 01234567'
  package.read_text = lambda _: None
  assert findings._describe_version('any') == '2.3'


def test_make_runs_every_benchmark_and_each_has_a_section(pages):
  makefile = (ROOT / 'Makefile').read_text().replace('\\\n', ' ')
  listed = re.search('^BENCHMARKS := (.*)$', makefile, re.M)[1].split()
  assert sorted(listed) == sorted(set(list_sections()) - {'targets'})
  recording = {
    path.stem
    for path in (BENCHMARKS / 'speed').glob('*.py')
    if '\n  harness.run(' in path.read_text()
  }
  of_gpu = (BENCHMARKS / 'gpu.py').read_text()
  assert all(f"'{name}'" in of_gpu for name in recording - set(listed))


def test_data_files_come_with_what_made_them(
  pages, load_benchmark, monkeypatch, tmp_path
):
  study = load_benchmark('study')
  monkeypatch.setattr(pages, 'DOCS', tmp_path)
  folder = tmp_path / 'data'
  folder.mkdir()
  old = {'soak': {'command': 'old', 'versions': {}}}
  (folder / 'made.json').write_text(json.dumps(old))
  argv = ['study.py', '--seed=3', '--out=/there', '--workers=9']
  monkeypatch.setattr('sys.argv', argv)
  made = {
    'fault_counts': pd.DataFrame({'a': [1]}),
    'simulated_reports': tables.Table('Title', ['a'], [['1']]),
  }
  study.write_data(folder, made, 0.0)
  assert (folder / 'fault_counts.csv').read_text() == 'a\n1\n'
  stored = json.loads((folder / 'simulated_reports.json').read_text())
  assert stored['body'] == [['1']]
  origins = json.loads((folder / 'made.json').read_text())
  assert origins['soak'] == old['soak']
  origin = origins['fault_counts']
  assert origin == origins['simulated_reports']
  assert origin['command'].endswith(' --seed=3 --out=docs/data')
  assert origin['versions'].keys() >= {'jax', 'jaxlib', 'numpy'}
  first, second = pages.show_made('promises').splitlines()
  assert first.startswith('- `fault_counts`: `python -m ')
  assert f'processor {origin["processor"]}' in first
  assert second.startswith('- `soak`: `old`.')
  shown = pages.show_made('coverage')
  assert '`leaderboard`: what made it was not recorded.' in shown
