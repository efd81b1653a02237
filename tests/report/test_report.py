"""What a person sees of a finished audit: its table, words and figures."""

import dataclasses
import json
import math
import re
import struct

from matplotlib import figure
import numpy as np
import pytest
from scipy import stats

from epe_jax import accounting, io
from epe_jax.accounting import Analytic
from epe_jax.audit import (
  attack_results,
  clients,
  evaluation,
  release,
  threat_models,
)
from epe_jax.audit.failed_checks import Check
from epe_jax.audit.record import load_record, write_record
from epe_jax.epsilon import types
from epe_jax.epsilon.trade_offs import tradeoff_curves
from epe_jax.epsilon.types import Scores, Sphere
from epe_jax.experiment import run_result, workdirs
from epe_jax.report import (
  audit_card,
  comparison,
  html,
  page,
  report,
  sentences,
)
from epe_jax.report.figures import of_audit
from epe_jax.text import cells, summary_table, tables, worded_json
from tests import recorded_runs
from tests.in_process import run_script

pytestmark = pytest.mark.usefixtures('quick_compilation')

_PICTURES = tuple(of_audit.CAPTIONS)
_FILES = (
  'report.md',
  'report.html',
  'audit_card.json',
  *_PICTURES,
  *(name.replace('.png', '.svg') for name in _PICTURES),
)
_FINAL = threat_models.FINAL
_OWN = threat_models.OWN
_MAXIMUM = threat_models.MAXIMUM


def _row(
  attack_scores,
  method,
  epsilon,
  floor=(0.01, 0.7),
  confidence=None,
  interval=None,
  kind='point estimate',
  assumes=(),
):
  level = floor and types.Floor(
    sum(floor) / 2, floor[0], sum(floor) / 2, floor[1]
  )
  return attack_scores, types.Estimate(
    float(epsilon),
    1e-5,
    method,
    confidence,
    kind,
    assumes,
    level,
    interval,
  )


def _bound(attack_scores, method, epsilon, **settings):
  return _row(
    attack_scores,
    method,
    epsilon,
    floor=None,
    confidence=0.95,
    **{'kind': 'confidence bound'} | settings,
  )


def _given(text):
  return Check('given', {'text': text})


def _reading(
  attack_scores, calibrated=True, failed=(), rates=None, agreement=None
):
  return attack_scores, (calibrated, tuple(failed), rates, agreement)


_RATES = attack_results.Rates(0.672, (0.123, 0.0321))
_ROWS = [
  _row(_FINAL, 'location_mixture', 1.2, interval=(1.05, 1.35)),
  _row(_FINAL, 'two_gaussian_fitted', 1.31, floor=(0.05, 0.9)),
  _row(_FINAL, 'eps_lo', 0.88, floor=None),
  _row(_MAXIMUM, 'maximum_over_rounds', 7.75),
  _row(_MAXIMUM, 'two_gaussian_fitted', 579.25),
  _row(_OWN, 'location_mixture', 8.25),
  _row(_OWN, 'max_threshold_gaussian', 8.5),
]
_READINGS = [
  _reading(_FINAL, rates=_RATES),
  _reading(_MAXIMUM),
  _reading(_OWN),
]


def _audit(rows, all_scores):
  """An audit with these estimates, and what is known of their attackers."""
  about = dict(all_scores)
  return attack_results.Audit(
    tuple(
      attack_results.Attack(
        threat_model,
        'what is seen',
        1000,
        1000,
        *about.get(threat_model, (True, (), None, None)),
        tuple(estimate for other, estimate in rows if other == threat_model),
      )
      for threat_model in dict.fromkeys(one for one, _ in rows)
    )
  )


def _result(*, estimates=_ROWS, all_scores=_READINGS, **changes):
  audit = _audit(estimates, all_scores)
  return recorded_runs.result(**{'audit': audit} | changes)


def _finished_run(folder, result=None, **record):
  (folder / 'private').mkdir(parents=True, exist_ok=True)
  run = recorded_runs.by_law(**record)
  write_record(folder / 'private/scores.npz', run)
  run_result.write_result(folder / 'result.json', result or _result())
  lines = [json.dumps(r) + '\n' for r in recorded_runs.metrics(len(run.trace))]
  (folder / 'private/metrics.jsonl').write_text(''.join(lines))
  return folder


def _attacker(result, phrase):
  """The one paragraph that has this phrase."""
  (said,) = [s for s in sentences.narrate(result) if phrase in s]
  return said


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  folder = _finished_run(tmp_path_factory.mktemp('run'))
  report.write_report(folder)
  return folder


def test_the_table_fits_in_100_columns_and_its_columns_line_up():
  wide = _result(
    rounds=20480,
    dim=4_050_748,
    repetitions=16,
    noise_multiplier=0.2317,
    analytic_assumes='word ' * 60,
    estimates=[
      _row(_FINAL, 'max_threshold_empirical', 45800.0, floor=(1234.5, 98765.4)),
      _row(_FINAL, 'eps_lo', 5e17),
    ],
  )
  for result in (_result(), wide):
    lines = report.format_report(result).splitlines()
    assert max(map(len, lines)) <= 100
    rows = [s for s in lines if s.endswith(('kind', 'point estimate'))]
    assert len(rows) > sum(len(x.estimates) for x in result.audit.attacks)
    starts = {len(re.split(r'kind$|point estimate', s)[0]) for s in rows}
    assert len(starts) == 1


