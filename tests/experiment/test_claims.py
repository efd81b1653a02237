"""A claimed ε is tested while a run goes on, and in its result."""

import numpy as np
import pytest

from epe_jax import audit
from epe_jax.experiment import audited_run, loop, run_result
from epe_jax.report import first_page, leaks, report
from epe_jax.watch import sequential
from tests import helpers, recorded_runs

pytestmark = pytest.mark.usefixtures('quick_compilation')


@pytest.fixture
def alarms(monkeypatch):
  """The warnings of rejected claims."""
  told = []
  warn = lambda text, *values: told.append(text % values)
  monkeypatch.setattr(audited_run.logging, 'warning', warn)
  return told


@pytest.mark.integration
@pytest.mark.usefixtures('small_task', 'no_floors', 'undrawn')
def test_a_claim_that_the_rounds_contradict_is_rejected_while_they_go_on(
  tmp_path, alarms, monkeypatch
):
  told_after, make = [], loop.make_watch

  def make_watch(*settings):
    look = make(*settings)

    def spy(state, rounds):
      told_after.append((rounds, len(alarms)))
      return look(state, rounds)

    return spy

  monkeypatch.setattr(loop, 'make_watch', make_watch)
  config = helpers.quick_digits(evaluate_every=2, checkpoint_every=3)
  config.audit.claim = 0.5
  result = audited_run.run(config, tmp_path / 'run')
  assert [rounds for rounds, _ in told_after] == [2, 3, 4, 6]
  # Once, and before the last round.
  (alarm,) = [text for text in alarms if 'claimed' in text]
  assert 'The claimed ε = 0.5 is rejected after round ' in alarm
  assert told_after[-1][1] == 1
  claim = result.claim
  assert claim.epsilon == 0.5
  assert 1 <= claim.rejected_after < 6
  assert 0.5 < claim.epsilon_gdp < result.analytic_epsilon
  # It is what the record of the whole run says.
  record = audit.load_record(tmp_path / 'run/private/scores.npz')
  again = sequential.bound_sequentially(record, claim=0.5).test_claim()
  assert claim == again
  assert run_result.load_result(tmp_path / 'run/result.json') == result
  said = f'is rejected after round {claim.rejected_after}, with evidence'
  assert said in ' '.join(report.format_summary(result).split())
  assert said in report.write_report(tmp_path / 'run').read_text()


@pytest.mark.integration
@pytest.mark.usefixtures('small_task', 'unestimated')
def test_a_claim_of_a_run_with_correlated_noise_is_tested(tmp_path, alarms):
  results = {}
  for claim in (0.5, 100.0):
    config = helpers.quick_digits(evaluate_every=2)
    config.clipping.kind = 'fixed'
    config.noise.correlation, config.noise.bands = 'banded', 2
    config.audit.claim = claim
    results[claim] = audited_run.run(config, tmp_path / str(claim)).claim
  assert 1 <= results[0.5].rejected_after <= 6
  assert results[100.0].rejected_after is None
  (alarm,) = [text for text in alarms if 'claimed' in text]
  assert 'ε = 0.5 is rejected' in alarm
  record = audit.load_record(tmp_path / '0.5/private/scores.npz')
  again = sequential.bound_sequentially(record, claim=0.5).test_claim()
  assert results[0.5] == again


@pytest.mark.integration
@pytest.mark.usefixtures('small_task', 'unestimated')
def test_a_true_claim_changes_no_score_and_raises_no_alarm(tmp_path, alarms):
  results = {}
  for claim in (None, 60.0):
    config = helpers.quick_digits(evaluate_every=2)
    config.audit.claim = claim
    results[claim] = audited_run.run(config, tmp_path / str(claim))
  assert results[None].claim is None
  assert results[60.0].claim.rejected_after is None
  assert not [text for text in alarms if 'claimed' in text]
  with_claim, without = (
    audit.load_record(tmp_path / name / 'private/scores.npz').cosines
    for name in ('60.0', 'None')
  )
  for name in without:
    np.testing.assert_array_equal(with_claim[name], without[name])


def test_the_report_says_how_a_claim_stands():
  found = audit.evaluate(recorded_runs.by_law(), floors=False)

  def say(claim, test):
    config = recorded_runs.result().config
    config = config | {'audit': config['audit'] | {'claim': claim}}
    result = recorded_runs.result(config=config, claim=test, audit=found)
    alarms = first_page.list_alarms(result, leaks.find_leaks(result))
    others = first_page.list_other_notes(result, leaks.find_leaks(result))
    # A claim that is rejected is on the first page.
    is_rejected = test is not None and test.rejected_after is not None
    assert any('claimed' in text for text in alarms) == is_rejected
    return [text for text in (*alarms, *others) if 'claimed' in text]

  holds = sequential.ClaimTest(8.0, 0.05, None, 1.0, 3.0, 500)
  broken = holds._replace(rejected_after=12, log_evidence=50.0)
  assert say(None, None) == []
  (text,) = say(8.0, None)
  assert 'could not be tested' in text
  (text,) = say(8.0, holds)
  assert 'is not contradicted: the evidence against it was at most 2.72' in text
  assert 'and 20 rejects it' in text
  assert 'canaries of one round. Clients take part in up to 2' in text
  (text,) = say(8.0, broken)
  assert 'is rejected after round 12, with evidence of up to 1e21' in text
