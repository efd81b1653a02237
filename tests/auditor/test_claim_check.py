"""An auditor names what contradicts the claim, and nothing else."""

import dataclasses
import re

import numpy as np
import pytest

import epe_jax
from epe_jax import accounting, audit, typed_json
from epe_jax.audit import attackers
from epe_jax.auditor import claim_check
from epe_jax.report import cells, checks
from epe_jax.watch import published_models
from tests.sentences import find_sentences

DIM, ROUNDS, CLIENTS, NOISE = 4096, 25, 20, 0.5


def run(
  *,
  noise=NOISE,
  canaries=1.0,
  divide=1.0,
  others=None,
  seed=0,
  made=ROUNDS,
  **config,
):
  """A loop whose noise, canaries and divisor may not be those of the claim."""
  auditor = epe_jax.Auditor(
    epe_jax.AuditConfig(
      **{
        'dim': DIM,
        'rounds': ROUNDS,
        'clip_norm': 1.0,
        'noise_multiplier': NOISE,
        'delta': 1e-5,
        'num_observed': 250,
        'num_unobserved': 250,
        **config,
      }
    ),
    seed=seed,
  )
  dim, rng = auditor.config.dim, np.random.default_rng(seed)
  for t in range(made):
    injection = auditor.injection(t)
    count = CLIENTS + injection.count
    put_in = np.zeros(dim) if others is None else others * rng.normal(size=dim)
    total = put_in + canaries * injection.update + noise * rng.normal(size=dim)
    auditor.observe(
      t,
      total / count,
      divisor=count * divide,
      others=None if others is None else put_in / count,
    )
  return auditor


def find_contradictions(auditor):
  record = auditor.record()
  found = audit.evaluate(record, floors=False)
  measured = [
    check for attack in found.attacks for check in attack.contradictions
  ]
  failed = [*measured, *claim_check.check_claim(record, found)]
  assert not list(find_sentences(typed_json.to_plain(failed)))
  return [checks.describe_check(check) for check in failed]


@pytest.mark.integration
@pytest.mark.parametrize('others', [None, 0.0, 1.0])
@pytest.mark.parametrize('seed', range(5))
def test_a_loop_that_does_what_it_claims_is_not_accused(seed, others):
  assert find_contradictions(run(others=others, seed=seed)) == []


def test_what_is_not_the_mean_of_a_loop_without_correlation_is_not_accused():
  tree = np.tril(np.ones((ROUNDS, ROUNDS)))
  strategy = np.linalg.cholesky(np.eye(ROUNDS) + tree @ tree.T / 99)
  for view, matrix, rate in (
    ('server_update', None, 0.1),
    ('aggregate', strategy, 1.0),
  ):
    auditor = epe_jax.Auditor(
      epe_jax.AuditConfig(
        dim=DIM,
        rounds=ROUNDS,
        clip_norm=1.0,
        noise_multiplier=NOISE,
        delta=1e-5,
        num_observed=50,
        num_unobserved=50,
        view=view,
        strategy=matrix,
      ),
      seed=0,
    )
    noise = NOISE * np.random.default_rng(0).normal(size=(ROUNDS, DIM))
    if matrix is not None:
      noise = np.linalg.solve(matrix, noise)
    for t, x in enumerate(noise):
      injection = auditor.injection(t)
      auditor.observe(t, rate * (injection.update + x), divisor=1.0)
    assert find_contradictions(auditor) == []


@pytest.mark.parametrize(
  ('noise', 'canaries', 'others', 'least', 'most'),
  [
    (0.0, 0.0, 1.0, 0, 3),  # Forgotten.
    (5.0, 1.0, 0.0, 0, 3),  # There is noise, and nobody said so.
    (0.0, 1.0, 1.0, np.inf, np.inf),
  ],
)
def test_without_noise_in_the_claim_the_worst_case_is_what_is_left(
  noise, canaries, others, least, most
):
  auditor = run(
    noise=noise,
    canaries=canaries,
    others=others,
    noise_multiplier=0.0,
    num_observed=50,
    num_unobserved=50,
  )
  attack = auditor.evaluate().find(attackers.RESIDUAL)
  assert attack.bounds[0].epsilon <= most
  assert least <= attack.first.epsilon <= most


