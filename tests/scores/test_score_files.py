"""Scores as people have them: tables with any names and none, stdin, two files."""

import io
import json
import os
import pathlib
import re
import sys

import numpy as np
import pandas
import pytest
from sklearn import metrics

import epe_jax
from epe_jax import epsilon
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
  # As jax_privacy calls both groups.
  np.savez(tmp_path / 'b.npz', in_canary_scores=IN, out_canary_scores=OUT)
  for name in ('a.csv', 'a.npz', 'b.npz'):
    assert read(tmp_path / name) == (IN, OUT)


def test_a_pipe_is_read_from_stdin(tmp_path):
  os.mkfifo(tmp_path / 'pipe')
  with pytest.raises(ValueError, match=r'is a pipe .* give - and the table on'):
    score_files.load(tmp_path / 'pipe')


def test_what_is_no_file_of_scores_is_refused(tmp_path):
  for name, message in (
    ('a.dat', 'neither .npz nor a table'),
    ('a.npz', 'not a readable'),
  ):
    (tmp_path / name).write_text('1 2 3')
    with pytest.raises(ValueError, match=message):
      score_files.load(tmp_path / name)
  with pytest.raises(FileNotFoundError, match='Give the workdir'):
    score_files.load(tmp_path / 'none.npz')


def test_arrays_of_two_audits_or_of_none_are_refused(tmp_path):
  arrays = {'in': IN, 'out': OUT, 'member': IN, 'nonmember': OUT}
  np.savez(tmp_path / 'a.npz', **arrays)
  with pytest.raises(
    ValueError, match='in and out are groups, member and nonmember are'
  ):
    score_files.load(tmp_path / 'a.npz')
  np.savez(tmp_path / 'a.npz', x=IN)
  with pytest.raises(ValueError, match='no known name tells the scores'):
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
    ('1\n2,3\n', "line 2, column score: '2,3' is not a number. Use a point"),
    ('1\nx\n', "line 2, column score: 'x' is not a number"),
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
    ([*both, other], 'leave one of them out'),
    ([both[0], f'--out_scores={one}'], 'given for both groups'),
    ([both[0], '--out_scores=none.txt'], 'none.txt does not exist'),
    ([one, other], 'With a file for each group, give --in_scores='),
  ):
    refused = run_command('estimate', *flags, '--delta=1e-2')
    assert refused.returncode == 2
    assert message in refused.stderr


# As tools write them.


RNG = np.random.default_rng(0)
LABELS = np.repeat([1, 0], [30, 25])
REFERENCE = RNG.normal(size=55)
TARGET = REFERENCE + RNG.normal(size=55) + 2 * LABELS
WORDS = ['train' if x else 'test' for x in LABELS]
COLUMNS = {
  'id': [*range(55)],
  'reference': REFERENCE.tolist(),
  'My Target': TARGET.tolist(),
  'split': WORDS,
}
ROWS = [dict(zip(COLUMNS, row)) for row in zip(*COLUMNS.values())]


def write_rows(path):
  match path.suffix:
    case '.csv':
      lines = [','.join(map(str, row.values())) for row in ROWS]
      path.write_text('\n'.join([','.join(COLUMNS), *lines]))
    case '.json':
      path.write_text(json.dumps(ROWS if path.stem == 'rows' else COLUMNS))
    case '.jsonl':
      path.write_text('\n'.join(map(json.dumps, ROWS)))
    case '.npz':
      labelled = {**COLUMNS, 'split': LABELS == 1}
      np.savez(path, **{k: np.array(x) for k, x in labelled.items()})
    case '.parquet':
      pyarrow = pytest.importorskip('pyarrow', reason='writes Parquet')
      from pyarrow import parquet

      parquet.write_table(pyarrow.table(COLUMNS), path)


FORMS = 'a.csv', 'rows.json', 'lists.json', 'a.jsonl', 'a.npz', 'a.parquet'