def test_every_estimate_is_in_the_table_with_its_method_floor_and_kind():
  text = report.format_report(_result())
  for expected in (
    ('Gaussians, shifts known', 1.2, '1.05 to 1.35', '0.01 to 0.70'),
    ('two Gaussians, std fitted', 1.31, '-', '0.05 to 0.90'),
    ("the paper's ε_lo (no bound)", 0.88, '-', '-'),
    ('law of a maximum', 7.75, '-', '0.01 to 0.70'),
    ('two Gaussians, std fitted', 579.25, '-', '0.01 to 0.70'),
    ('Gaussians, shifts known', 8.25, '-', '0.01 to 0.70'),
    ('best threshold, Gaussian rates', 8.5, '-', '0.01 to 0.70'),
  ):
    method, epsilon, *rest = expected
    mu = cells.format_mu(epsilon, 1e-5)
    expected = (method, cells.format_number(epsilon), mu, *rest)
    pattern = r'\s+'.join(map(re.escape, expected)) + r'\s+point estimate\n'
    assert re.search(pattern, text), expected


def test_the_kind_of_a_bound_says_what_it_assumes():
  shape = (types.Assumption.INDEPENDENT, types.Assumption.GAUSSIAN_SCORES)
  curve = (types.Assumption.GAUSSIAN_CURVE,)
  bounds = [
    _bound(_FINAL, 'clopper_pearson_band', 0.5),
    _bound(_FINAL, 'location_mixture_bound', 0.9, assumes=shape),
    _bound(_FINAL, 'gdp_clopper_pearson_band', 0.8, assumes=curve),
    _bound(_FINAL, 'epsilon_credible_split', 0.7, kind='credible bound'),
  ]
  with_bounds = _result(estimates=[*_ROWS, *bounds])
  text = report.format_report(with_bounds)
  for kind in (
    'lower bound, 95 %',
    'if Gaussian, 95 %',
    'if f Gaussian, 95 %',
    'credible, 95 %',
  ):
    assert len(re.findall(f' {re.escape(kind)}$', text, re.M)) == 1
  assert not re.search('bound, 95 %$', report.format_report(_result()), re.M)
  sections = report.format_estimates(with_bounds.audit).split('\n\n')
  under = {
    title: next(s for s in sections if s.startswith(title))
    for title in (
      'Point estimates',
      'Lower bounds, no shape assumed',
      'Lower bounds if scores or mechanism',
      'Credible bounds',
    )
  }
  whole = '\n\n'.join(sections)
  for title, name in zip(under, ('law of a', 'band', 'f is Gauss', 'credible')):
    after = whole[whole.index(title) :]
    assert name in after
  free = whole[whole.index('no shape') : whole.index('if scores or mech')]
  assert 'Gaussian' not in free


def test_both_analytic_epsilons_are_above_the_table_with_what_they_assume():
  head = report.format_report(_result()).split('\n\n')[0]
  assert 'Analytic ε = 35.5 for canaries: one who takes part in one' in head
  assert 'Analytic ε = 57.2 for clients: one who takes part in 2' in head
  same = _result(
    clients_analytic_epsilon=35.5,
    clients_analytic_assumes='one who takes part in one round',
  )
  head = report.format_report(same).split('\n\n')[0]
  assert head.count('Analytic ε') == 1
  assert 'for canaries and clients' in head


def test_a_summary_has_a_line_for_each_attacker_and_no_doubtful_estimate():
  # z is not known, so that rounds have no limit, and the final model has.
  record = recorded_runs.by_law()
  audit = evaluation.evaluate(record)
  assert {a.analytic is None for a in audit.attacks} == {True, False}
  text = report.format_summary(_result(audit=audit))
  assert max(map(len, text.splitlines())) <= 100
  _, headline, whose, table, *_ = text.split('\n\n')
  assert headline.startswith('ε ≥ ')
  assert 'takes part in up to 2 rounds' in ' '.join(whose.split())
  participations = clients.Participations(1, 2, 57.25)
  table = table.splitlines()[1:]
  assert len(table) == len(audit.attacks)
  for line, attack in zip(table, audit.attacks, strict=True):
    assert line.startswith(attack.threat_model.name)
    shown = cells.format_number(attack.first.epsilon)
    if attack.is_calibrated:
      assert re.search(rf' {re.escape(shown)} ', line)
    else:
      assert 'uncalibrated' in line
      assert shown not in line.split()
    bound = cells.format_number(attack.bounds[0].epsilon)
    # Results of old have that of the strongest attacker alone.
    strongest = attack.threat_model == threat_models.RESIDUAL
    analytic = cells.format_analytic(attack.analytic)
    if attack.analytic is None:
      analytic = '35.5' if strongest else '-'
    of_client = summary_table.format_client(attack, participations)
    assert line.endswith(f' {of_client}')
    line = line.removesuffix(of_client).rstrip()
    assert line.endswith(f' {analytic}')
    assert line.removesuffix(analytic).split()[-1] == bound
  assert any(not attack.is_calibrated for attack in audit.attacks)


