"""Scores as people have them: tables with any names and none, stdin, two files."""

import io
import os
import sys

import numpy as np
import pytest

from epe_jax.scores import counts, formats, score_files
from tests.in_process import run_command

IN, OUT = [3.0, 2.0, 4.0], [1.0, 0.5]


def read(path, **settings):
  loaded = score_files.load(path, **settings)
  return loaded.scores.observed.tolist(), loaded.scores.unobserved.tolist()


@pytest.mark.parametrize('pair', score_files.PAIRS)
def test_each_pair_of_names_is_two_groups(tmp_path, pair):
  first, second = pair
  text = f'id,{second.upper()},{first.title()}\na,1,3\nb,.5,2\nc,,4\n'
  (tmp_path / 'a.csv').write_text(text.replace('_', ' '))
  assert read(tmp_path / 'a.csv') == (IN, OUT)
  np.savez(tmp_path / 'a.npz', **{first: IN, second: OUT})
  assert read(tmp_path / 'a.npz') == (IN, OUT)


@pytest.mark.parametrize(
  ('score', 'label'),
  [
    *((score, 'label') for score in score_files.SCORES),
    *(('score', label) for label in score_files.LABELS),
  ],
)
def test_each_name_of_scores_and_labels_is_known(tmp_path, score, label):
  text = f'{label},{score}\n1,3\n0,1\n1.0,2\n0.0,.5\nTrue,4\n'
  (tmp_path / 'a.csv').write_text(text)
  assert read(tmp_path / 'a.csv', higher='in') == (IN, OUT)


@pytest.mark.parametrize(
  ('name', 'text'),
  [
    ('a.txt', '# score label\n3 1\n1 0\n2 1\n.5 0\n4 1\n'),
    ('a.csv', '\ufeffin,out\n3,1\n\n2,.5\n4,\n'),
    ('a.csv', '# by me\n\n# on 1, 2\nin,out\n3,1\n2,.5\n4,\n'),
    ('a.csv', '# by me\n# in,out\n3,1\n2,.5\n4,\n'),
    ('a.csv', '"in","out"\n3,1\n2,.5\n4,\n'),
    ('a.tsv', 'out\tin\n1\t3\n.5\t2\n\t4\n'),
    ('a.csv', 'in;out\n3;1\n2;.5\n4;\n'),
  ],
)
def test_tables_have_names_in_their_first_line(tmp_path, name, text):
  (tmp_path / name).write_text(text)
  assert read(tmp_path / name) == (IN, OUT)


def test_what_numpy_writes_is_read(tmp_path):
  labels = [1, 0, 1, 0, 1]
  rows = np.c_[[3, 1, 2, 0.5, 4], labels]
  np.savetxt(tmp_path / 'a.csv', rows, delimiter=',', header='score,label')
  np.savez(tmp_path / 'a.npz', scores=rows[:, 0], labels=labels)
  for name in ('a.csv', 'a.npz'):
    assert read(tmp_path / name) == (IN, OUT)


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('', 'is empty'),
    ('1\n2\n', r'no names of columns\. .* With a file for each group'),
    ('score\n2\n', "one column, 'score'. With a file for each group"),
    ('1,0\n0,1\n', r'no names of columns\. Give columns in and out'),
    ('loss,label\n1,0\n0,1\n', 'Say so with --higher=out'),
    ('scores,cosine,label\n1,1,0\n', 'and each may be the scores'),
    ('# by me\nin,out\nx,0\n', "line 3: in='x' is not a number"),
  ],
)
def test_tables_that_are_ambiguous_are_refused(tmp_path, text, message):
  (tmp_path / 'a.csv').write_text(text)
  with pytest.raises(ValueError, match=message):
    score_files.load(tmp_path / 'a.csv')


def test_a_pipe_is_read_from_stdin(tmp_path):
  os.mkfifo(tmp_path / 'pipe')
  with pytest.raises(ValueError, match=r'is a pipe .* give - and the table on'):
    score_files.load(tmp_path / 'pipe')


def test_arrays_of_two_audits_or_of_none_are_refused(tmp_path):
  arrays = {'in': IN, 'out': OUT, 'member': IN, 'nonmember': OUT}
  np.savez(tmp_path / 'a.npz', **arrays)
  with pytest.raises(ValueError, match='of 2 audits'):
    score_files.load(tmp_path / 'a.npz')
  np.savez(tmp_path / 'a.npz', x=IN)
  with pytest.raises(ValueError, match='no two of known names'):
    score_files.load(tmp_path / 'a.npz')


@pytest.fixture
def stdin(monkeypatch):
  """Puts a text onto stdin."""

  def put(text):
    stream = io.TextIOWrapper(io.BytesIO(text.encode()), encoding='utf-8')
    monkeypatch.setattr(sys, 'stdin', stream)

  return put


def test_a_table_on_stdin_is_one_of_a_file(stdin):
  stdin('in,out\n3,1\n2,.5\n4,\n')
  assert read('-') == (IN, OUT)
  stdin('')
  with pytest.raises(ValueError, match='stdin is empty'):
    read('-')
  stdin('in,out\n3,1\n2,.5\n4,\n')
  done = run_command('estimate', '-', '--delta=1e-2')
  assert done.returncode == 0, done.stderr
  assert 'δ = 1e-2' in done.stdout