@pytest.mark.parametrize('name', FORMS)
def test_columns_are_named_by_flags_in_every_form(tmp_path, name):
  path = tmp_path / name
  write_rows(path)
  for score, values in (
    ('my_target', TARGET),
    ('my-target', TARGET),
    ('My Target-reference', TARGET - REFERENCE),
  ):
    roles = score_files.Roles(score=score, label='split')
    scores = score_files.load(path, roles=roles).scores
    np.testing.assert_array_equal(scores.observed, values[LABELS == 1])
    np.testing.assert_array_equal(scores.unobserved, values[LABELS == 0])
  with pytest.raises(ValueError, match=r"'reference', .*: no known name tells"):
    score_files.load(path)
  for roles, message in (
    (score_files.Roles(score='target', label='split'), "'target', but "),
    (
      score_files.Roles(score='reference'),
      'reference tells the scores, no known',
    ),
    (score_files.Roles(in_scores='reference'), 'out_scores=NAME is missing'),
    (score_files.Roles(num_in=3), 'num_in=3 is of a ROC'),
  ):
    with pytest.raises(ValueError, match=message):
      score_files.load(path, roles=roles)


def test_groups_are_named_by_flags_and_lists_may_be_inside_of_others(tmp_path):
  path = tmp_path / 'a.json'
  path.write_text(json.dumps({'attack': {'real': IN, 'fake': OUT}, 'seed': 1}))
  names = 'attack.real', 'attack.fake'
  roles = score_files.Roles(in_scores=names[0], out_scores=names[1])
  assert read(path, roles=roles) == (IN, OUT)
  flags = f'--in_scores={names[0]}', f'--out_scores={names[1]}'
  done = run_command('estimate', path, *flags, '--delta=1e-2')
  assert done.returncode == 0, done.stderr
  with pytest.raises(ValueError, match='label=x, but in_scores and out_scores'):
    read(path, roles=roles._replace(label='x'))
  path.write_text(json.dumps({'members': IN, 'nonmembers': [*OUT, None]}))
  assert read(path) == (IN, OUT)


@pytest.mark.parametrize(
  'orient', ['columns', 'records', 'split', 'index', 'table', 'list']
)
def test_json_of_pandas_is_read(tmp_path, orient):
  frame = pandas.DataFrame({'score': TARGET, 'label': LABELS})
  path = tmp_path / 'a.json'
  if orient == 'list':
    path.write_text(json.dumps({'runs': {'1': IN, '0': OUT}}))
    roles = score_files.Roles(in_scores='runs.1', out_scores='runs.0')
    assert read(path, roles=roles) == (IN, OUT)
    return
  frame.to_json(path, orient=orient, double_precision=15)
  scores = score_files.load(path).scores
  np.testing.assert_allclose(scores.observed, TARGET[LABELS == 1])
  # Lines, whatever the file is called.
  frame.to_json(path, orient='records', lines=True, double_precision=15)
  scores = score_files.load(path).scores
  np.testing.assert_allclose(scores.observed, TARGET[LABELS == 1])


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('{"in": [1], "in": [2]}', "has the name 'in' twice"),
    ('[' * 100_000, 'is not JSON'),
    ('{"in": [1, 2', 'is not JSON'),
    ('{"in": [1e400, 2], "out": [1, 2]}', "'1e400' is not finite"),
    (
      '{"in": [[1, 2]], "out": [1, 2]}',
      'entry 1, column in: .* is not a number',
    ),
    ('[1, 2]', 'one without a name'),
    (
      '{"columns": ["in"], "data": [[1, 2]]}',
      "the columns 'columns', 'data'",
    ),
  ],
)
def test_json_that_makes_no_sense_is_refused(tmp_path, text, message):
  path = tmp_path / 'a.json'
  path.write_text(text)
  with pytest.raises(ValueError, match=message):
    score_files.load(path)