def test_a_verdict_is_the_bound_the_final_model_and_what_speaks_against_it():
  audit = evaluation.evaluate(recorded_runs.by_law())
  certain, likely, agrees = sentences.give_verdict(_result(audit=audit))
  assert 'of a canary of one round for an attacker who' in certain
  _, bound, _ = audit.headline
  assert f'95 % confidence ε ≥ {cells.format_number(bound.epsilon)}' in certain
  assert 'the analysis allows 35.5 at most' in certain
  assert 'of a canary of one round. A client of 2 rounds: ε ≈' in likely
  assert 'of guesses whether it took part are right' in likely
  alike = _result(audit=audit, clients_participations=1)
  assert (
    'this attack tells whether a canary took part'
    in (sentences.give_verdict(alike)[1])
  )
  assert 'finds what the analysis implies' in agrees
  *weaker, strongest = audit.attacks
  # Of a dozen tests one is off by as much by chance.
  for errors, p_value, ending in (
    (-2.6, 0.009, 'within 2.6 standard errors.'),
    (-3.9, 1e-4, 'the run does not do what is assumed of it.'),
  ):
    agreement = strongest.agreement._replace(
      standard_errors=errors, p_value=p_value
    )
    off = (*weaker, dataclasses.replace(strongest, agreement=agreement))
    said = sentences.give_verdict(_result(audit=audit._replace(attacks=off)))
    assert said[-1].endswith(ending)
  doubted = (
    dataclasses.replace(weaker[0], failed_checks=(_given('it is not'),)),
    *audit.attacks[1:],
  )
  said = sentences.give_verdict(_result(audit=audit._replace(attacks=doubted)))
  assert said[-1] == 'Tests contradict the estimates of: final model.'
  unlimited = _result(audit=audit, analytic_epsilon=math.inf)
  assert 'there is no limit' in sentences.give_verdict(unlimited)[0]
  # Without noise the analysis implies nothing that an attack could find.
  analytic = Analytic(math.inf, 'no noise')
  boundless = (*weaker, dataclasses.replace(strongest, analytic=analytic))
  said = sentences.give_verdict(
    _result(audit=audit._replace(attacks=boundless))
  )
  assert not any('what the analysis implies' in text for text in said)
  within = [_row(_FINAL, 'location_mixture', 0.3)]
  (said,) = sentences.give_verdict(_result(estimates=within))
  assert said.endswith('which is what is found where nothing leaks.')
  assert sentences.give_verdict(_result(num_observed=0)) == [
    sentences.NOT_AUDITED
  ]


def test_what_exceeds_its_attackers_analytic_epsilon_is_named():
  # Half of the noise that the run claims to have.
  record = dataclasses.replace(
    recorded_runs.by_law(shift=6.0, observed=300, unobserved=300),
    noise_multiplier=1 / 3.0,
    periods=1,
  )
  audit = evaluation.evaluate(record, floors=False)
  limit = audit.find(threat_models.RESIDUAL).analytic.epsilon
  text = report.format_report(_result(audit=audit))
  limit_as_text = f'above the analytic ε {cells.format_number(limit)}'
  above = re.findall(rf'(point estimate|95 %)\n +{limit_as_text}', text)
  assert set(above) == {'point estimate', '95 %'}
  text = ' '.join(text.split())
  assert (
    text.count('A lower bound above the analytic ε: 1 in 20 is too high') == 1
  )
  assert text.count('A point estimate above the analytic ε, by more than') == 1
  said = sentences.give_verdict(_result(audit=audit))[-1]
  assert f'is above {cells.format_number(limit)}, the most that' in said
  assert said.startswith('For an attacker who also knows the updates of all')
  honest = dataclasses.replace(record, noise_multiplier=1 / 6.0)
  text = report.format_report(
    _result(audit=evaluation.evaluate(honest, floors=False))
  )
  assert 'A lower bound above the analytic ε' not in text


def _above_its_limit(*, bounds, interval):
  """A run whose strongest attacker is allowed an ε of 5."""
  own = threat_models.RESIDUAL
  attack = attack_results.Attack(
    own,
    'what is seen',
    1000,
    1000,
    True,
    (),
    None,
    None,
    (
      _row(own, 'location_mixture', 5.6, interval=interval)[1],
      *(bound for _, bound in bounds),
    ),
    Analytic(5.0, 'all'),
  )
  return _result(audit=attack_results.Audit((attack,)))


def _show_everywhere(result):
  """Each output of a run, with white space made alike."""
  run = comparison.label_result('a', result)
  shown = {
    'summary': report.format_summary(result),
    'estimates': report.format_headline_estimates(result.audit),
    'all estimates': report.format_estimates(result.audit),
    'page': page.render_markdown(report.make_page(result, {})),
    'html': html.render_html(report.make_page(result, {}), {}),
    'card': audit_card.format_cards({'a': audit_card.make_card(result)}),
    'comparison': tables.format_text(comparison.make_table([run, run])),
  }
  return {
    name: ' '.join(re.sub('<[^>]+>|- ', '', text).split())
    for name, text in shown.items()
  }


