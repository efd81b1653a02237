"""What is left of ε where a baseline that is blind to the model is known."""

import json

import numpy as np
import pandas
import pytest

from epe_jax.epsilon import registry
from epe_jax.epsilon.types import Scores
from epe_jax.scores import baseline, score_audit, score_files
from tests.in_process import run_command

DELTA = 1e-5


def draw(rng, shift=1.5, leak=0.0, num=400, *, is_rounded=False):
  """An attack on a model, and what it is made of but for the leak."""
  blind = Scores(rng.normal(shift, 1, num), rng.normal(0, 1, num))
  if is_rounded:
    blind = Scores(np.round(blind.observed), np.round(blind.unobserved))
  noise = rng.normal(size=(2, num))
  attack = blind.observed + noise[0] + leak, blind.unobserved + noise[1]
  return Scores(*attack), blind


def test_two_populations_have_an_epsilon_that_is_not_of_the_model():
  scores, blind = draw(np.random.default_rng(0))
  kept, fact = baseline.keep_neighbors(scores, blind, delta=DELTA, name='b')
  assert fact.key == 'populations_differ'
  assert fact.values['blind'] > 1
  assert fact.values['epsilon'] > 1
  assert kept.observed.size == kept.unobserved.size == fact.values['pairs']
  assert registry.BAND(kept, delta=DELTA).epsilon == 0


def test_a_leak_is_left_where_the_baseline_is_known():
  scores, blind = draw(np.random.default_rng(0), leak=3.0)
  kept, fact = baseline.keep_neighbors(scores, blind, delta=DELTA, name='b')
  assert 1 < registry.BAND(kept, delta=DELTA).epsilon < fact.values['epsilon']


def test_one_population_is_not_said_to_be_two():
  scores, blind = draw(np.random.default_rng(0), shift=0.0, leak=3.0)
  for sign in (1, -1):
    turned = Scores(sign * blind.observed, sign * blind.unobserved)
    kept, fact = baseline.keep_neighbors(scores, turned, delta=DELTA, name='b')
    assert fact.key == 'populations_alike'
    assert fact.values['blind'] == 0
    # Of 800 in random order two thirds are in pairs of neighbours.
    assert kept.observed.size == pytest.approx(800 / 3, rel=0.1)


@pytest.mark.parametrize('is_rounded', [False, True])
@pytest.mark.parametrize('shift', [0.5, 2.0])
def test_a_model_without_leak_is_accused_in_one_audit_of_twenty(
  shift, is_rounded
):
  rng, audits = np.random.default_rng(1), 150
  accused = 0
  for _ in range(audits):
    scores, blind = draw(rng, shift, num=300, is_rounded=is_rounded)
    pairs = baseline.pair_neighbors(blind.observed, blind.unobserved)
    kept = Scores(scores.observed[pairs[0]], scores.unobserved[pairs[1]])
    accused += registry.BAND(kept, delta=DELTA).epsilon > 0
  # Binomial(150, 0.05) is above 17 with a chance of 6e-4; blind to b all are accused.
  assert accused <= 17
  assert registry.BAND(scores, delta=DELTA).epsilon > 0


def test_neighbours_are_of_either_group_and_in_one_pair_each():
  rng = np.random.default_rng(0)
  inside, outside = rng.normal(1, 1, 50), rng.normal(0, 1, 90)
  first, second = baseline.pair_neighbors(inside, outside)
  assert len({*first}) == len({*second}) == first.size
  everything = np.sort(np.concatenate([inside, outside]))
  at = lambda x: np.searchsorted(everything, x)
  assert np.all(np.abs(at(inside[first]) - at(outside[second])) == 1)