def test_a_column_of_guesses_that_are_none_has_scores(tmp_path):
  (tmp_path / 'a.csv').write_text('prediction|label\n.7|1\n.9|1\n.2|0\n')
  assert read(tmp_path / 'a.csv') == ([0.7, 0.9], [0.2])


@pytest.mark.parametrize('name', ['a.npy', 'a.txt', 'a.csv', 'a.json'])
def test_labels_may_have_a_file_of_their_own(tmp_path, name):
  path, labels = tmp_path / name, tmp_path / f'labels_{name}'
  score = None
  if name == 'a.npy':
    np.save(path, TARGET)
    np.save(labels, LABELS[:, None] == 1)
  elif name == 'a.json':
    path.write_text(json.dumps(TARGET.tolist()))
    labels.write_text(json.dumps({'y': (LABELS == 1).tolist()}))
  else:
    path.write_text('\n'.join(map(repr, TARGET.tolist())))
    labels.write_text('\n'.join(WORDS))
    if name == 'a.csv':
      write_rows(path)
      score = 'My Target'
  roles = score_files.Roles(score=score, labels=str(labels))
  scores = score_files.load(path, roles=roles).scores
  np.testing.assert_array_equal(scores.observed, TARGET[LABELS == 1])
  with pytest.raises(ValueError, match='both say who took part'):
    score_files.load(path, roles=roles._replace(label='split'))
  labels.write_text('1\n0\n')
  with pytest.raises(ValueError, match=r'entries|not a readable|JSON'):
    score_files.load(path, roles=roles)


@pytest.mark.parametrize('suffix', ['npy', 'npz'])
def test_labels_may_be_words(tmp_path, suffix):
  words = np.where(LABELS == 1, 'Y', 'Hold-out')
  np.save(tmp_path / 'a.npy', TARGET)
  np.save(tmp_path / 'labels.npy', words)
  np.savez(tmp_path / 'a.npz', score=TARGET, label=words)
  labels = str(tmp_path / 'labels.npy') if suffix == 'npy' else None
  roles = score_files.Roles(labels=labels)
  scores = score_files.load(tmp_path / f'a.{suffix}', roles=roles).scores
  np.testing.assert_array_equal(scores.observed, TARGET[LABELS == 1])
  np.save(tmp_path / 'labels.npy', np.where(LABELS == 1, 'Y', 'perhaps'))
  if suffix == 'npy':
    with pytest.raises(ValueError, match=r"entry 31, .*'perhaps' does not"):
      score_files.load(tmp_path / 'a.npy', roles=roles)


def test_the_file_of_an_auditor_is_named(tmp_path):
  config = epe_jax.AuditConfig(
    dim=9,
    rounds=2,
    clip_norm=1.0,
    delta=1e-3,
    num_observed=5,
    num_unobserved=5,
  )
  auditor = epe_jax.Auditor(config, seed=0)
  auditor.save(tmp_path / 'new' / 'a.npz')
  with pytest.raises(ValueError, match=r'Auditor\.load\(.*\.report\(\) is its'):
    score_files.load(tmp_path / 'new' / 'a.npz')


def test_an_array_without_labels_says_which_flags_name_them(tmp_path):
  np.save(tmp_path / 'a.npy', TARGET)
  done = run_command('estimate', tmp_path / 'a.npy', '--delta=1e-5')
  assert 'give --labels=FILE, 1 or 0 for each' in done.stderr