@pytest.mark.parametrize(
  ('interval', 'why', 'kind'),
  [
    (
      (5.4, 5.8),
      'even if all tests of this audit are counted: the run does not',
      'Warning',
    ),
    # Above at 90 %, as one interval of twenty is by chance, but not at 97.5 %.
    ((5.05, 6.15), 'allows: random scatter suffices', 'Note'),
    ((4.9, 6.3), 'allows: random scatter suffices', 'Note'),
  ],
)
def test_a_point_estimate_above_the_analytic_epsilon_is_named_everywhere(
  interval, why, kind
):
  bound = _bound(threat_models.RESIDUAL, 'clopper_pearson_band', 4.5)
  result = _above_its_limit(bounds=[bound], interval=interval)
  for name, text in _show_everywhere(result).items():
    assert 'the point estimate 5.60 (90 % interval' in text, name
    assert why in text, name
    assert f'{kind}: own round, others removed: the point' in text, name
    assert kind == 'Warning' or 'Warning' not in text, name
  values = worded_json.describe_in_json(result.audit)
  (said,) = [*values['warnings'], *values['notes']]
  assert why in said
  assert len(values['warnings']) == (kind == 'Warning')


@pytest.mark.parametrize('is_first', [True, False])
def test_a_bound_above_the_analytic_epsilon_is_warned_of_everywhere(is_first):
  shape = (types.Assumption.GAUSSIAN_SCORES,)
  above = _bound(
    threat_models.RESIDUAL, 'location_mixture_bound', 5.5, assumes=shape
  )
  below = _bound(threat_models.RESIDUAL, 'clopper_pearson_band', 4.5)
  bounds = [above, below] if is_first else [below, above]
  result = _above_its_limit(bounds=bounds, interval=(4.9, 6.3))
  expected = 'the lower bound 5.50 is above 5.00, the most that the mechanism'
  if not is_first:
    expected = (
      '1 of 1 other lower bounds is above 5.00, the most that the mechanism '
      'allows: 5.50 (Gaussians, shifts known, bound; holds if scores are '
      'Gaussian). '
      'Of these bounds each holds at 95 % by itself, and several not all at once'
    )
  for name, text in _show_everywhere(result).items():
    assert expected in text, name
  (warning,) = worded_json.describe_in_json(result.audit)['warnings']
  assert expected in warning


def test_a_verdict_has_no_estimate_that_is_not_calibrated():
  rows = [_row(_FINAL, 'location_mixture', 579.25)]
  for is_calibrated in (True, False):
    all_scores = [_reading(_FINAL, is_calibrated)]
    result = _result(estimates=rows, all_scores=all_scores)
    text = ' '.join(sentences.give_verdict(result))
    assert ('579' in text) == is_calibrated
    assert ('no estimate is calibrated' in text) != is_calibrated


def test_infinity_is_printed_as_a_sign():
  result = _result(
    noise_multiplier=0.0,
    analytic_epsilon=math.inf,
    clients_analytic_epsilon=math.inf,
    estimates=[
      _row(_FINAL, 'location_mixture', math.inf),
      _row(_FINAL, 'eps_lo', math.inf),
    ],
  )
  text = report.format_report(result)
  assert not re.search(r'\binf|\bnan', text.replace('infinite', ''), re.I)
  # Two analytic, two in rows with their μ, one in words.
  assert text.count('∞') == 7
  flat = ' '.join(text.split())
  assert 'Without noise there is no limit' in flat


def test_an_estimate_is_told_by_how_well_the_attack_guesses():
  said = _attacker(_result(), 'sees only the final model')
  assert said == (
    'An attacker who sees only the final model: ε ≈ 1.20 at δ = 1e-5 (90 % '
    'interval 1.05 to 1.35; when nothing leaks this estimator reports 0.01 to '
    '0.70). Of canaries that take part with a chance of 50 % this attack guesses '
    'about 67 % right; allowed one false alarm in 100 it finds about 12 % of '
    'those that did, and one in 1,000, about 3.2 %.'
  )


@pytest.mark.parametrize(
  ('epsilon', 'fraction'), [(1.0, 1e-5), (25.5, 2.9e-3)], ids=str
)
def test_what_is_said_of_guesses_holds_for_the_mechanism(epsilon, fraction):
  """Rates of the Gaussian mechanism of this ε, by the law of its scores."""
  mu = tradeoff_curves.mu_of_epsilon(epsilon, fraction)
  quantiles = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)
  scores = Scores(
    (quantiles + mu) / 1e4, np.empty(0), Sphere(10**8), shift=np.ones(20_000)
  )
  found = evaluation._compute_rates(scores)
  assert found.accuracy == pytest.approx(stats.norm.cdf(mu / 2), abs=1e-3)
  for fpr, tpr in zip(attack_results.FPRS, found.tpr, strict=True):
    exact = stats.norm.sf(stats.norm.isf(fpr) - mu)
    assert tpr == pytest.approx(exact, rel=1e-3)


def test_nothing_that_was_estimated_is_said_to_be_certain():
  def said(rates):
    result = _result(all_scores=[_reading(_FINAL, rates=rates)])
    return _attacker(result, 'sees only the final model')

  one = said(attack_results.Rates(1.0, (1.0, 0.0)))
  assert 'guesses more than 99.9 % right; allowed' in one
  assert 'and one in 1,000, less than 0.1 %.' in one
  assert '100 %' not in one
  assert said(attack_results.Rates(1.0, (1.0, 1.0))).endswith(
    'guesses more than 99.9 % right, and with one false alarm in 1,000 it finds as '
    'many of those that did.'
  )


