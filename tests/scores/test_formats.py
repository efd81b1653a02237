"""Score files of other tools: what is read, by which sign, and what is refused.

Files have the fields and shapes of the tools' own code, which the modules name.
"""

import dataclasses
import json

import numpy as np
import pytest
from scipy import stats

from epe_jax import epsilon, typed_json
from epe_jax.report import checks
from epe_jax.scores import counts, formats, score_files
from tests.in_process import run_command
from tests.sentences import find_sentences

DELTA = 1e-5


def draw(num=400, shift=2.0, seed=0):
  """Scores, and whether a fair coin let each take part."""
  rng = np.random.default_rng(seed)
  members = rng.random(num) < 0.5
  return rng.normal(size=num) + shift * members, members


def read(path, **settings):
  return score_files.load(path, **settings).scores


def assert_read(scores, values, members, sign=1):
  np.testing.assert_allclose(scores.observed, sign * values[members])
  np.testing.assert_allclose(scores.unobserved, sign * values[~members])


# ML Privacy Meter.


def write_report(path, values, members, **more):
  """What `get_audit_results` of ML Privacy Meter writes."""
  fpr = tpr = np.linspace(0, 1, 5)
  np.savez(
    path,
    fpr=fpr,
    tpr=tpr,
    auc=0.9,
    one_tenth_fpr=0.1,
    zero_fpr=0.0,
    scores=values.ravel(),
    memberships=members.ravel(),
    **more,
  )


def write_dp_report(path, values, members):
  """What `get_all_dp_audit_results` of ML Privacy Meter writes."""
  np.savez(
    path,
    eps=[0.0, 1.0],
    correct_num=[3, 4],
    k_neg=[0, 20],
    k_pos=[20, 40],
    total_num=members.size,
    scores=values.ravel(),
    memberships=members.ravel(),
  )


def test_a_report_of_privacy_meter_has_higher_scores_for_members(tmp_path):
  values, members = draw()
  write_report(tmp_path / 'attack_result_0.npz', values, members)
  scores = read(tmp_path / 'attack_result_0.npz')
  assert_read(scores, values, members)
  assert scores.design == 'fixed'


def test_a_dp_audit_of_privacy_meter_has_coins(tmp_path):
  values, members = draw()
  path = tmp_path / 'attack_result_average_dp.npz'
  write_dp_report(path, values, members)
  scores = read(path)
  assert_read(scores, values, members)
  assert (scores.design, scores.inclusion_probability) == ('coin_flip', 0.5)
  assert read(path, design='fixed').design == ('fixed')


def privacy_meter_bound(values, members, delta, p):
  """`compute_abstain_attack_results`: the best of many guesses, uncorrected."""
  labels = members[np.argsort(values)]
  size, step = labels.size, int(np.sqrt(labels.size))
  best = 0.0
  for top in range(0, size, step):
    for bottom in range(0, top, step):
      right = int(np.sum(~labels[:bottom]) + np.sum(labels[top:]))
      guesses = bottom + size - top
      while _one_run_p(size, guesses, right, best + 0.01, delta) < p:
        best += 0.01
  return best


def _one_run_p(m, r, v, epsilon_, delta):
  """Steinke et al., algorithm 1, as ML Privacy Meter has it."""
  q = 1 / (1 + np.exp(-epsilon_))
  i = np.arange(1, v + 1)
  total = np.cumsum(stats.binom.pmf(v - i, r, q))
  alpha = np.max(total / i, initial=0.0)
  return min(1.0, stats.binom.sf(v - 1, r, q) + 2 * m * delta * alpha)