def test_a_table_with_labels_elsewhere_has_columns_of_known_names(tmp_path):
  labels = tmp_path / 'labels.npy'
  np.save(labels, LABELS)
  table = {'id': range(55), 'score': TARGET, 'other': REFERENCE}
  pandas.DataFrame(table).to_csv(tmp_path / 'a.csv', index=False)
  np.savez(tmp_path / 'a.npz', **{k: np.array(x) for k, x in table.items()})
  for name in ('a.csv', 'a.npz'):
    for score, expected in (
      (None, TARGET),
      ('score-other', TARGET - REFERENCE),
    ):
      roles = score_files.Roles(score=score, labels=str(labels))
      scores = score_files.load(tmp_path / name, roles=roles).scores
      np.testing.assert_array_equal(scores.observed, expected[LABELS == 1])
  pandas.DataFrame({'a': TARGET, 'b': TARGET}).to_csv(tmp_path / 'b.csv')
  with pytest.raises(
    ValueError, match="'a', 'b', and nothing says which is meant"
  ):
    score_files.load(tmp_path / 'b.csv', roles=roles._replace(score=None))


def test_a_missing_reader_of_parquet_is_named_with_its_extra(
  tmp_path, monkeypatch
):
  (tmp_path / 'a.parquet').write_bytes(b'PAR1')
  monkeypatch.setitem(sys.modules, 'pyarrow', None)
  with pytest.raises(ModuleNotFoundError, match="with the extra 'training'"):
    score_files.load(tmp_path / 'a.parquet')


@pytest.mark.parametrize('drop', [True, False])
def test_a_roc_bounds_what_its_scores_bound(tmp_path, drop):
  roc = metrics.roc_curve(LABELS, np.round(TARGET, 1), drop_intermediate=drop)
  names = 'fpr', 'tpr', 'thresholds'
  path = tmp_path / 'roc.json'
  path.write_text(json.dumps(dict(zip(names, (x.tolist() for x in roc)))))
  roles = score_files.Roles(num_in=30, num_out=25)
  scores = score_files.load(path, roles=roles).scores
  assert scores.is_ordinal
  direct = formats.split_by_label('here', np.round(TARGET, 1), LABELS)
  of_roc, of_scores = (
    epsilon.lower_bound(x, delta=1e-5, multiplicity=epsilon.Band())
    for x in (scores, direct)
  )
  assert of_roc == of_scores
  np.savetxt(
    tmp_path / 'roc.csv',
    np.c_[roc[0], roc[1]][::-1],
    delimiter=',',
    header='FPR,TPR',
  )
  again = score_files.load(tmp_path / 'roc.csv', roles=roles).scores
  np.testing.assert_array_equal(again.observed, scores.observed)
  flags = '--num_in=30', '--num_out=25', '--delta=1e-2'
  done = run_command('estimate', path, *flags)
  assert '30 canaries took part, 25 were held out' in done.stdout
  assert 'of these scores the order is taken' in ' '.join(done.stdout.split())
  assert 'and about' not in done.stdout, 'thresholds say less than a law'


def test_a_roc_of_rounded_rates_is_refused(tmp_path):
  rng = np.random.default_rng(0)
  labels = np.repeat([1, 0], 1000)
  fpr, tpr, _ = metrics.roc_curve(labels, rng.normal(size=2000))
  roles = score_files.Roles(num_in=1000, num_out=1000)
  for digits, factor, divisor in ((2, 1, 10), (9, 100, 100)):
    table = {'fpr': np.round(fpr, digits), 'tpr': np.round(tpr, digits)}
    pandas.DataFrame(table).to_csv(tmp_path / 'a.csv', index=False)
    many = roles._replace(num_in=1000 * factor, num_out=1000 * factor)
    with pytest.raises(
      ValueError, match=f'values of tpr are multiples of {divisor} of'
    ):
      score_files.load(tmp_path / 'a.csv', roles=many)
  pandas.DataFrame({'fpr': fpr, 'tpr': tpr}).to_csv(tmp_path / 'a.csv')
  assert score_files.load(tmp_path / 'a.csv', roles=roles).scores.is_ordinal


def test_one_point_of_a_roc_is_a_threshold(tmp_path):
  text = '{"tpr": 0.9, "fpr": 0.04, "num_in": 30, "num_out": 25}'
  (tmp_path / 'a.json').write_text(text)
  scores = score_files.load(tmp_path / 'a.json').scores
  top = scores.observed.max()
  assert np.sum(scores.observed == top) == 27
  assert np.sum(scores.unobserved == top) == 1