@pytest.mark.integration
def test_the_headline_is_one_bound_chosen_by_the_design():
  record = recorded_runs.by_law()
  found = evaluation.evaluate(record, floors=False)
  attack, bound, _ = found.headline
  assert bound.method == 'clopper_pearson_bonferroni'
  assert attack.threat_model == threat_models.RESIDUAL
  assert bound.is_shape_free
  # Other scores change nothing of the choice.
  other = recorded_runs.replace_cosines(
    record, residual=-record.cosines['residual']
  )
  same, again, _ = evaluation.evaluate(other, floors=False).headline
  assert (again.method, same.threat_model) == (
    bound.method,
    attack.threat_model,
  )
  coins = recorded_runs.by_law(design='coin_flip')
  assert (
    evaluation.evaluate(coins, floors=False).headline[1].method == 'one_run'
  )
  result = _result(audit=found)
  said = _attacker(result, 'The lower bound of this report')
  assert f'ε ≥ {cells.format_number(bound.epsilon)} at δ' in said
  others = sum(len(one.bounds) for one in found.attacks) - 1
  assert f'The {others} others hold at 95 % each, not all' in said
  assert 'removes them. Which bound' in said
  # Where who removes the others may not be shown, it is that of another attacker.
  published = evaluation.evaluate(release.redact_record(record), floors=False)
  assert published.headline[0].threat_model == threat_models.OWN
  said = _attacker(
    _result(audit=published, noise='fresh'),
    'The lower bound of this report',
  )
  assert 'knows when a canary took part. Which bound' in said
  assert 'removes' not in said


def test_where_a_shift_is_not_known_the_report_says_that_nothing_is_calibrated():
  record = dataclasses.replace(
    recorded_runs.by_law(), momentum=None, weight=None
  )
  result = _result(audit=evaluation.evaluate(record, floors=False))
  said = _attacker(result, 'sees only the final model')
  assert 'Not calibrated: by how much taking part moves a score is not' in said
  assert 'guesses' not in said


def test_maxima_that_are_all_alike_have_estimates_too():
  record = recorded_runs.by_law()
  trace = np.where(record.included, 0.9, record.trace)
  audit = evaluation.evaluate(
    recorded_runs.replace_cosines(record, aggregate=trace.astype(np.float32)),
    floors=False,
  )
  maximum = audit.find(threat_models.MAXIMUM)
  assert maximum.find('maximum_over_rounds') is not None
  assert maximum.find('two_gaussian_fitted') is None
  assert 'the law of a maximum' in report.format_report(_result(audit=audit))


def test_maxima_that_refute_their_law_have_a_doubt():
  record = recorded_runs.by_law()
  away = ~record.observed
  trace = record.trace.copy()
  trace[:, away] = 0.2 * trace[:, away] + 1 / np.sqrt(record.dim)
  changed = recorded_runs.replace_cosines(record, aggregate=trace)
  attack_scores = threat_models.MAXIMUM.score(changed)
  assert not attack_scores.is_calibrated
  assert attack_scores.failed_checks[-1].key == 'maximum_law_rejected'


@pytest.mark.integration
def test_bounds_that_hold_together_are_lower_ones():
  record = recorded_runs.by_law()
  alone = evaluation.evaluate(record, floors=False)
  joint = evaluation.evaluate(record, simultaneous=True, floors=False)
  said = ' '.join(report.format_estimates(joint).split())
  assert 'All bounds hold together at 95 %.' in said
  assert '--simultaneous' not in said
  num = sum(len(attack.bounds) for attack in alone.attacks)
  for single, both in zip(alone.attacks, joint.attacks, strict=True):
    for one, all_ in zip(single.estimates, both.estimates, strict=True):
      if one.kind == 'confidence bound':
        assert all_.epsilon <= one.epsilon
        assert all_.confidence == pytest.approx(1 - 0.05 / num)
      else:
        assert all_ == one


@pytest.mark.parametrize(('epsilon', 'inside'), [(0.7, True), (0.71, False)])
def test_an_estimate_inside_its_floor_is_told_as_no_leakage(epsilon, inside):
  rows = [
    _row(_FINAL, 'location_mixture', epsilon),
    _row(_MAXIMUM, 'maximum_over_rounds', epsilon),
    _row(_MAXIMUM, 'two_gaussian_fitted', epsilon),
  ]
  result = _result(estimates=rows)
  for phrase in ('only the final model', 'does not know when'):
    said = _attacker(result, phrase)
    assert ('not distinguishable from no leakage at all' in said) == inside
    assert ('guesses' in said or 'extrapolates' in said) != inside


@pytest.mark.parametrize('attack_scores', [_FINAL, _OWN])
def test_words_are_about_the_first_estimate_alone(attack_scores):
  rows = [
    _row(attack_scores, 'location_mixture', 2.0),
    _row(attack_scores, 'two_gaussian_fitted', 3.0),
    _row(attack_scores, 'eps_lo', 4.0),
  ]
  said = sentences.narrate(_result(estimates=rows))
  changed = [(who, dataclasses.replace(e, epsilon=5.0)) for who, e in rows]
  others = [rows[0], *changed[1:]]
  assert sentences.narrate(_result(estimates=others)) == said
  assert sentences.narrate(_result(estimates=[changed[0], *rows[1:]])) != said


@pytest.mark.parametrize(
  ('errors', 'p_value', 'doubtful'),
  [(0.4, 0.69, False), (-1.9, 0.057, False), (3.9, 1e-4, True)],
)
def test_agreement_with_the_analytic_epsilon_is_told_in_standard_errors(
  errors, p_value, doubtful
):
  removed = threat_models.RESIDUAL
  agreement = attack_results.Agreement(35.4, errors, p_value)
  result = _result(
    estimates=[_row(removed, 'location_mixture', 35.0)],
    all_scores=[_reading(removed, agreement=agreement)],
  )
  said = _attacker(result, 'updates of all others')
  assert 'the attacker of the analytic ε, 35.5' in said
  assert f'{abs(errors):.1f} standard errors (p = ' in said
  assert ('does not do what is assumed' in said) == doubtful