def test_populations_that_do_not_overlap_are_not_compared():
  scores, _ = draw(np.random.default_rng(0))
  apart = Scores(np.arange(400.0) + 1000, np.arange(400.0))
  with pytest.raises(ValueError, match='baseline=b separates the groups'):
    baseline.keep_neighbors(scores, apart, delta=DELTA, name='b')
  short = Scores(np.arange(2.0), np.arange(2.0))
  with pytest.raises(ValueError, match='baseline=b has 2 and 2 scores'):
    baseline.keep_neighbors(scores, short, delta=DELTA, name='b')
  coins = Scores(scores.observed, scores.unobserved, design='coin_flip')
  with pytest.raises(ValueError, match="design='coin_flip' or dim"):
    baseline.keep_neighbors(coins, apart, delta=DELTA, name='b')


# Files, and Python.


def write(path, scores, blind, **columns):
  groups = {
    name: np.concatenate([x.observed, x.unobserved])
    for name, x in (('score', scores), ('other', blind))
  }
  label = np.repeat([1, 0], [scores.observed.size, scores.unobserved.size])
  frame = pandas.DataFrame({**groups, 'label': label, **columns})
  frame.sample(frac=1, random_state=0).to_csv(path, index=False)


def test_the_command_tells_two_populations_apart(tmp_path):
  path = tmp_path / 'a.csv'
  scores, blind = draw(np.random.default_rng(0))
  write(path, scores, blind)
  plain = run_command('estimate', path, '--delta=1e-5', '--claim=0.5')
  assert plain.returncode == 1
  text = ' '.join(plain.stdout.split())
  assert 'Are both groups drawn from one population?' in text
  known = run_command(
    'estimate', path, '--delta=1e-5', '--claim=0.5', '--baseline=other'
  )
  assert known.returncode == 0, known.stderr
  text = ' '.join(known.stdout.split())
  assert 'Warning: the groups are not of one population: other, which' in text
  assert 'Canaries show ε of at least 0.00' in text
  for flags, message in (
    (['--baseline=no'], "no column 'no'"),
    (['--baseline=other', '--design=coin_flip'], 'baseline=other, but scores'),
    ([path, '--baseline=other'], '--baseline is of one file'),
  ):
    refused = run_command('estimate', path, '--delta=1e-5', *flags)
    assert refused.returncode == 2
    assert message in refused.stderr
  (tmp_path / 'c.csv').write_text('guess,label,other\n1,1,3\n0,0,1\n')
  roles = score_files.Roles(baseline='other')
  with pytest.raises(ValueError, match='baseline=other is of scores'):
    score_files.load(tmp_path / 'c.csv', roles=roles)
  (tmp_path / 'b.csv').write_text('in,out,other\n1,2,3\n3,2,1\n')
  refused = run_command(
    'estimate', tmp_path / 'b.csv', '--delta=1e-5', '--baseline=other'
  )
  assert 'has no row for each example' in refused.stderr


def test_a_baseline_may_have_a_file_of_its_own(tmp_path):
  scores, blind = draw(np.random.default_rng(0))
  join = lambda x: np.concatenate([x.observed, x.unobserved])
  np.save(tmp_path / 'a.npy', join(scores))
  np.save(tmp_path / 'b.npy', join(blind))
  np.save(tmp_path / 'labels.npy', np.repeat([1, 0], 400))
  roles = score_files.Roles(
    labels=str(tmp_path / 'labels.npy'), baseline=str(tmp_path / 'b.npy')
  )
  loaded = score_files.load(tmp_path / 'a.npy', roles=roles)
  np.testing.assert_array_equal(loaded.baseline.observed, blind.observed)
  with pytest.raises(ValueError, match=r'a\.npy has no columns'):
    score_files.load(tmp_path / 'a.npy', roles=roles._replace(baseline='b'))