def test_the_one_run_bound_is_beside_that_of_privacy_meter(tmp_path):
  values, members = draw(300, shift=3.0)
  path = tmp_path / 'attack_result_average_dp.npz'
  write_dp_report(path, values, members)
  scores = read(path)
  ours = epsilon.one_run(scores, delta=DELTA).epsilon
  # Theirs is the largest over guesses, each at 5 %, so no bound and above ours.
  theirs = privacy_meter_bound(values, members, DELTA, 0.05)
  assert 0.6 * theirs < ours <= theirs + 0.02
  reversed_ = read(path, higher='out')
  assert epsilon.one_run(reversed_, delta=DELTA).epsilon == 0


def test_examples_that_are_in_a_report_more_than_once_are_refused(tmp_path):
  path = tmp_path / 'attack_result_average.npz'
  values, members = draw(60)
  pooled = np.concatenate([members, ~members, np.roll(members, 7)])
  write_report(path, np.tile(values, 3), pooled)
  with pytest.raises(ValueError, match='pools the scores of 3 target models'):
    read(path)
  write_report(path, np.repeat(values, 5), np.repeat(members, 5))
  with pytest.raises(ValueError, match='in blocks of 5'):
    read(path)


def test_members_may_come_before_the_others(tmp_path):
  path = tmp_path / 'attack_result_0.npz'
  values, members = np.arange(200.0), np.repeat([True, False], 100)
  write_report(path, values, members)
  assert_read(read(path), values, members)


def test_the_loss_attack_of_privacy_meter_is_read_with_its_sign(tmp_path):
  # At e384af8 its signal is the softmax of the true class, and its score minus that.
  values, members = draw()
  path = tmp_path / 'attack_result_0.npz'
  write_report(path, -stats.norm.cdf(values), members)
  as_documented = read(path)
  failed = formats.find_reversed(as_documented)
  assert failed is not None
  assert not list(find_sentences(typed_json.to_plain(failed)))
  assert "give higher='out'" in checks.describe_check(failed)
  as_written = read(path, higher='out')
  assert formats.find_reversed(as_written, higher='out') is None


# The RMIA paper's code.


@pytest.mark.parametrize('name', ['attack_predictions_3', 'scores_3_gamma_2.0'])
def test_files_of_the_rmia_paper_have_lower_scores_for_members(tmp_path, name):
  values, members = draw()
  path = tmp_path / f'{name}.npz'
  if name.startswith('scores'):
    # As rows: [1, n] scores of the target model.
    np.savez(path, scores=-values[None], answers=members, gamma=2.0)
  else:
    np.savez(
      path,
      fpr_list=[0.0, 1.0],
      tpr_list=[0.0, 1.0],
      thresholds=[1.0, 0.0],
      scores=-values,
      answers=members,
      correct=members,
    )
  scores = read(path)
  assert_read(scores, values, members)
  assert formats.find_reversed(scores, higher='out') is None
  assert score_files.load(path).tool is formats.FORMATS['rmia']


# privacy-estimates.


@pytest.mark.parametrize('counted', [(100, 10, 990, 900), (3, 40, 460, 200)])
def test_counts_bound_what_privacy_estimates_bounds(tmp_path, counted):
  theirs = pytest.importorskip('privacy_estimates')
  results = theirs.AttackResults(**dict(zip(('FN', 'FP', 'TN', 'TP'), counted)))
  path = tmp_path / 'results.json'
  results.to_json(path)
  found = read(path)
  assert found == counted
  estimate = counts.bound_counts(found, delta=DELTA)
  expected = theirs.compute_eps_lo(results, DELTA, 0.05, 'beta')
  assert expected > 1
  assert estimate.epsilon == pytest.approx(expected, rel=1e-9)
  assert estimate.confidence == 0.95