def test_an_adaptive_clip_norm_leaves_less_than_the_analytic_epsilon_to_find():
  # Its noisy count takes part of the budget, so updates get more noise.
  audit = evaluation.evaluate(recorded_runs.by_law())
  *weaker, strongest = audit.attacks
  strongest = dataclasses.replace(
    strongest,
    agreement=attack_results.Agreement(31.0, -1.4, 0.16),
    analytic=Analytic(35.5, 'noise'),
  )
  audit = audit._replace(attacks=(*weaker, strongest))
  result = _result(audit=audit)
  implied = 'ε = 31.0'
  assert sentences.give_verdict(result)[-1] == (
    f'The strongest attack finds the {implied} that the noise of rounds implies, '
    'within 1.4 standard errors.'
  )
  said = ' '.join(sentences.narrate(result))
  assert f'The noise of rounds implies {implied}: the shift' in said
  assert 'differs from that by 1.4 standard errors (p = 0.16)' in said


def test_the_fit_of_maxima_is_said_to_extrapolate():
  said = _attacker(_result(), 'does not know when')
  assert 'ε ≈ 7.75 by the law of a maximum' in said
  assert '579.2' in said
  assert 'the largest of 100 cosines' in said
  assert 'extrapolates' in said
  assert 'exceeds the analytic ε of 35.5' in said
  unlimited = _result(analytic_epsilon=math.inf)
  assert 'exceeds' not in _attacker(unlimited, 'does not know when')


def test_doubts_are_told_beside_the_estimate():
  doubt = 'scores scatter otherwise than those of others (p = 0.001)'
  result = _result(all_scores=[_reading(_FINAL, False, [_given(doubt)])])
  assert f'Not calibrated: {doubt}.' in _attacker(
    result, 'only the final model'
  )
  assert 'Doubt: scores scatter otherwise' in report.format_report(result)


def test_one_round_has_no_maximum_to_speak_of():
  assert not any(
    'does not know when' in said
    for said in sentences.narrate(_result(rounds=1))
  )


@pytest.mark.parametrize(('rounds', 'warned'), [(2, True), (1, False)])
def test_clients_who_leak_more_than_canaries_are_warned_of(rounds, warned):
  result = _result(clients_participations=rounds)
  first = sentences.describe_participation(result)
  assert (first is not None) == warned
  for form in (report.format_summary, report.format_report):
    text = ' '.join(form(result).split())
    assert text.count('Canaries take part in one round') == warned
    assert text.count('up to 2 rounds, and is allowed ε = 57.2') == warned


def _in_all_rounds(momentum, **changes):
  """A run of 100 rounds whose canaries are in all of them."""
  config = recorded_runs.result().config | {
    'server': {'optimizer': 'sgd', 'learning_rate': 1.0, 'momentum': momentum},
    'clipping': {'kind': 'fixed'},
  }
  fields = dict(repetitions=100, noise_multiplier=40.0, config=config)
  return _result(**fields | changes)


def test_a_hidden_state_is_said_to_protect_no_canary_that_is_in_all_rounds():
  # μ = √100 / 40, whose ε at δ = 1e-5 is that of one step with z = 4.
  epsilon = cells.format_number(
    accounting.epsilon_of_releases(4.0, delta=1e-5).epsilon
  )
  said = _attacker(_in_all_rounds(0.0), 'hidden state')
  assert 'is no protection' in said
  assert f'μ = √T/z = 0.25, or ε = {epsilon}.' in said
  text = page.render_markdown(report.make_page(_in_all_rounds(0.0), {}))
  assert text.count(said) == 1
  shown = html.render_html(report.make_page(_in_all_rounds(0.0), {}), {})
  assert shown.count('A hidden state') == 1


def test_momentum_leaves_less_of_late_rounds_to_a_hidden_state():
  weights = np.array([sum(0.9**i for i in range(n)) for n in range(100, 0, -1)])
  mu = 0.25 * weights.sum() / 10 / np.linalg.norm(weights)
  assert 0.2 < mu < 0.25
  said = _attacker(_in_all_rounds(0.9), 'hidden state')
  assert 'protects little' in said
  assert f'μ = {cells.format_number(mu)} of √T/z = 0.25' in said


@pytest.mark.parametrize(
  'changes',
  [
    {'repetitions': 99},
    {'noise_multiplier': 0.0},
    {'config': {'server': {'optimizer': 'adam'}, 'audit': {'delta': None}}},
  ],
)
def test_nothing_is_said_of_a_hidden_state_that_may_protect(changes):
  result = _in_all_rounds(0.0, **changes)
  assert not sentences.describe_hidden_state(result)


def test_the_papers_bound_is_said_to_be_none_where_it_is_shown():
  assert _attacker(_result(), 'It is not a bound')
  without = _result(estimates=[_row(_FINAL, 'location_mixture', 1.2)])
  assert not any(
    'It is not a bound' in said for said in sentences.narrate(without)
  )


