"""Tables: every cell comes through, in each form."""

import pytest

from epe_jax.report import tables

TABLE = tables.Table(
  'Of z & ε_lo, 5 %',
  ['noise', 'ε, own round'],
  [['0', '∞'], ['0.2|0.3', '25.4 [24.1, 26.9]']],
  ['σ² is 50 %.'],
)


def test_text_is_aligned_and_complete():
  title, body, notes = tables.format_text(TABLE).split('\n\n')
  lines = body.splitlines()
  assert title == TABLE.title
  assert notes == '- σ² is 50 %.'
  assert len({len(line) for line in lines}) == 1
  assert lines[1].startswith('0 ')
  assert lines[1].endswith(' ∞')


def test_columns_are_aligned_by_what_is_seen_and_as_wide_as_asked_for():
  lines = tables.align_columns(
    [['std', 'ε̂'], ['null', '1.0']], '<>', widths=(6, 5), gap='|'
  ).splitlines()
  # A combining mark takes no place of its own.
  assert lines == ['std   |    ε̂', 'null  |  1.0']
  with pytest.raises(ValueError, match='longer'):
    tables.align_columns([['1', '2', '3']], '<>')


def test_a_table_is_folded_where_it_is_too_wide_and_no_word_is_broken():
  table = tables.Table(
    '',
    ['attacker', 'bound, 95 %', 'ε'],
    [['own round, others removed', '5.73', '7.61'], ['final', '0.21', '0.41']],
  )
  assert tables.fold_table(table) is table
  with tables.limit_width(24):
    folded = tables.format_text(tables.fold_table(table))
  assert folded.splitlines() == [
    'attacker    bound,     ε',
    '              95 %',
    'own round,    5.73  7.61',
    'others',
    'removed',
    'final         0.21  0.41',
  ]
  with tables.limit_width(5):
    narrow = tables.format_text(tables.fold_table(table))
  assert 'attacker' in narrow
  assert 'removed' in narrow


def test_markdown_escapes_what_would_end_a_cell():
  lines = tables.format_markdown(TABLE).splitlines()
  assert lines[0] == '**Of z & ε_lo, 5 %**'
  assert r'| 0.2\|0.3 | 25.4 [24.1, 26.9] |' in lines


def test_latex_escapes_what_latex_reads():
  made = tables.format_latex(TABLE)
  assert r'Of z \& $\varepsilon$\_lo, 5 \%.' in made
  assert r'0 & $\infty$ \\' in made
  assert r'\begin{tabular}{lr}' in made
  for letter in '∞εσ²%&_':
    plain = made.replace(rf'\{letter}', '').replace(' & ', '')
    assert letter not in plain, letter
