"""Pages of studies show a part of their data files, and nothing else."""

import math
import pathlib
import re
import types

import pytest
from studies import data_files

from epe_jax.report import tables

DOCS = pathlib.Path(__file__).parents[2] / 'docs'


@pytest.mark.parametrize('name', ['coverage', 'conformance'])
def test_the_page_shows_rows_of_its_data_files(load_benchmark, name):
  blocks = load_benchmark(name).make_blocks(DOCS / 'data')
  page = (DOCS / f'{name}.md').read_text(encoding='utf-8')
  assert tables.splice(page, blocks) == page


def test_each_finding_says_what_was_told_and_on_what_its_epsilon_depends(
  load_benchmark,
):
  page = (DOCS / 'findings.md').read_text(encoding='utf-8')
  details = page.split('## Details')[1].split('## Results')[0].split('\n\n**')
  assert len(details) > 10
  for detail in details[1:]:
    assert re.search(r'not\sreported\syet|reported to', detail, re.I), detail
  text = load_benchmark('findings')._describe_finding(
    {'rule': 'resume', 'measured': '', 'epsilon': math.inf},
    {'claimed_epsilon': 4.377, 'delta': 1e-5},
  )
  assert text[text.index('ε') :] in page


def test_every_module_of_mechanisms_is_checked(load_benchmark):
  modules = (DOCS.parent / 'benchmarks' / 'frameworks').glob('*_subjects.py')
  checked = {f'{x}_subjects' for x in load_benchmark('findings')._MODULES}
  assert {x.stem for x in modules} == checked


def test_the_version_of_what_comes_from_a_repository_has_its_commit(
  load_benchmark, monkeypatch
):
  findings = load_benchmark('findings')
  origin = '{"vcs_info": {"commit_id": "0123456789"}}'
  package = types.SimpleNamespace(version='2.3', read_text=lambda _: origin)
  monkeypatch.setattr(findings.metadata, 'distribution', lambda _: package)
  assert findings._describe_version('any') == '2.3 at 01234567'
  package.read_text = lambda _: None
  assert findings._describe_version('any') == '2.3'


def test_the_leaderboard_shows_the_best_of_its_data_file(load_benchmark):
  path = DOCS / 'data' / 'leaderboard.csv'
  page = (DOCS / 'leaderboard.md').read_text(encoding='utf-8')
  best = load_benchmark('leaderboard').format_best(path)
  assert best in page
  assert '**broken**' not in best


def test_records_are_read_as_they_were_written(tmp_path):
  records = [
    {'ε, true': '1', 'bound': 'a "b"'},
    {'ε, true': '', 'bound': 'c\nd'},
  ]
  path = tmp_path / 'new' / 'file.csv'
  data_files.write_records(path, records)
  assert data_files.read_records(path) == records
  table = data_files.make_table(records, ['bound'])
  assert [row[0] for row in table.body] == ['a "b"', 'c\nd']