@pytest.mark.parametrize(
  ('fpr', 'tpr', 'numbers', 'message'),
  [
    ([0, 1], [0, 1], (None, None), 'num_in=N took part, num_out=N did not'),
    ([0, 0.5], [0, 0.5], (3, 2), 'tpr=0.5 of num_in=3 canaries .* but 1.5'),
    ([0, 0.5], [0, 1.5], (2, 2), 'tpr=1.5 of num_in=2'),
    ([0, 0.5], [0, 'nan'], (2, 2), "column tpr: 'nan' is not finite"),
    ([0.5, 1], [1, 0], (2, 2), 'where fpr grows, tpr falls'),
    ([0.5, 1], [1], (2, 2), 'tpr has 1 entries and fpr 2'),
  ],
)
def test_what_is_no_roc_is_refused(tmp_path, fpr, tpr, numbers, message):
  path = tmp_path / 'a.json'
  path.write_text(json.dumps({'fpr': fpr, 'tpr': tpr}))
  roles = score_files.Roles(num_in=numbers[0], num_out=numbers[1])
  with pytest.raises(ValueError, match=message):
    score_files.load(path, roles=roles)


def test_guesses_are_counted(tmp_path):
  path = tmp_path / 'a.csv'
  path.write_text('member,y_pred\n1,1\n1,true\n1,0\n0,out\n0,in\n')
  expected = counts.Counts(FN=1, FP=1, TN=1, TP=2)
  assert score_files.load(path).scores == expected
  done = run_command('estimate', path, '--delta=1e-5')
  assert 'FN 1, FP 1, TN 1, TP 2' in done.stdout
  path.write_text('tp,fp,tn,fn,accuracy\n2,1,1,1,0.6\n')
  assert score_files.load(path).scores == expected
  path.write_text('tp,fp,tn,fn\n2,1,1,1\n2,1,1,1\n')
  with pytest.raises(ValueError, match='has 2 entries of FN'):
    score_files.load(path)
  np.savez(tmp_path / 'a.npz', TP=2, FP=1, TN=1, FN=1)
  assert score_files.load(tmp_path / 'a.npz').scores == expected


def test_an_infinite_score_of_a_file_is_the_largest(tmp_path):
  for name, text in (
    ('a.csv', 'in,out\ninf,1\n2,-inf\n'),
    ('a.json', '{"in": [Infinity, 2], "out": [1, -Infinity]}'),
  ):
    (tmp_path / name).write_text(text)
    scores = score_files.load(tmp_path / name).scores
    assert scores.is_ordinal
    assert scores.observed[0] > 2
    assert scores.unobserved[1] < 1