def test_noise_that_varies_is_named_without_unobserved_canaries_too():
  auditor = run(others=0.0, num_unobserved=0)
  record = auditor.record()
  weak = np.where(np.arange(ROUNDS) % 2, 0.1, 1.0)
  scaled = record.rounds.residual_norm * weak
  record = dataclasses.replace(
    record, rounds=record.rounds._replace(residual_norm=scaled)
  )
  attack = audit.evaluate(record, floors=False).find(attackers.RESIDUAL)
  assert attack.bounds[0].epsilon > 3
  assert [x.key for x in attack.contradictions] == ['noise_not_as_claimed']


def test_sums_over_rounds_without_unobserved_canaries_have_no_attacker():
  auditor = run(repetitions=2, num_observed=50, num_unobserved=0)
  with pytest.raises(ValueError, match='no attacker can score this record'):
    auditor.evaluate(simultaneous=True)


def test_of_some_rounds_no_participation_is_missed():
  record = run(num_observed=50, num_unobserved=50).record()
  shown = published_models.restrict_record(record, every=5)
  (attack, *_) = audit.evaluate(shown, floors=False).attacks
  assert 'rounds_missed' not in {note.key for note in attack.notes}


@pytest.mark.integration
@pytest.mark.parametrize(
  ('loop', 'says'),
  [
    ({'noise': 0.25}, r'releases are 0\.5\d* times as long'),
    ({'noise': 0.0}, r'releases are 0\.0\d* times as long'),
    ({'canaries': 0.0}, r'canaries score .* times what their norm'),
    ({'canaries': 0.5}, r'canaries score 0\.[45]\d* times'),
    ({'canaries': 2.0}, r'canaries score (1\.[89]\d*|2[.\d]*) times'),
    ({'noise': 0.25, 'others': 1.0}, r'is 0\.5\d* times as long as the noise'),
    ({'noise': 0.45, 'others': 0.0}, r'is 0\.9\d* times as long as the noise'),
    ({'divide': 1 / 30, 'others': 0.0}, r'left of a release'),
    ({'dim': 40, 'family': 'sphere'}, r'canaries are in a release of 40'),
  ],
)
def test_what_contradicts_the_claim_is_named(loop, says):
  sentences = find_contradictions(run(**loop))
  assert any(re.search(says, text) for text in sentences), sentences


@pytest.mark.usefixtures('no_floors')
@pytest.mark.parametrize('others', [None, 1.0])
def test_noise_that_is_short_comes_first(others):
  report = run(noise=0.25, others=others).report()
  report = ' '.join(report.split())
  assert re.match(r'Finding: (releases are|what is left) [^:]* 0\.5\d*', report)
  assert report.count('as long as the noise') == 1


@pytest.mark.usefixtures('no_floors')
def test_both_limits_are_named_where_sampling_is_accounted_for(tmp_path):
  auditor = run(sampling_probability=0.01, repetitions=2)
  given = {'delta': 1e-5, 'probability': 0.01, 'rounds': ROUNDS}
  certain = accounting.epsilon_of_releases(
    NOISE, delta=1e-5, participations=2
  ).epsilon
  sampled = accounting.epsilon_of_poisson(NOISE, **given).epsilon
  auditor.save(tmp_path / 'a.npz')
  for one in (auditor, epe_jax.Auditor.load(tmp_path / 'a.npz')):
    text = ' '.join(one.report().split())
    assert (
      f'who knows these is allowed ε = {cells.format_number(certain)} in 2 rounds'
      in text
    )
    assert (
      f'sampling allows ε = {cells.format_number(sampled)} to one who is drawn'
      in text
    )
    assert 'Warning: canaries are certain' not in text
    assert f'in each of {ROUNDS:,} rounds' in text
  assert 'sampling' not in run().report()


@pytest.mark.usefixtures('no_floors')
def test_an_accountant_counts_the_rounds_that_were_made():
  few = run(sampling_probability=0.01, made=ROUNDS - 3)
  text = ' '.join(few.report().split())
  assert f'in each of {ROUNDS - 3:,} rounds. Both' in text
  for wrong, message in (
    ({'sampling_probability': 0.0}, 'sampling_probability=0.0'),
    (
      {'sampling_probability': 0.1, 'strategy': np.eye(ROUNDS)},
      'sampling_probability=0.1 with a strategy',
    ),
  ):
    with pytest.raises(ValueError, match=message):
      run(**wrong)