@pytest.mark.parametrize(
  ('noise', 'multiplier', 'warned'),
  [
    ('reproducible simulation', 0.2, True),
    ('reproducible simulation', 0.0, False),
    ('fresh', 0.2, False),
  ],
)
def test_noise_that_follows_from_a_seed_is_warned_of(noise, multiplier, warned):
  result = _result(noise=noise, noise_multiplier=multiplier)
  said = ' '.join(report.format_report(result).split())
  assert ('do not publish' in said) == warned


@pytest.mark.integration
def test_without_noise_canaries_alone_in_their_rounds_are_told_apart(
  tmp_path, coarse_figures
):
  simulated = recorded_runs.by_vectors(
    momentum=0.0, noise=0.0, observed=12, unobserved=40, dim=500
  )
  # Of each round the canary itself is left, and nothing.
  record = simulated.record
  removed = threat_models.score_all(record)[-1].scores
  assert set(removed.observed) == {1.0}
  assert set(removed.unobserved) == {0.0}
  audit = evaluation.evaluate(record, floors=False)
  found = audit.find(threat_models.RESIDUAL)
  # No cosine in the null law is as large as 1.
  assert found.find('shifted_cosine').epsilon == math.inf
  assert found.find('clopper_pearson_band').epsilon == math.inf
  assert found.is_calibrated
  limitless = {
    'analytic_epsilon': math.inf,
    'clients_analytic_epsilon': math.inf,
  }
  folder = _finished_run(
    tmp_path,
    result=_result(noise_multiplier=0.0, audit=audit, **limitless),
  )
  write_record(folder / 'private/scores.npz', record)
  text = report.write_report(folder).read_text()
  assert 'Without noise nothing is left but the canary itself, and the' in text
  assert '| ∞ |' in text


def test_an_undefined_estimate_claims_nothing():
  rows = [_row(_FINAL, 'location_mixture', 'NaN', floor=None)]
  text = report.format_report(_result(estimates=rows))
  assert 'undefined' in text
  assert 'no ε could be estimated' in text
  assert 'guesses' not in text


def test_write_leaves_whole_files_and_no_drafts(workdir):
  given = {'result.json', 'private'}
  assert {p.name for p in workdir.iterdir()} == given | set(_FILES)
  for name in _PICTURES:
    png = (workdir / name).read_bytes()
    assert png.startswith(b'\x89PNG\r\n\x1a\n')
    assert png.endswith(b'IEND\xaeB`\x82')
    # 12 inches at 150 dots each.
    assert struct.unpack('>I', png[16:20]) == (1800,)


def test_the_page_holds_the_table_the_words_the_figures_and_the_config(workdir):
  text = (workdir / 'report.md').read_text()
  assert text.startswith('# Privacy audit: digits\n')
  for said in sentences.narrate(_result()):
    assert f'\n- {said}\n' in text
  embedded = re.findall(r'!\[[^]]+\]\(([^)]+)\)', text)
  assert sorted(embedded) == sorted(_PICTURES)
  (config,) = re.findall(r'```json\n(.*?)```', text, re.S)
  assert json.loads(config) == _result().config


def test_a_bar_in_a_text_does_not_break_a_markdown_table(workdir):
  lines = (workdir / 'report.md').read_text().splitlines()
  rows = [s for s in lines if s.startswith('|')]
  bars = [len(re.findall(r'(?<!\\)\|', s)) for s in rows]
  assert len(rows) == len(bars) > len(_ROWS)
  assert set(bars) == {3, 6, 8, 9}
  assert any(r'digits \| real' in s for s in rows)


@pytest.mark.integration
def test_writing_twice_gives_the_same_page(workdir):
  before = (workdir / 'report.md').read_bytes()
  assert report.write_report(workdir) == workdir / 'report.md'
  assert (workdir / 'report.md').read_bytes() == before


@pytest.mark.parametrize('is_new', [True, False], ids=['new', 'again'])
def test_a_report_that_was_stopped_at_any_file_is_written_when_it_is_asked_again(
  tmp_path, monkeypatch, is_new
):
  monkeypatch.setattr(
    of_audit, 'draw_run', lambda *finished: {'attackers.png': figure.Figure()}
  )
  files = workdirs.workdir_at(_finished_run(tmp_path))
  write, written = io.write_atomically, []

  def stop_at(number):
    def write_or_stop(path, *arguments, **options):
      if len(written) == number:
        raise KeyboardInterrupt
      written.append(path.name)
      write(path, *arguments, **options)

    written.clear()
    monkeypatch.setattr(io, 'write_atomically', write_or_stop)

  assert not workdirs.has_report(files)
  names = {'attackers.png', 'attackers.svg', 'report.html', 'audit_card.json'}
  for number in range(len(names) + 1):
    if not is_new:
      stop_at(None)
      report.write_report(files.folder)
      assert workdirs.has_report(files)
    stop_at(number)
    with pytest.raises(KeyboardInterrupt):
      report.write_report(files.folder)
    assert not workdirs.has_report(files)
  stop_at(None)
  report.write_report(files.folder)
  assert workdirs.has_report(files)
  # The mark comes last.
  assert written[-1] == 'report.md'
  assert {*written[:-1]} == names
  assert all((files.folder / name).exists() for name in names)