def test_each_command_of_the_page_reads_its_file(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  page = pathlib.Path(__file__).parents[2] / 'docs/scores.md'
  for name in ('attack.csv', 'attack.parquet'):
    values = dict(zip(('id', 'reference', 'target', 'split'), COLUMNS.values()))
    pandas.DataFrame(values).pipe(
      lambda frame, name=name: getattr(frame, f'to_{name[7:]}')(name)
    )
  groups = {'real': TARGET[:30].tolist(), 'fake': TARGET[30:].tolist()}
  (tmp_path / 'attack.json').write_text(json.dumps({'mia': groups}))
  np.save('losses.npy', -TARGET)
  np.save('members.npy', LABELS)
  fpr, tpr, _ = metrics.roc_curve(np.repeat([1, 0], 500), RNG.normal(size=1000))
  pandas.DataFrame({'fpr': fpr, 'tpr': tpr}).to_csv('roc.csv')
  guesses = {'prediction': np.int32(TARGET > 1), 'label': LABELS}
  pandas.DataFrame(guesses).to_csv('guesses.csv')
  labelled = {'score': TARGET, 'label': LABELS}
  pandas.DataFrame(labelled).to_csv('scores.csv', index=False)
  pandas.DataFrame({'loss': -TARGET, 'label': LABELS}).to_csv('losses.csv')
  (tmp_path / 'in.txt').write_text('3\n2\n4\n')
  np.save('out.npy', OUT)
  report = tmp_path / 'report/exp'
  report.mkdir(parents=True)
  np.savez(report / 'attack_result_0.npz', scores=TARGET, memberships=LABELS)
  commands = re.findall(r'^epe-jax (estimate .*)$', page.read_text(), re.M)
  assert len(commands) >= 11
  for command in commands:
    done = run_command(*command.replace('--out=report', '').split())
    assert done.returncode == 0, (command, done.stderr)


def test_runs_are_not_compared_by_an_order_of_scores(tmp_path):
  for name, top in (('a.csv', 'inf'), ('b.csv', '5')):
    text = f'in,out\n{top},1\n2,0\n3,{len(top)}.5\n'
    (tmp_path / name).write_text(text)
  files = tmp_path / 'a.csv', tmp_path / 'b.csv'
  refused = run_command('estimate', *files, '--delta=1e-5')
  assert refused.returncode == 2
  assert 'a.csv has the order of scores and no values' in refused.stderr


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
  reversed_ = counts.Counts(FN=90, FP=90, TN=10, TP=10)
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
    score_files.load_groups(path, path.with_name('other.txt'))


def test_names_of_columns_may_hold_numbers_and_groups_may_end_early(tmp_path):
  path = tmp_path / 'scores.csv'
  path.write_text('run 1,in,out\n0,1,2\n0,4,3\n0,,5\n')
  scores = score_files.load(path).scores
  assert scores.observed.tolist() == [1, 4]
  assert scores.unobserved.tolist() == [2, 3, 5]
  # A cell that is missing in the middle may be a score that is not a number.
  path.write_text('run 1,in,out\n0,1,2\n0,,3\n0,4,5\n')
  with pytest.raises(ValueError, match="line 3, column in: '' is missing"):
    score_files.load(path)


@pytest.mark.parametrize('name', ['member', 'train'])
def test_a_header_may_be_a_word_that_labels_have(tmp_path, name):
  scores, labels = tmp_path / 's.txt', tmp_path / 'l.csv'
  scores.write_text('train\n3\n1\n2\n')
  labels.write_text(f'{name}\n1\n0\n1\n')
  roles = score_files.Roles(labels=str(labels))
  found = score_files.load(scores, roles=roles).scores
  assert found.observed.tolist() == [3, 2]


def test_losses_need_a_sign_wherever_they_stand(tmp_path):
  table, labels = tmp_path / 't.csv', tmp_path / 'l.txt'
  table.write_text('loss\n3\n1\n2\n')
  labels.write_text('1\n0\n1\n')
  two = tmp_path / 'two.csv'
  two.write_text('train_loss,test_loss\n3,1\n2,4\n')
  named = score_files.Roles(in_scores='train_loss', out_scores='test_loss')
  for load in (
    lambda **x: score_files.load(
      table, roles=score_files.Roles(labels=str(labels)), **x
    ),
    lambda **x: score_files.load_groups(table, two.with_name('o.csv'), **x),
    lambda **x: score_files.load(two, roles=named, **x),
  ):
    (tmp_path / 'o.csv').write_text('loss\n5\n6\n')
    with pytest.raises(
      ValueError, match='which are lower for what was trained'
    ):
      load()
    load(higher='out')


def test_labels_of_guesses_are_those_of_scores(tmp_path):
  path = tmp_path / 'a.npz'
  np.savez(path, y_pred=np.array([1, 0, 1]), label=np.array([1, 2, 1]))
  with pytest.raises(ValueError, match='labels has the entry 2'):
    score_files.load(path)
