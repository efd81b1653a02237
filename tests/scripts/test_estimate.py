"""`epe-jax estimate` and its readers: scores from anywhere, every estimate."""

import dataclasses
import functools
import json

import numpy as np
import pytest

from epe_jax import __version__
from epe_jax.audit import attackers, evaluation
from epe_jax.audit.record import Record
from epe_jax.audit.record_file import write_record
from epe_jax.epsilon import noise_floor, two_gaussians
from epe_jax.epsilon.types import Assumption, Scores, Sphere
from epe_jax.report import words
from epe_jax.scores import score_files
from tests import recorded_runs
from tests.in_process import run_command


def groups(num=300, shift=3.0):
  rng = np.random.default_rng(0)
  return rng.normal(shift, 1, num), rng.normal(0, 1, num)


def write_csv(path, observed, unobserved):
  lines = ['name,score,observed']
  for label, group in enumerate((unobserved, observed)):
    lines += [f'c{i},{float(x)!r},{label}' for i, x in enumerate(group)]
  path.write_text('\n'.join(lines) + '\n')


def test_a_run_is_read_from_its_workdir_or_its_scores(tmp_path):
  record = recorded_runs.by_law()
  (tmp_path / 'private').mkdir()
  write_record(tmp_path / 'private/scores.npz', record)
  for path in (tmp_path, tmp_path / 'private/scores.npz'):
    again = score_files.load(path).scores
    assert isinstance(again, Record)
    for field in dataclasses.fields(Record):
      mine, theirs = (getattr(r, field.name) for r in (again, record))
      assert type(mine) is type(theirs)
      if field.name == 'cosines':
        assert mine.keys() == theirs.keys()
        mine, theirs = ([x[name] for name in mine] for x in (mine, theirs))
        for one, other in zip(mine, theirs):
          np.testing.assert_array_equal(one, other)
        continue
      np.testing.assert_array_equal(mine, theirs)


@pytest.mark.integration
def test_only_fair_coins_get_a_one_run_bound():
  methods = {
    design: {
      estimate.method
      for estimate in evaluation.evaluate_scores(
        Scores(*groups(), design=design), delta=1e-5
      )
      .attacks[0]
      .estimates
    }
    for design in ('fixed', 'coin_flip')
  }
  assert methods['coin_flip'] - methods['fixed'] == {
    'one_run',
    'one_run_gdp',
    'one_run_independent',
    'one_run_independent_gdp',
  }


def test_the_ladder_leaves_out_what_cannot_be_read():
  def statistics(record):
    return [
      words.spell_statistic(attack_scores.threat_model)
      for attack_scores in attackers.score_all(record)
    ]

  record = recorded_runs.by_law()
  whole = statistics(record)
  assert whole == [
    'cosine with the final model',
    'cosine with the change of the model',
    'maximum over rounds',
    'likelihood over rounds',
    'own round',
    'own round, others removed',
  ]
  for left_out, without in (
    ('likelihood', recorded_runs.show_as(record, 'server_update')),
    ('final', recorded_runs.replace_cosines(record, final=None)),
    ('change', recorded_runs.replace_cosines(record, change=None)),
  ):
    assert statistics(without) == [s for s in whole if left_out not in s]
  for repetitions, view in ((1, 'aggregate'), (4, 'aggregate'), (1, 'models')):
    some = recorded_runs.by_law(repetitions=repetitions)
    for attack_scores in attackers.score_all(
      dataclasses.replace(
        recorded_runs.show_as(some, view),
        rounds=None if view == 'models' else some.rounds,
      )
    ):
      exact = attack_scores.scores.has_known_null
      attacker = attack_scores.threat_model
      own = attacker in (attackers.OWN, attackers.RESIDUAL)
      model = attacker in (attackers.FINAL, attackers.CHANGE)
      once = repetitions == 1 and view == 'aggregate'
      # The noise of different rounds is orthogonal, and their aggregates not.
      alone = attacker == attackers.RESIDUAL and view != 'models'
      assert exact == (model or alone or (own and once))
      assert attack_scores.view.startswith('published') == (
        view == 'models' and not model
      )