@pytest.mark.integration
@pytest.mark.parametrize(
  'shape',
  [
    {'shift': 120.0},
    {'repetitions': 4},
    {'observed': 5, 'unobserved': 5},
    {'observed': 2, 'unobserved': 3, 'rounds': 1},
    {'rounds': 2, 'unobserved': 0},
  ],
  ids=['no noise', 'repeated', 'few canaries', 'one round', 'two rounds'],
)
def test_runs_of_every_shape_are_drawn(tmp_path, coarse_figures, shape):
  assert report.write_report(_finished_run(tmp_path, **shape)).is_file()


@pytest.mark.integration
def test_a_report_of_fresh_noise_shows_nothing_that_noise_does_not_hide(
  tmp_path, coarse_figures, monkeypatch
):
  drawn, draw = [], of_audit.draw_run
  monkeypatch.setattr(
    of_audit,
    'draw_run',
    lambda *given: drawn.append(given) or draw(*given),
  )
  times = ('seconds', 'seconds_per_round', 'waited_share')
  result = _result(noise='fresh', **dict.fromkeys(times))
  few = {'observed': 12, 'unobserved': 12}
  text = report.write_report(_finished_run(tmp_path, result, **few)).read_text()
  assert '| time |' not in text
  assert '(by_round.png)' in text
  ((_, record, history),) = drawn
  assert 'residual' not in record.cosines
  for name in ('num_clients', 'sum_norm', 'residual_norm'):
    assert np.isnan(getattr(record.rounds, name)).all()
  assert history
  for line in history:
    assert not line.keys() & {
      'loss',
      'num_clients',
      'fraction_unclipped',
      'update_norm',
    }
  assert any('test_loss' in line for line in history)
  # Nothing is hidden that noise hides already.
  whole = load_record(tmp_path / 'private/scores.npz')
  np.testing.assert_array_equal(record.trace, whole.trace)
  hidden = {one.threat_model for one in threat_models.score_all(whole)} - {
    one.threat_model for one in threat_models.score_all(record)
  }
  assert hidden == {threat_models.RESIDUAL}


@pytest.mark.parametrize(
  'name', ['result.json', 'private/scores.npz', 'private/metrics.jsonl']
)
def test_a_missing_file_is_named_with_the_cure(tmp_path, name):
  _finished_run(tmp_path)
  (tmp_path / name).unlink()
  with pytest.raises(FileNotFoundError, match='repeat the run') as error:
    report.write_report(tmp_path)
  assert str(tmp_path / name) in str(error.value)
  assert not any((tmp_path / made).exists() for made in _FILES)


def test_a_file_of_another_version_is_refused(tmp_path):
  _finished_run(tmp_path)
  values = io.read_json(tmp_path / 'result.json')
  io.write_json(tmp_path / 'result.json', values | {'schema': 99})
  with pytest.raises(ValueError, match=r'result\.json has schema=99'):
    report.write_report(tmp_path)
  _finished_run(tmp_path)
  arrays = io.read_arrays(tmp_path / 'private/scores.npz')
  io.write_arrays(
    tmp_path / 'private/scores.npz', {**arrays, 'schema': np.asarray(99)}
  )
  with pytest.raises(ValueError, match=r'scores\.npz has schema=99'):
    report.write_report(tmp_path)


@pytest.mark.parametrize(
  'damage', [lambda v: v.pop('dim'), lambda v: v.update(delta='x')]
)
def test_a_damaged_result_is_refused(tmp_path, damage):
  _finished_run(tmp_path)
  values = io.read_json(tmp_path / 'result.json')
  damage(values)
  io.write_json(tmp_path / 'result.json', values)
  with pytest.raises(
    ValueError, match=r'result\.json is damaged.*another workdir'
  ):
    report.write_report(tmp_path)


@pytest.mark.integration
def test_the_script_draws_a_run_again_and_names_what_is_wrong(tmp_path):
  done = _finished_run(tmp_path / 'done', observed=5, unobserved=5)
  drawn = run_script('report', done)
  assert drawn.returncode == 0
  assert drawn.stdout.startswith(report.format_summary(_result()))
  assert all((done / name).exists() for name in _FILES)
  verbose = run_script('report', done, '--verbose')
  assert verbose.stdout.startswith(report.format_report(_result()))
  nothing = run_script('report')
  assert nothing.returncode != 0
  assert 'Give the directory of one finished run' in nothing.stderr
  missing = run_script('report', f'--workdir={tmp_path}/none')
  assert missing.returncode != 0
  assert 'none/result.json does not exist' in missing.stderr


def test_what_result_json_says_is_no_markup_of_a_page(tmp_path):
  audit = evaluation.evaluate(recorded_runs.by_law(), floors=False)
  text = 'digits\n\n# All is well\n<script>alert(1)</script>\x1b[2J'
  path = tmp_path / 'result.json'
  run_result.write_result(
    path,
    recorded_runs.result(audit=audit, task=text, data=text, noise=text),
  )
  values = json.loads(path.read_text())
  for attack in values['audit']['attacks']:
    check = {'key': text, 'values': {'text': text}}
    attack.update(sees=text, failed_checks=[check], notes=[check])
  path.write_text(json.dumps(values))
  result = run_result.load_result(path)
  for made in (
    page.render_markdown(report.make_page(result, {})),
    html.render_html(report.make_page(result, {}), {}),
  ):
    assert '<script>' not in made
    assert '\x1b' not in made
    assert not re.search('^# All is well', made, flags=re.MULTILINE)
    assert '&lt;script' in made
  assert '\x1b' not in report.format_report(result)