def test_counts_of_guesses_the_wrong_way_around_bound_nothing():
  guesses = counts.Counts(FN=900, FP=990, TN=10, TP=100)
  assert counts.bound_counts(guesses, delta=DELTA).epsilon == 0


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('FN', 'is not JSON'),
    ('{"FN": 1, "FP": 2.5, "TN": 3, "TP": 4}', 'FP=2.5 is not a count'),
    ('{"FN": 1, "FP": -2, "TN": 3, "TP": 4}', 'FP=-2 is not a count'),
    ('{"FN": 0, "FP": 2, "TN": 3, "TP": 0}', r'TP \+ FN = 0'),
  ],
)
def test_what_is_no_counts_is_refused(tmp_path, text, message):
  path = tmp_path / 'results.json'
  path.write_text(text)
  with pytest.raises(ValueError, match=message):
    read(path)


# Tables.


@pytest.mark.parametrize(
  ('name', 'text'),
  [
    ('a.tsv', 'score\tlabel\n3\tmember\n1\tnonmember\n2\t1\n0\tno\n4\t1\n'),
    ('a.csv', 'score,label\n3,1\n1,-1\n2,1\n0,-1.0\n4,1\n'),
    ('a.csv', 'in,out\n3,1\n2,0,\n4,,,\n'),
    ('a.csv', 'label,score,observed\n7,3,1\n7,1,0\n8,2,1\n8,0,0\n9,4,1\n'),
  ],
)
def test_tables_of_many_shapes_have_the_same_scores(tmp_path, name, text):
  (tmp_path / name).write_text(text)
  scores = score_files.load(tmp_path / name).scores
  assert scores.observed.tolist() == [3, 2, 4]
  assert scores.unobserved.tolist() == [1, 0]
  negated = score_files.load(tmp_path / name, higher='out').scores
  assert negated.observed.tolist() == [-3, -2, -4]


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('', 'is empty'),
    ('1\n2\n', r'no names of columns\. .* With a file for each group'),
    ('score\n2\n', "columns 'score': .* With a file for each group"),
    ('1,0\n0,1\n', r'no names of columns\. Give names, such as in and out'),
    ('loss,label\n1,0\n0,1\n', 'Say so with --higher=out'),
    ('scores,cosine,label\n1,1,0\n', 'scores or cosine tells the scores'),
    ('# by me\nin,out\nx,0\n', "line 3, column in: 'x' is not a number"),
    ('score,label,member\n1,1,1\n', 'label or member tells who took part'),
    ('in,out,in\n1,1,1\n', "two columns 'in'"),
    ('in,out\n1,x\n', "line 2, column out: 'x' is not a number"),
    ('in,out\n1,\n', 'that did not take part. Add them, .* --dim=D'),
    (
      'in,out\n1,2\n3,nan\n',
      "line 3, column out: 'nan' is not finite. Remove such rows if",
    ),
    ('score,label\n1,1\n2,0\n3,-1\n', 'label has the entry 0'),
    ('in;out\n1,5;2,3\n', 'Use a point as the decimal mark'),
    ('in,out\n1,2\n1,2,3\n', 'line 3 has 3 fields, but the header has 2'),
    ('in,out\n1,2\n\n1\n', 'line 4 has 1 fields, .* write their commas'),
    ('score,label\n1,1\n2\n3,0\n', 'line 3 has 1 fields, but the header has 2'),
    ('in,out\n1,2\n1e999,3\n', "line 3, column in: '1e999' is not finite"),
    ('in,out\n"1,2\n3,4\n', 'line 3: not a CSV file'),
    (
      'score,label\n1,7\n',
      "line 2, column label: '7' does not say who took part; write 1 or 0",
    ),
  ],
)
def test_tables_that_make_no_sense_are_refused(tmp_path, text, message):
  path = tmp_path / 'a.csv'
  path.write_text(text)
  with pytest.raises(ValueError, match=message):
    score_files.load(path)


# What all have in common.


