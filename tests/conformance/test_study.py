"""The study of false alarms and power counts what it says."""

import pandas as pd
import pytest

from epe_jax import conformance


def test_alarms_and_detections_are_counted(load_benchmark):
  study = load_benchmark('conformance.rates')
  batches = study.make_batches(1, seed=0)
  short = next(b for b in batches if b.mechanism == 'NoiseShort 0.2')
  (row,) = study.run_batch(short._replace(seeds=(0,)))
  assert row[1:4] == ('noise_scale', 'broken', 0.0)
  checks = study.run_batch(study.Batch('Plain', None, (0,)))
  assert [row.rule for row in checks] == list(conformance.RULES)
  by_status = {row.rule: row.status for row in checks}
  assert by_status['add_or_remove'] == 'does not apply'
  table, _ = study.tabulate_alarms({n: checks for n in study.correct.CORRECT})
  assert 'add_or_remove' not in set(table['rule'])
  checks = [row._replace(status='passed') for row in checks]
  # Three false alarms of one rule are more than chance gives.
  names = study.correct.CORRECT
  everything = {name: checks for name in names}
  accused = [
    row._replace(status='broken', p_value=1e-9)
    if row.rule == 'noise_law'
    else row
    for row in checks
  ]
  everything['Plain'] = accused * 3
  table, bad = study.tabulate_alarms(everything)
  assert bad == ['noise_law']
  (row,) = table[table['rule'] == 'noise_law'].values.tolist()
  assert row[1:3] == [str(len(names) + 2), '3']


def test_every_degree_is_of_a_rule(load_benchmark):
  study = load_benchmark('conformance.rates')
  assert {d.rule for d in study.DEGREES.values()} <= set(conformance.RULES)
  nums = [len(b.seeds) for b in study.make_batches(70, seed=5)]
  assert min(nums) >= 1
  assert max(nums) <= 20
  num = len(study.correct.CORRECT) + len(study._PUBLISH)
  assert sum(nums) == 70 * num + sum(
    20 * len(d.values) for d in study.DEGREES.values()
  )


def test_mechanisms_with_a_public_clip_norm_are_checked_twice_as_often(
  load_benchmark,
):
  study = load_benchmark('conformance.rates')
  publish = {
    name
    for name, cls in study.correct.CORRECT.items()
    if hasattr(cls(study.CLAIM), 'clip_norm')
  }
  assert publish == set(study._PUBLISH)


@pytest.mark.parametrize('alarms', [0, 1])
def test_a_rate_of_alarms_is_bounded_by_the_number_of_checks(
  load_benchmark, monkeypatch, alarms
):
  pages = load_benchmark('pages')
  frame = pd.DataFrame(
    {'rule': ['clipping'], 'checks': ['1,000'], 'false alarms': [str(alarms)]}
  )
  monkeypatch.setattr(pages, 'read_data', lambda name: frame)
  # Of none in 1,000 the limit is 1 - 0.05^(1/1000), just below 0.003.
  exceptions = ' but `clipping` (0.0047)'
  assert (exceptions in pages.show_conformance('alarms')) == bool(alarms)


def test_the_page_shows_where_detection_begins(load_benchmark):
  find_edge = load_benchmark('pages')._find_edge
  detected = {'weak': '0%', 'middle': '40%', 'strong': '100%', 'huge': '100%'}
  rows = pd.DataFrame(detected.items(), columns=['fault', 'detected'])
  assert find_edge(rows) == ('strong', 'middle', '40%')
  assert find_edge(rows[::-1]) == ('strong', 'middle', '40%')
  assert find_edge(rows[:2]) == ('-', 'middle', '40%')
  assert find_edge(rows[2:3]) == ('strong', '-', '-')