def test_an_index_that_differs_between_groups_is_asked_about(tmp_path):
  path = tmp_path / 'a.csv'
  scores, blind = draw(np.random.default_rng(0), shift=0.0)
  newer = np.r_[2020 + np.arange(400) % 4, 2018 + np.arange(400) % 4]
  write(path, scores, blind, Year=newer)
  assert score_files.load(path).doubt.values['names'] == 'Year'
  done = run_command('estimate', path, '--delta=1e-5')
  text = ' '.join(done.stdout.split())
  assert 'Warning: the groups differ in Year (p < 1e-6)' in text
  assert '--baseline=Year shows what is left' in text
  assert 'drawn from one population?' not in text, 'that is asked once'
  claim = '--delta=1e-5', '--claim=9'
  refused = run_command('estimate', path, *claim)
  assert refused.returncode == 2
  assert '--claim=9 cannot be judged: the groups differ' in refused.stderr
  as_json = run_command('estimate', path, '--delta=1e-5', '--format=json')
  assert 'differ in Year' in json.loads(as_json.stdout)['warnings'][0]
  for given in ('none', 'year'):
    done = run_command('estimate', path, *claim, f'--baseline={given}')
    assert done.returncode == 0, done.stderr
    assert 'the groups differ in' not in done.stdout
  rng = np.random.default_rng(0)
  # Drawn as one population, or the number of a line.
  for columns in ({'id': rng.permutation(800)}, {'name': np.arange(800)}):
    write(path, scores, blind, **columns)
    assert score_files.load(path).doubt is None
  frame = pandas.read_csv(path).sort_values('label')
  frame.assign(index=range(800)).to_csv(path, index=False)
  assert score_files.load(path).doubt is None


def test_dates_and_words_that_differ_between_groups_are_asked_about(tmp_path):
  path = tmp_path / 'a.csv'
  scores, blind = draw(np.random.default_rng(0), shift=0.0)
  days = np.arange(400) % 97
  start = np.datetime64('2024-01-01')
  write(
    path,
    scores,
    blind,
    **{'Publication Date': np.r_[start + 60 + days, start + days]},
    source=np.repeat(['web', 'books', 'web'], [300, 200, 300]),
    n_tokens=np.r_[days, days],
    example_id=np.r_[400 + np.arange(400), np.arange(400)],
    date_read=['soon', *np.arange(799)],
  )
  doubt = score_files.load(path).doubt
  assert doubt.values['names'] == 'Publication Date, example_id'
  assert doubt.values['baseline'] == 'Publication Date'
  for name in ('Publication Date', 'source'):
    done = run_command('estimate', path, '--delta=1e-5', f'--baseline={name}')
    assert f'pairs of neighbours in the order of {name}' in ' '.join(
      done.stdout.split()
    ) or 'does not tell the groups apart' in ' '.join(done.stdout.split())
  bad = run_command('estimate', path, '--delta=1e-5', '--baseline=date_read')
  assert "column date_read: 'soon' is not a number" in bad.stderr


@pytest.mark.parametrize(
  'form', ['%d/%m/%Y', '%m/%d/%Y', '%b %d, %Y', '%d.%m.%Y %H:%M']
)
def test_dates_are_read_as_people_write_them(tmp_path, form):
  scores, blind = draw(np.random.default_rng(0), shift=0.0)
  days = np.arange(800) // 400 * -100 + np.arange(800) % 97 + 200
  dates = pandas.Timestamp('2023-01-01') + pandas.to_timedelta(days, unit='D')
  write(tmp_path / 'a.csv', scores, blind, date=dates.strftime(form))
  loaded = score_files.load(tmp_path / 'a.csv')
  assert loaded.doubt.values['names'] == 'date'
  assert loaded.doubt.values['baseline'] == '', 'they do not overlap'


def test_two_arrays_may_come_with_a_baseline():
  scores, blind = draw(np.random.default_rng(0))
  found = score_audit.estimate(
    scores.observed,
    scores.unobserved,
    delta=DELTA,
    baseline=(blind.observed, blind.unobserved),
  )
  assert found.lower_bound.epsilon == 0
  assert 'baseline, which has not seen the model, tells them' in ' '.join(
    found.text.split()
  )