def test_formats_are_recognized_by_their_fields(tmp_path):
  values, members = draw()
  write_report(tmp_path / 'a.npz', values, members)
  np.savez(tmp_path / 'b.npz', scores=values, answers=members)
  np.savez(tmp_path / 'c.npz', observed=values, unobserved=values)
  counted = '{"FN": 1, "FP": 2, "TN": 3, "TP": 4}'
  (tmp_path / 'd.json').write_text(counted)
  for name, expected in (
    ('a.npz', 'privacy_meter'),
    ('b.npz', 'rmia'),
    ('c.npz', None),
    ('d.json', None),
  ):
    found = score_files.load(tmp_path / name)
    assert (found.tool and found.tool.name) == expected
    if found.tool is not None:
      again = read(tmp_path / name, source=found.tool.name)
      np.testing.assert_array_equal(found.scores.observed, again.observed)
  assert read(tmp_path / 'd.json') == (1, 2, 3, 4)
  with pytest.raises(ValueError, match=r"source='roc' .* is neither 'auto'"):
    read(tmp_path / 'a.npz', source='roc')
  with pytest.raises(ValueError, match='dim=9 is of scores of other systems'):
    read(tmp_path / 'a.npz', dim=9)
  for name in ('a.npz', 'd.json'):
    with pytest.raises(ValueError, match=r'scores and answers.*--from on the'):
      read(tmp_path / name, source='rmia')


def test_a_new_format_is_one_entry(monkeypatch, tmp_path):
  mine = formats.ScoreFormat('mine', 'scores of mine', 'mine', higher='out')
  monkeypatch.setitem(formats.FORMATS, 'mine', mine)
  path = tmp_path / 'a.npz'
  np.savez(path, scores=[3.0, 4.0, 1.0, 2.0], mine=[1, 1, 0, 0])
  for source in ('auto', 'mine'):
    loaded = score_files.load(path, source=source)
    assert loaded.tool is mine
    assert loaded.scores.observed.tolist() == [-3, -4]
  done = estimate(path, '--from=mine')
  assert 'read as scores of mine; higher=out' in done.stderr


@pytest.mark.parametrize(
  ('scores', 'labels', 'message'),
  [
    ([1.0, 2.0], [1], 'scores has 2 entries and labels 1'),
    ([1.0, 2.0], [1, 2], 'labels has the entry'),
    ([1.0, 2.0], ['a', 'b'], 'labels has the entry'),
    ([1.0, 2.0], [1, np.nan], 'labels has the entry'),
    ([1.0, 2.0, 3.0], [1, 0, -1], 'labels has the entry'),
    ([1.0, 2.0], [1, 1], 'canaries that did not take part'),
    ([1.0, 2.0], [0, 0], 'canaries that took part'),
    ([1.0, np.nan], [0, 1], 'nan'),
    (['x', 'y'], [0, 1], 'real numbers'),
  ],
)
def test_labels_and_scores_that_make_no_sense_are_refused(
  scores, labels, message
):
  with pytest.raises(ValueError, match=f'here: .*{message}'):
    formats.split_by_label('here', scores, labels)


def test_labels_may_be_1_and_minus_1():
  scores = formats.split_by_label('here', [3.0, 1.0, 2.0], [1, -1, 1.0])
  assert scores.observed.tolist() == [3, 2]
  assert scores.unobserved.tolist() == [1]


def test_unsigned_scores_are_negated_as_numbers():
  scores = formats.make_scores(
    'here', np.array([1, 2], np.uint8), np.array([True, False]), higher='out'
  )
  assert scores.observed.tolist() == [-1, -2]
  assert scores.unobserved.tolist() == [-1, 0]
  masked = np.ma.masked_array([1.0, 2.0], [True, False])
  for higher in ('in', 'out'):
    with pytest.raises(ValueError, match='masked'):
      formats.make_scores('here', masked, [0.0], higher=higher)


@pytest.mark.usefixtures('types_unchecked')
def test_words_that_there_are_not_are_refused_by_name():
  with pytest.raises(ValueError, match="higher='up' is neither"):
    formats.make_scores('here', [1.0], [0.0], higher='up')