def test_each_group_has_a_file_of_its_own(tmp_path, stdin):
  (tmp_path / 'in.txt').write_text('# scores\n3\n2\n4\n')
  np.save(tmp_path / 'out.npy', np.array(OUT)[:, None])
  scores = score_files.load_groups(tmp_path / 'in.txt', tmp_path / 'out.npy')
  assert scores.observed.tolist() == IN
  assert scores.unobserved.tolist() == OUT
  stdin('1\n.5\n')
  again = score_files.load_groups(tmp_path / 'in.txt', '-', higher='out')
  assert again.unobserved.tolist() == [-1.0, -0.5]


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('', 'has no scores'),
    ('score\n', 'has no scores'),
    ('1\n2,3\n', "line 2: score='2,3' is not a number. Use a point"),
    ('1\nx\n', "line 2: score='x' is not a number"),
  ],
)
def test_a_file_that_is_no_group_is_refused(tmp_path, text, message):
  (tmp_path / 'in.txt').write_text(text)
  (tmp_path / 'out.txt').write_text('1\n')
  with pytest.raises(ValueError, match=message):
    score_files.load_groups(tmp_path / 'in.txt', tmp_path / 'out.txt')
  (tmp_path / 'a.npy').write_text(text)
  with pytest.raises(ValueError, match=r'not a readable \.npy'):
    score_files.load_groups(tmp_path / 'a.npy', tmp_path / 'out.txt')


def test_the_command_takes_both_files_or_one_with_both(tmp_path):
  one, other = tmp_path / 'in.txt', tmp_path / 'out.txt'
  one.write_text('3\n2\n4\n')
  other.write_text('1\n.5\n')
  both = f'--in_scores={one}', f'--out_scores={other}'
  done = run_command('estimate', *both, '--delta=1e-2')
  assert done.returncode == 0, done.stderr
  for flags, message in (
    ([both[0]], '--out_scores is missing'),
    ([both[1]], '--in_scores is missing'),
    ([*both, other], 'leave it out'),
    ([both[0], f'--out_scores={one}'], 'given for both groups'),
    ([both[0], '--out_scores=none.txt'], 'none.txt does not exist'),
    ([one, other], 'With a file for each group, give --in_scores='),
  ):
    refused = run_command('estimate', *flags, '--delta=1e-2')
    assert refused.returncode == 2
    assert message in refused.stderr


# The sign.


def reversed_files(folder):
  """Files of each kind in which canaries that took part score lower."""
  rng = np.random.default_rng(0)
  low, high = rng.normal(-3, 1, 60).tolist(), rng.normal(0, 1, 60).tolist()
  rows = [(x, 1) for x in low] + [(x, 0) for x in high]
  pairs = list(zip(low, high))
  write = lambda name, lines: (folder / name).write_text('\n'.join(lines))
  write('pair.csv', ['in,out', *(f'{a!r},{b!r}' for a, b in pairs)])
  write('pair.tsv', ['member\tnonmember', *(f'{a!r}\t{b!r}' for a, b in pairs)])
  write('labels.txt', ['score label', *(f'{a!r} {b}' for a, b in rows)])
  np.savez(folder / 'groups.npz', observed=low, unobserved=high)
  np.savez(folder / 'labels.npz', scores=low + high, labels=[1] * 60 + [0] * 60)
  np.savez(
    folder / 'meter.npz', scores=low + high, memberships=[1] * 60 + [0] * 60
  )
  names = 'pair.csv', 'pair.tsv', 'labels.txt', 'groups.npz', 'labels.npz'
  return [folder / name for name in (*names, 'meter.npz')]


def test_a_reversed_sign_is_found_in_every_format(tmp_path):
  for path in reversed_files(tmp_path):
    assert formats.find_reversed(score_files.load(path).scores), path
  reversed_ = formats.Counts(FN=90, FP=90, TN=10, TP=10)
  assert 'probably reversed' in counts.warn_if_reversed(reversed_)


@pytest.mark.usefixtures('coarse_figures')
def test_the_command_draws_a_report_of_scores(tmp_path):
  (tmp_path / 'a.csv').write_text('in,out\n3,1\n2,.5\n4,\n')
  out = tmp_path / 'out'
  done = run_command(
    'estimate', tmp_path / 'a.csv', '--delta=1e-2', f'--out={out}'
  )
  assert done.returncode == 0, done.stderr
  assert done.stderr.endswith(f'Report and figures: {out}/report.html\n')
  assert len(list(out.glob('*.png'))) == 3


@pytest.mark.parametrize('first', ['0,5', '1 2', '1;2', '1_0'])
def test_a_first_line_that_holds_numbers_is_no_name(tmp_path, first):
  path = tmp_path / 'scores.txt'
  path.write_text(f'{first}\n1\n2\n')
  with pytest.raises(ValueError, match='line 1'):
    score_files.read_column(path)


def test_names_of_columns_may_hold_numbers_and_groups_may_have_gaps(tmp_path):
  path = tmp_path / 'scores.csv'
  path.write_text('run 1,in,out\n0,1,2\n0,,3\n0,4,5\n')
  scores = score_files.load(path).scores
  assert scores.observed.tolist() == [1, 4]
  assert scores.unobserved.tolist() == [2, 3, 5]