def test_a_dim_that_the_scores_refute_is_not_believed():
  observed, unobserved = groups(500, shift=0.0)
  wrong = Scores(observed / 100, unobserved / 100, null=Sphere(100 * 10**4))
  audit = evaluation.evaluate_scores(wrong, delta=1e-5)
  (attack,) = audit.attacks
  assert attack.failed_checks[0].key == 'null_law_rejected'
  assert attack.bounds
  for bound in attack.bounds:
    assert bound.epsilon < 1
    assert Assumption.COSINE_NULL not in bound.assumes


_LAWS = {
  't3': lambda rng, n: rng.standard_t(3, n),
  'lognormal': lambda rng, n: rng.lognormal(size=n),
  'cauchy': lambda rng, n: rng.standard_cauchy(n),
  'coins': lambda rng, n: rng.integers(0, 2, n).astype(float),
}


@pytest.mark.integration
@pytest.mark.parametrize('law', _LAWS)
def test_floors_of_external_scores_hold_for_any_law(law):
  rng, audits = np.random.default_rng(0), 160
  estimator = functools.partial(two_gaussians.two_gaussian, std='fitted')
  above, p = [], []
  for _ in range(audits):
    scores = Scores(_LAWS[law](rng, 40), _LAWS[law](rng, 40))
    (null,) = noise_floor.simulate(
      rng,
      [estimator],
      noise_floor.draw_permutations(scores),
      delta=1e-3,
      simulations=59,
    )
    epsilon = float(estimator(scores, delta=1e-3).epsilon)
    above.append(epsilon > noise_floor.summarize(null).q95)
    p.append(noise_floor.p_value(epsilon, null))
  # At most 5 %, but for chance: five standard errors.
  limit = 0.05 + 5 * np.sqrt(0.05 * 0.95 / audits)
  assert np.mean(above) < limit
  assert np.mean(np.array(p) <= 0.05) < limit
  # The floor of normal scores is another one.
  if law != 'coins':
    wrong = noise_floor.estimate_noise_floor(
      rng, estimator, delta=1e-3, num_observed=40, num_unobserved=40
    )
    assert _share_above(law, estimator, wrong.q95) > 2 * limit


def _share_above(law, estimator, limit):
  rng = np.random.default_rng(1)
  observed, unobserved = (_LAWS[law](rng, (400, 40)) for _ in range(2))
  epsilon = estimator(Scores(observed, unobserved), delta=1e-3).epsilon
  return np.mean(np.asarray(epsilon) > limit)


@pytest.mark.integration
def test_the_command_prints_text_json_and_markdown(tmp_path):
  path = tmp_path / 'scores.csv'
  write_csv(path, *groups(60))
  run = functools.partial(run_command, 'estimate', path)
  short = run('--delta=1e-5')
  assert short.returncode == 0, short.stderr
  assert 'Estimates: no guarantee' not in short.stdout
  text = run('--delta=1e-5', '--all')
  assert 'Estimates: no guarantee' in text.stdout
  rows = json.loads(run('--delta=1e-5', '--format=json').stdout)
  first = rows['attacks'][0]['estimates'][0]
  assert {'method', 'epsilon', 'kind', 'p_value'} <= first.keys()
  assert rows['headline']['method'] == 'rank_test'
  bound = rows['headline']['epsilon']
  assert rows['headline']['text'] in ' '.join(short.stdout.split())
  assert short.stdout.startswith(
    f'Canaries show ε of at least {bound:.2f} (95 %'
  )
  (headline,) = [
    row for row in rows['attacks'][0]['estimates'] if row['is_headline']
  ]
  assert headline['label'] == 'all thresholds, one test'
  assert (rows['headline']['num_observed'], rows['warnings']) == (60, [])
  assert rows['version'] == __version__
  markdown = run('--delta=1e-5', '--all', '--format=markdown').stdout
  assert '| scores as given |' in markdown
  refused = run()
  assert refused.returncode == 2
  assert refused.stderr.startswith('error: ')
  assert 'give --delta' in refused.stderr
  again = run(f'{tmp_path}/./scores.csv', '--delta=1e-5')
  assert again.returncode == 2
  assert 'is given more than once' in again.stderr


def test_a_file_that_is_no_csv_is_refused(tmp_path):
  path = tmp_path / 'a.csv'
  path.write_bytes('score,observed\n\xe9,1\n'.encode('latin-1'))
  with pytest.raises(ValueError, match=rf'{path}.* not in UTF-8 .*iconv'):
    score_files.load(path)
  path.write_text('score, observed\n1.5,1\n0.5,0\n')
  assert score_files.load(path).scores.observed.tolist() == [1.5]