def test_a_sign_that_chance_may_have_made_is_not_warned_of():
  values, members = draw(200, shift=0.0)
  warned = [
    formats.find_reversed(formats.split_by_label('here', *draw(200, 0.0, seed)))
    for seed in range(100)
  ]
  # Each with a probability of 1e-3.
  assert sum(w is not None for w in warned) <= 2
  assert formats.find_reversed(
    formats.split_by_label('here', values - members, members)
  )


def test_every_reader_takes_the_sign_and_the_design(tmp_path):
  values, members = draw()
  write_report(tmp_path / 'a.npz', values, members)
  np.savez(tmp_path / 'b.npz', scores=values, answers=members)
  for name in ('a.npz', 'b.npz'):
    path = tmp_path / name
    up, down = (read(path, higher=higher) for higher in ('in', 'out'))
    np.testing.assert_array_equal(up.observed, -down.observed)
    np.testing.assert_array_equal(up.unobserved, -down.unobserved)
    coins = read(path, design='coin_flip', inclusion_probability=0.45)
    assert (coins.design, coins.inclusion_probability) == ('coin_flip', 0.45)


# The command.


def estimate(*arguments):
  return run_command('estimate', *arguments, f'--delta={DELTA}')


def test_the_command_says_how_it_read_a_file(tmp_path):
  values, members = draw(120)
  path = tmp_path / 'attack_predictions_0.npz'
  np.savez(path, scores=-values, answers=members)
  done = estimate(path, '--format=json')
  assert done.returncode == 0, done.stderr
  assert json.loads(done.stdout)['headline']['epsilon'] > 0
  assert "RMIA paper's code; higher=out, design=fixed" in done.stderr
  assert 'warning' not in done.stderr
  coins = estimate(path, '--format=json', '--design=coin_flip', '--from=rmia')
  assert 'one_run' in coins.stdout
  refused = estimate(path, '--from=privacy_meter')
  assert refused.returncode == 2
  assert 'but not scores and memberships' in refused.stderr


def test_the_command_warns_of_a_reversed_sign_and_of_no_other(tmp_path):
  values, members = draw(120, shift=3.0)
  path = tmp_path / 'scores.csv'
  lines = [f'{float(-x)!r},{int(m)}' for x, m in zip(values, members)]
  path.write_text('\n'.join(['score,label', *lines]) + '\n')
  done = estimate(path, '--format=json')
  assert f'warning: {path}: the sign is probably reversed' in done.stderr
  assert 'give --higher=out' in done.stderr
  values = json.loads(done.stdout)
  assert values['headline']['epsilon'] == 0
  assert 'give --higher=out' in values['warnings'][0]
  done = estimate(path)
  assert done.stderr == ''
  text = ' '.join(done.stdout.split())
  assert text.count('score lower than others (p < 1e-6)') == 1
  assert text.count('give --higher=out') == 1
  right = estimate(path, '--format=json', '--higher=out')
  assert right.stderr == ''
  assert json.loads(right.stdout)['headline']['epsilon'] > 0.5


def test_the_command_bounds_counts(tmp_path):
  guesses = counts.Counts(FN=100, FP=10, TN=990, TP=900)
  path = tmp_path / 'results.json'
  path.write_text(json.dumps(guesses._asdict()))
  text = estimate(path).stdout
  assert 'Clopper-Pearson' in text
  assert 'lower bound, 95 %' in text
  assert 'chosen without these canaries' in text
  rows = json.loads(estimate(path, '--format=json').stdout)
  bound = dataclasses.asdict(counts.bound_counts(guesses, delta=DELTA))
  assert rows[0] == json.loads(json.dumps(bound))
  refused = estimate(path, '--higher=out')
  assert '--higher is of scores' in refused.stderr
  other = tmp_path / 'other.csv'
  other.write_text('score,label\n1,1\n0,0\n')
  assert 'Give it alone' in estimate(path, other).stderr
  assert 'give --delta' in run_command('estimate', path).stderr
