"""What a person sees of a finished audit: its table, words and figures."""

import dataclasses
import json
import math
import re
import struct

import numpy as np
import pytest
from scipy import stats

from epe_jax import cli, io
from epe_jax.accounting import Analytic
from epe_jax.audit import attackers, evaluation, release, results
from epe_jax.audit.record_file import load_record, write_record
from epe_jax.epsilon import tradeoff, types
from epe_jax.epsilon.types import Scores, Sphere
from epe_jax.experiment import run_result, workdirs
from epe_jax.fact import Fact
from epe_jax.report import (
  cells,
  clients,
  first_page,
  html,
  leaks,
  page,
  report,
  run_tables,
  tables,
  words,
)
from epe_jax.report.comparisons import comparison, labelled_runs
from epe_jax.report.figures import of_audit, style
from epe_jax.watch import by_round
from tests import recorded_runs
from tests.in_process import run_command

pytestmark = pytest.mark.usefixtures('quick_compilation')

_PICTURES = tuple(of_audit.CAPTIONS)
_FILES = (
  'report.md',
  'report.html',
  *_PICTURES,
  *(name.replace('.png', '.svg') for name in _PICTURES),
)
_FINAL, _CHANGE = attackers.FINAL, attackers.CHANGE
_OWN = attackers.OWN
_MAXIMUM = attackers.MAXIMUM


def _row(attacker, method, epsilon, floor=(0.01, 0.7), **fields):
  """An estimate of an attacker."""
  level = floor and types.Floor(
    sum(floor) / 2, floor[0], sum(floor) / 2, floor[1]
  )
  return attacker, types.Estimate(
    float(epsilon),
    1e-5,
    method,
    **{'confidence': None, 'floor': level} | fields,
  )


def _bound(attacker, method, epsilon, **fields):
  fields = {'confidence': 0.95, 'kind': 'confidence_bound'} | fields
  return _row(attacker, method, epsilon, floor=None, **fields)


def _given(text):
  return Fact(text.replace(' ', '_'))


_ROWS = [
  _row(_FINAL, 'location_mixture', 1.2, interval=(1.05, 1.35)),
  _row(_FINAL, 'two_gaussian_fitted', 1.31, floor=(0.05, 0.9)),
  _row(_FINAL, 'eps_lo', 0.88, floor=None),
  _row(_MAXIMUM, 'maximum_over_rounds', 7.75),
  _row(_MAXIMUM, 'two_gaussian_fitted', 579.25),
  _row(_OWN, 'location_mixture', 8.25),
  _row(_OWN, 'max_threshold_gaussian', 8.5),
]


def _attack(attacker, estimates, *, is_calibrated=True, analytic=None):
  about = 'what is seen', 1000, 1000, is_calibrated, (), None, None
  return results.AttackResult(attacker, *about, tuple(estimates), analytic)


def _result(*, estimates=_ROWS, is_calibrated=True, **changes):
  attacks = tuple(
    _attack(
      attacker,
      (estimate for other, estimate in estimates if other == attacker),
      is_calibrated=is_calibrated,
    )
    for attacker in dict.fromkeys(one for one, _ in estimates)
  )
  return recorded_runs.result(**{'audit': results.Audit(attacks)} | changes)


def _finished_run(folder, result=None, **record):
  (folder / 'private').mkdir(parents=True, exist_ok=True)
  run = recorded_runs.by_law(**record)
  write_record(folder / 'private/scores.npz', run)
  result = recorded_runs.fit_result(result or _result(), run)
  leaks = by_round.evaluate_rounds(run, result.audit)
  result = dataclasses.replace(result, leaks_by_round=leaks)
  run_result.write_result(folder / 'result.json', result)
  lines = [json.dumps(r) + '\n' for r in recorded_runs.metrics(len(run.trace))]
  (folder / 'private/metrics.jsonl').write_text(''.join(lines))
  return folder


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  folder = _finished_run(tmp_path_factory.mktemp('run'))
  report.write_report(folder)
  return folder


def test_a_report_fits_in_100_columns():
  wide = _result(
    rounds=20480,
    dim=4_050_748,
    participations=16,
    noise_multiplier=0.2317,
    analytic_assumes=(Fact('word_' * 60),),
    estimates=[
      _row(_FINAL, 'max_threshold_empirical', 45800.0, floor=(1234.5, 98765.4)),
      _row(_FINAL, 'eps_lo', 5e17),
    ],
  )
  for result in (_result(), wide):
    for form in (report.format_summary, report.format_report):
      assert max(map(len, form(result).splitlines())) <= 100


def test_every_estimate_is_in_the_table_of_its_kind_with_method_and_floor():
  (table,) = run_tables.make_estimate_tables(_result().audit.attacks)
  assert table.title.startswith('Estimates')
  # What is of no estimate has no column.
  head = ['attacker has', 'method', 'ε', 'μ', '90 % interval', 'floor 5-95 %']
  assert table.head == head
  for *expected, epsilon in (
    ('Gaussians, shifts known', '1.05 to 1.35', '0.01 to 0.70', 1.2),
    ('two Gaussians, std fitted', '-', '0.05 to 0.90', 1.31),
    ("the paper's ε_lo (no bound)", '-', '-', 0.88),
    ('law of a maximum', '-', '0.01 to 0.70', 7.75),
    ('two Gaussians, std fitted', '-', '0.01 to 0.70', 579.25),
    ('Gaussians, shifts known', '-', '0.01 to 0.70', 8.25),
    ('best threshold, Gaussian rates', '-', '0.01 to 0.70', 8.5),
  ):
    method, *rest = expected
    mu = cells.format_mu(epsilon, 1e-5)
    wanted = [method, cells.format_number(epsilon), mu, *rest]
    assert wanted in [line[1:] for line in table.body], wanted


def test_the_kind_of_a_bound_says_what_it_assumes():
  shape = (types.Assumption.INDEPENDENT, types.Assumption.GAUSSIAN_SCORES)
  curve = (types.Assumption.GAUSSIAN_CURVE,)
  bounds = [
    _bound(_FINAL, 'clopper_pearson_band', 0.5),
    _bound(_FINAL, 'location_mixture_bound', 0.9, assumes=shape),
    _bound(_FINAL, 'gdp_clopper_pearson_band', 0.8, assumes=curve),
    _bound(_FINAL, 'epsilon_credible_split', 0.7, kind='credible_bound'),
  ]
  with_bounds = _result(estimates=[*_ROWS, *bounds])
  made = run_tables.make_estimate_tables(with_bounds.audit.attacks)
  kinds = {t.title: [row[-1] for row in t.body] for t in made[1:]}
  assert kinds == {
    'Lower bounds for any distribution of scores': ['lower bound, 95 %'],
    'Lower bounds that assume a distribution of scores or a mechanism': [
      'if Gaussian, 95 %',
      'if f Gaussian, 95 %',
    ],
    'Credible bounds: beliefs, no lower bounds': ['credible, 95 %'],
  }
  text = report.format_estimates(with_bounds.audit)
  places = [text.index(title) for title in (made[0].title, *kinds)]
  assert places == sorted(places)


def test_both_analytic_epsilons_are_in_the_settings_with_what_they_assume():
  def list_settings(result):
    return dict(run_tables.make_settings_table(result).body)

  shown = list_settings(_result())
  of_canaries = shown['limit of canaries']
  assert of_canaries == '35.5: one who takes part in one round'
  assert shown['limit of clients'] == '57.2: one who takes part in 2 rounds'
  same = _result(
    clients_analytic_epsilon=35.5,
    clients_analytic_assumes=(Fact('participations', {'rounds': 1}),),
  )
  names = [name for name in list_settings(same) if 'limit' in name]
  assert names == ['limit of canaries and clients']


def test_the_table_of_attackers_has_a_line_for_each_and_no_doubtful_estimate():
  # z is not known, so that rounds have no limit, and the final model has.
  record = recorded_runs.by_law()
  audit = evaluation.evaluate(record)
  assert {a.analytic is None for a in audit.attacks} == {True, False}
  result = _result(audit=audit)
  participations = leaks.count_participations(result)
  table = run_tables.make_summary_table(audit, participations=participations)
  table = tables.format_text(table).splitlines()[1:]
  assert len(table) == len(audit.attacks)
  for line, attack in zip(table, audit.attacks, strict=True):
    assert line.startswith(words.spell_name(attack.threat_model))
    shown = 'uncalibrated'
    if attack.is_calibrated:
      shown = cells.format_with_interval(attack.first)
    bound = cells.format_number(attack.bounds[0].epsilon)
    analytic = cells.format_analytic(attack.analytic)
    of_client = run_tables.format_client(attack, participations)
    assert line.endswith(f' {of_client}')
    numbers = line.removeprefix(words.spell_name(attack.threat_model)).split()
    expected = [bound, *shown.split(), *analytic.split()]
    assert numbers[: len(expected)] == expected
  assert any(not attack.is_calibrated for attack in audit.attacks)


def _alarms(result):
  return first_page.list_alarms(result, leaks.find_leaks(result))


def test_the_headline_is_the_bound_and_the_final_model_in_a_sentence():
  audit = recorded_runs.audit_by_law()
  result = _result(audit=audit)
  _, bound, _ = audit.headline
  # With the initial model, which clients were sent.
  final = audit.find(_CHANGE).first
  assert first_page.state_headline(audit, leaks.find_leaks(result)) == (
    f'Canaries show ε of at least {cells.format_epsilon(bound)} for the worst-case attacker '
    f'(95 % confidence) and about {cells.format_epsilon(final)} from the first '
    'and last model, at δ = 1e-5.'
  )
  assert _alarms(result) == []
  within = _result(estimates=[_row(_FINAL, 'location_mixture', 0.3)])
  said = first_page.state_headline(within.audit, leaks.find_leaks(within))
  assert 'nothing beyond chance from the last model only' in said
  assert '0.30' not in said


def test_an_attack_that_differs_from_what_is_implied_is_an_alarm():
  audit = recorded_runs.audit_by_law()
  *weaker, strongest = audit.attacks
  # Of a dozen tests one is off by as much by chance.
  for errors, p_value, alarmed in ((-2.6, 0.009, False), (-3.9, 1e-4, True)):
    agreement = strongest.agreement._replace(
      standard_errors=errors, p_value=p_value
    )
    off = (*weaker, dataclasses.replace(strongest, agreement=agreement))
    changed = audit._replace(attacks=off)
    said = _alarms(_result(audit=changed))
    assert bool(said) == alarmed
    assert all('does not do what is assumed of it' in text for text in said)
  # Without noise the analysis implies nothing that an attack could find.
  analytic = Analytic(math.inf, 'no noise')
  boundless = (*weaker, dataclasses.replace(off[-1], analytic=analytic))
  assert _alarms(_result(audit=audit._replace(attacks=boundless))) == []


def test_a_failed_check_of_a_row_is_on_the_first_page_and_others_are_not():
  audit = recorded_runs.audit_by_law()
  for model, is_first in ((_CHANGE, True), (_MAXIMUM, False)):
    changed = tuple(
      dataclasses.replace(a, failed_checks=(_given('it is not'),))
      if a.threat_model == model
      else a
      for a in audit.attacks
    )
    result = _result(audit=audit._replace(attacks=changed))
    text = f'{words.spell_name(model)}: it is not.'
    assert (text in _alarms(result)) == is_first
    assert (f'Warning: {text}' in report.format_summary(result)) == is_first
    assert report.format_report(result).count('it is not.') == 1


def test_what_exceeds_its_attackers_analytic_epsilon_is_named():
  # Half of the noise that the run claims to have.
  record = dataclasses.replace(
    recorded_runs.by_law(shift=6.0, observed=300, unobserved=300),
    noise_multiplier=1 / 3.0,
    periods=1,
  )
  audit = evaluation.evaluate(record, floors=False)
  limit = audit.find(attackers.RESIDUAL).analytic.epsilon
  points, free, *_ = run_tables.make_estimate_tables(audit.attacks)
  for table, sign, verb in ((points, '*', 'exceeds'), (free, '‡', 'above')):
    marked = [row for row in table.body if row[2].endswith(sign)]
    assert marked
    (note,) = [note for note in table.notes if note.startswith(sign)]
    assert f'{verb} the limit' in note
  said = ' '.join(_alarms(_result(audit=audit)))
  assert f'is above the limit {cells.format_number(limit)}' in said
  assert 'worst case: the lower bound' in said
  honest = dataclasses.replace(record, noise_multiplier=1 / 6.0)
  audit = evaluation.evaluate(honest, floors=False)
  text = report.format_report(_result(audit=audit))
  assert 'a lower bound above the limit' not in text


def _above_its_limit(*, bounds, interval):
  """A run whose strongest attacker is allowed an ε of 5."""
  own = attackers.RESIDUAL
  first = _row(own, 'location_mixture', 5.6, interval=interval)
  estimates = [estimate for _, estimate in (first, *bounds)]
  attack = _attack(own, estimates, analytic=Analytic(5.0, ()))
  return _result(audit=results.Audit((attack,)))


def _show_everywhere(result):
  """Each output of a run, with white space made alike."""
  run = labelled_runs.label_run('a', result)
  shown = {
    'report': report.format_report(result),
    'all estimates': report.format_estimates(result.audit),
    'page': page.render_markdown(report.make_page(result, {})),
    'html': html.render_html(report.make_page(result, {}), {}),
    'comparison': page.render_text(
      comparison.make_page([run, run]), has_appendix=True
    ),
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
      'counted, its interval begins at 5.36. Chance does not explain this: the run',
      'Warning',
    ),
    # Above at 90 %, as one interval of twenty is by chance, but not at 97.5 %.
    (
      (5.05, 6.15),
      'with all tests of this audit counted, its interval begins at 4.94. Chance '
      'explains this',
      'Note',
    ),
    (
      (4.9, 6.3),
      'its 90 % interval, 4.90 to 6.30, is not. Chance explains this',
      'Note',
    ),
  ],
)
def test_a_point_estimate_above_the_analytic_epsilon_is_named_everywhere(
  interval, why, kind
):
  bound = _bound(attackers.RESIDUAL, 'clopper_pearson_band', 4.5)
  result = _above_its_limit(bounds=[bound], interval=interval)
  for name, text in _show_everywhere(result).items():
    assert 'the estimate 5.60 is above the limit 5.00; ' in text, name
    assert why in text, name
    assert f'{kind}: worst case: the estimate' in text, name
    assert kind == 'Warning' or 'Warning' not in text, name
  said = report.format_summary(result)
  assert ('Warning' in said) == (kind == 'Warning')
  explained = (
    'the interval of the worst case begins at 4.94: chance explains this.'
    if interval[0] == 5.05
    else 'just above its limit is sampling error unless a warning appears.'
  )
  assert explained in ' '.join(said.split())
  values = first_page.describe_in_json(result.audit)
  (said,) = [*values['warnings'], *values['notes']]
  assert why in said
  assert len(values['warnings']) == (kind == 'Warning')


@pytest.mark.parametrize('is_first', [True, False])
def test_a_bound_above_the_analytic_epsilon_is_warned_of_everywhere(is_first):
  shape = (types.Assumption.GAUSSIAN_SCORES,)
  above = _bound(
    attackers.RESIDUAL, 'location_mixture_bound', 5.5, assumes=shape
  )
  below = _bound(attackers.RESIDUAL, 'clopper_pearson_band', 4.5)
  bounds = [above, below] if is_first else [below, above]
  result = _above_its_limit(bounds=bounds, interval=(4.9, 6.3))
  expected = 'the lower bound 5.50 is above the limit 5.00'
  if not is_first:
    expected = (
      '1 of 1 other lower bounds is above the limit 5.00: 5.50 (Gaussians, shifts known, bound; holds if scores are '
      'Gaussian). '
      'Of these bounds each holds at 95 % by itself, and several not all at once'
    )
  for name, text in _show_everywhere(result).items():
    assert expected in text, name
  (warning,) = first_page.describe_in_json(result.audit)['warnings']
  assert expected in warning


def test_the_first_page_has_no_estimate_that_is_not_calibrated():
  rows = [_row(_FINAL, 'location_mixture', 579.25)]
  for is_calibrated in (True, False):
    result = _result(estimates=rows, is_calibrated=is_calibrated)
    text = report.format_summary(result)
    assert ('579' in text) == is_calibrated


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
  assert not re.search(r'\binf|\bnan', text, re.I)
  assert '∞' in report.format_summary(result)
  assert 'Without noise there is no limit' in ' '.join(text.split())
  assert 'nobody is protected' in text


@pytest.mark.parametrize(
  ('epsilon', 'fraction'), [(1.0, 1e-5), (25.5, 2.9e-3)], ids=str
)
def test_what_is_said_of_guesses_holds_for_the_mechanism(epsilon, fraction):
  """Rates of the Gaussian mechanism of this ε, by the law of its scores."""
  mu = tradeoff.mu_of_epsilon(epsilon, fraction)
  quantiles = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)
  scores = Scores(
    (quantiles + mu) / 1e4, np.empty(0), Sphere(10**8), shift=np.ones(20_000)
  )
  found = evaluation._compute_rates(scores)
  assert found.accuracy == pytest.approx(stats.norm.cdf(mu / 2), abs=1e-3)
  for fpr, tpr in zip(results.FPRS, found.tpr, strict=True):
    exact = stats.norm.sf(stats.norm.isf(fpr) - mu)
    assert tpr == pytest.approx(exact, rel=1e-3)


def test_the_headline_is_one_bound_chosen_by_the_design():
  record = recorded_runs.by_law()
  found = evaluation.evaluate(record, floors=False)
  attack, bound, _ = found.headline
  assert bound.method == 'clopper_pearson_bonferroni'
  assert attack.threat_model == attackers.RESIDUAL
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
  said = first_page.state_headline(found, leaks.find_leaks(result))
  assert (
    f'at least {cells.format_epsilon(bound)} for the worst-case attacker'
    in said
  )
  # Where who removes the others may not be shown, it is that of another attacker.
  published = evaluation.evaluate(release.redact_record(record), floors=False)
  assert published.headline[0].threat_model == attackers.OWN
  result = _result(audit=published, noise='fresh')
  said = report.format_summary(result)
  assert (
    f'{cells.format_epsilon(published.headline[1])} from every round' in said
  )
  assert 'Not measured: the worst case;' in said


def test_where_a_shift_is_not_known_the_report_says_that_nothing_is_calibrated():
  record = dataclasses.replace(
    recorded_runs.by_law(), momentum=None, weight=None
  )
  result = _result(audit=evaluation.evaluate(record, floors=False))
  (final, *_) = leaks.find_leaks(result)
  assert final.about is None
  table = first_page.make_leak_table(leaks.find_leaks(result))
  assert table.body[0][2] == '–'
  text = ' '.join(report.format_report(result).split())
  assert 'uncalibrated' in text
  assert (
    'Calibrated: Said of an estimate if the shifts of scores are known' in text
  )


def test_maxima_that_are_all_alike_have_estimates_too():
  record = recorded_runs.by_law()
  trace = np.where(record.included, 0.9, record.trace)
  audit = evaluation.evaluate(
    recorded_runs.replace_cosines(record, aggregate=trace.astype(np.float32)),
    floors=False,
  )
  maximum = audit.find(attackers.MAXIMUM)
  assert maximum.find('maximum_over_rounds') is not None
  assert maximum.find('two_gaussian_fitted') is None
  assert 'law of a maximum' in report.format_report(_result(audit=audit))


def test_maxima_that_refute_their_law_have_a_doubt():
  record = recorded_runs.by_law()
  away = ~record.observed
  trace = record.trace.copy()
  trace[:, away] = 0.2 * trace[:, away] + 1 / np.sqrt(record.dim)
  changed = recorded_runs.replace_cosines(record, aggregate=trace)
  attack_scores = attackers.MAXIMUM.score(changed)
  assert not attack_scores.is_calibrated
  assert attack_scores.failed_checks[-1].key == 'maximum_law_rejected'


@pytest.mark.integration
def test_bounds_that_hold_together_are_lower_ones():
  record = recorded_runs.by_law()
  alone = evaluation.evaluate(record, floors=False)
  joint = evaluation.evaluate(record, simultaneous=True, floors=False)
  said = ' '.join(report.format_estimates(joint).split())
  assert 'All lower bounds hold together with 95 % confidence' in said
  assert 'pick no other' not in said
  said = ' '.join(report.format_estimates(alone).split())
  assert 'Each lower bound holds with 95 % confidence' in said
  assert 'pick no other' in said
  num = sum(len(attack.bounds) for attack in alone.attacks)
  for single, both in zip(alone.attacks, joint.attacks, strict=True):
    for one, all_ in zip(single.estimates, both.estimates, strict=True):
      if one.kind == 'confidence_bound':
        assert all_.epsilon <= one.epsilon
        assert all_.confidence == pytest.approx(1 - 0.05 / num)
      else:
        assert all_ == one


@pytest.mark.parametrize(('epsilon', 'inside'), [(0.7, True), (0.71, False)])
def test_an_estimate_inside_its_floor_is_told_as_chance(epsilon, inside):
  result = _result(estimates=[_row(_FINAL, 'location_mixture', epsilon)])
  table = first_page.make_leak_table(leaks.find_leaks(result))
  assert table.body[0][2].endswith('(chance)') == inside
  assert ('nothing beyond chance' in report.format_summary(result)) == inside


@pytest.mark.parametrize('attack_scores', [_FINAL, _OWN])
def test_the_first_page_is_about_the_first_estimate_alone(attack_scores):
  rows = [
    _row(attack_scores, 'location_mixture', 2.0),
    _row(attack_scores, 'two_gaussian_fitted', 3.0),
    _row(attack_scores, 'eps_lo', 4.0),
  ]
  said = report.format_summary(_result(estimates=rows))
  changed = [(who, dataclasses.replace(e, epsilon=5.0)) for who, e in rows]
  others = [rows[0], *changed[1:]]
  assert report.format_summary(_result(estimates=others)) == said


@pytest.mark.parametrize(('by_rounds', 'more'), [(0.9, True), (6.0, False)])
def test_who_sees_every_round_learns_no_less_than_from_the_model(
  by_rounds, more
):
  """As scores of rounds may, whose noise is correlated."""
  of_model = [
    _row(_FINAL, 'location_mixture', 5.4),
    _bound(_FINAL, 'gdp_bound', 3.9),
  ]
  of_rounds = [
    _row(_OWN, 'location_mixture', by_rounds),
    _bound(_OWN, 'gdp_bound', 0.5),
  ]
  alone = leaks.find_leaks(_result(estimates=of_rounds))[1]
  result = _result(estimates=[*of_model, *of_rounds])
  model, rounds, _ = leaks.find_leaks(result)
  assert model.about is not None
  assert rounds.about is not None
  assert rounds.about.epsilon == max(5.4, by_rounds)
  assert model.about.epsilon == 5.4
  assert rounds.at_least == (model.at_least if more else alone.at_least)
  assert rounds.at_least != (alone.at_least if more else model.at_least)
  # What an attacker who sees less is allowed limits nobody who sees more.
  assert rounds.at_most == alone.at_most
  said = ' '.join(report.format_summary(result).split())
  assert ('With every round come the models, which show more.' in said) == more
  assert ('attacker also knows when the canary took part.' in said) != more


def test_clients_who_leak_more_than_canaries_have_columns_of_their_own():
  record = recorded_runs.by_law()
  audit = recorded_runs.audit_by_law(floors=False)
  shifts = recorded_runs.client_shifts(record, 2)
  result = _result(audit=audit, clients_participations=2, clients_shifts=shifts)
  text = ' '.join(report.format_summary(result).split())
  assert 'A canary sends an update of the full clip norm in one round' in text
  assert 'clients take part in up to 2 rounds; their estimate ranges' in text
  table = first_page.make_leak_table(leaks.find_leaks(result))
  assert [row[-1] for row in table.body] == ['57.2'] * 3
  # Of rounds nothing is known of a client but the limit.
  assert [row[-2] for row in table.body[1:]] == ['–'] * 2
  participations = leaks.count_participations(result)
  expected = clients.expect_client(audit.find(_CHANGE), participations)
  low, high = map(cells.format_number, expected)
  assert table.body[0][-2] == f'{low} to {high}'


@pytest.mark.parametrize(
  ('noise', 'multiplier', 'warned'),
  [
    ('reproducible_simulation', 0.2, True),
    ('reproducible_simulation', 0.0, False),
    ('fresh', 0.2, False),
  ],
)
def test_noise_that_follows_from_a_seed_is_warned_of(noise, multiplier, warned):
  result = _result(noise=noise, noise_multiplier=multiplier)
  said = ' '.join(report.format_report(result).split())
  assert ('its noise follows from the seed' in said) == warned


@pytest.mark.integration
def test_without_noise_canaries_alone_in_their_rounds_are_told_apart(
  tmp_path, coarse_figures
):
  simulated = recorded_runs.by_vectors(
    momentum=0.0, noise=0.0, observed=12, unobserved=40, dim=500
  )
  # Of each round the canary itself is left, and nothing.
  record = simulated.record
  removed = attackers.score_all(record)[-1].scores
  assert set(removed.observed) == {1.0}
  assert set(removed.unobserved) == {0.0}
  audit = evaluation.evaluate(record, floors=False)
  found = audit.find(attackers.RESIDUAL)
  # No cosine in the null law is as large as 1.
  assert found.find('without_noise').epsilon == math.inf
  assert found.find('clopper_pearson_band').epsilon == math.inf
  assert found.is_calibrated
  limitless = {
    'analytic_epsilon': math.inf,
    'clients_analytic_epsilon': math.inf,
  }
  result = _result(noise_multiplier=0.0, audit=audit, **limitless)
  folder = _finished_run(tmp_path, result=result)
  write_record(folder / 'private/scores.npz', record)
  result = recorded_runs.fit_result(result, record)
  run_result.write_result(folder / 'result.json', result)
  text = report.write_report(folder).read_text()
  assert 'Without noise there is no limit' in text
  assert '| ∞ |' in text


def test_an_undefined_estimate_claims_nothing():
  rows = [_row(_FINAL, 'location_mixture', 'NaN', floor=None)]
  text = report.format_report(_result(estimates=rows))
  assert 'undefined' in text
  assert 'undefined' not in report.format_summary(_result(estimates=rows))


def test_write_leaves_whole_files_and_no_drafts(workdir):
  given = {'result.json', 'private'}
  assert {p.name for p in workdir.iterdir()} == given | set(_FILES)
  for name in _PICTURES:
    png = (workdir / name).read_bytes()
    assert png.startswith(b'\x89PNG\r\n\x1a\n')
    assert png.endswith(b'IEND\xaeB`\x82')
    # At 150 dots an inch.
    width = {'summary.png': style.NARROW, 'overview.png': style.MEDIUM}
    assert struct.unpack('>I', png[16:20]) == (
      150 * width.get(name, style.WIDE),
    )


def test_the_page_holds_the_table_the_figures_and_the_config(workdir):
  text = (workdir / 'report.md').read_text()
  assert text.startswith('# Privacy audit: digits\n')
  first, appendix = text.split('<details')
  embedded = r'!\[[^]]+\]\(([^)]+)\)'
  assert re.findall(embedded, first) == ['summary.png']
  others = [x for x in _PICTURES if x != 'summary.png']
  assert sorted(re.findall(embedded, appendix)) == sorted(others)
  (config,) = re.findall(r'```json\n(.*?)```', text, re.S)
  assert json.loads(config) == _result().config


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
    of_audit,
    'draw_run',
    lambda *finished: {'attackers.png': style.make_panels(1)[0]},
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
  names = {'attackers.png', 'attackers.svg', 'report.html'}
  for number in range(len(names) + 1):
    if not is_new:
      stop_at(None)
      report.write_report(files.folder)
      assert workdirs.has_report(files)
    stop_at(number)
    with pytest.raises(KeyboardInterrupt):
      report.write_report(files.folder)
    assert not workdirs.has_report(files)
    # Nothing is removed before there is another.
    assert is_new or files.report.exists()
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
  hidden = {one.threat_model for one in attackers.score_all(whole)} - {
    one.threat_model for one in attackers.score_all(record)
  }
  assert hidden == {attackers.RESIDUAL}


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


def _change_result(values):
  def change(files):
    io.write_sealed(files.result, io.read_sealed(files.result) | values)

  return change


def _change_version(files):
  arrays = io.read_arrays(files.scores)
  io.write_arrays(files.scores, {**arrays, 'schema': np.asarray(99)})


@pytest.mark.parametrize(
  ('damage', 'said'),
  [
    (_change_result({'schema': 99}), r'result\.json has schema=99'),
    (_change_version, r'scores\.npz has schema=99'),
  ],
)
def test_a_file_of_another_version_is_refused(tmp_path, damage, said):
  damage(workdirs.workdir_at(_finished_run(tmp_path)))
  with pytest.raises(ValueError, match=said):
    report.write_report(tmp_path)


def _with_noise(record, z):
  rounds = record.rounds._replace(noise_std=z * record.rounds.canary_norm)
  return dataclasses.replace(record, noise_multiplier=z, rounds=rounds)


@pytest.mark.parametrize(
  ('damage', 'said'),
  [
    (lambda f: f.model.write_bytes(b'model!'), r'model\.npz has SHA-256 '),
    (
      lambda f: write_record(f.scores, recorded_runs.by_law(shift=2.0)),
      r'scores\.npz has SHA-256 ',
    ),
    (
      lambda f: write_record(f.scores, recorded_runs.by_law(rounds=10)),
      r'scores\.npz has rounds=10, but result\.json .* rounds=20: one of them ',
    ),
    (
      lambda f: write_record(f.scores, _with_noise(load_record(f.scores), 0.3)),
      r'scores\.npz has noise_multiplier=0\.3, but .* noise_multiplier=0\.2: ',
    ),
  ],
)
def test_a_record_or_model_of_another_run_is_refused(tmp_path, damage, said):
  files = workdirs.workdir_at(_finished_run(tmp_path))
  files.model.write_bytes(b'model')
  result = dataclasses.replace(
    run_result.load_result(files.result),
    model_sha256=io.hash_file(files.model),
  )
  run_result.write_result(files.result, result)
  damage(files)
  with pytest.raises(
    ValueError, match=f'{said}.*is damaged or of another run; restore it, or'
  ):
    report.write_report(tmp_path)
  assert not files.report.exists()


@pytest.mark.parametrize(
  'command',
  [
    ['estimate', '{}', '--delta=1e-3'],
    ['report', '{}', '{}_other'],
  ],
)
def test_every_command_refuses_the_record_of_another_run(
  tmp_path, capsys, command
):
  files = workdirs.workdir_at(_finished_run(tmp_path / 'run'))
  _finished_run(tmp_path / 'run_other')
  result = dataclasses.replace(
    run_result.load_result(files.result), record_sha256='0' * 64
  )
  run_result.write_result(files.result, result)
  run = str(tmp_path / 'run')
  assert cli.main([x.format(run) for x in command]) == 2
  assert 'is damaged or of another run; restore it' in capsys.readouterr().err


@pytest.mark.integration
def test_the_script_draws_a_run_again_and_names_what_is_wrong(tmp_path):
  done = _finished_run(tmp_path / 'done', observed=5, unobserved=5)
  result = run_result.load_result(done / 'result.json')
  drawn = run_command('report', done)
  assert drawn.returncode == 0
  first = report.format_summary(result).rpartition('2026-11-24')[0]
  assert drawn.stdout.startswith(first)
  assert f'Wrote {done}/report.html' in drawn.stdout
  assert all((done / name).exists() for name in _FILES)
  verbose = run_command('report', done, '--verbose')
  assert 'Every estimate' in verbose.stdout
  nothing = run_command('report')
  assert nothing.returncode != 0
  assert 'Give the directory of one finished run' in nothing.stderr
  missing = run_command('report', f'--workdir={tmp_path}/none')
  assert missing.returncode != 0
  assert 'none/result.json does not exist' in missing.stderr


def test_what_result_json_says_is_no_markup_of_a_page(tmp_path):
  audit = recorded_runs.audit_by_law(floors=False)
  text = 'digits <script>alert(1)</script>'
  text += '![a](https://b.example/c) [d](javascript:e)'
  path = tmp_path / 'result.json'
  run_result.write_result(
    path,
    recorded_runs.result(
      audit=audit,
      task=text,
      data=text,
      noise=text,
      amplification=Fact(text, {text: text}),
      clients_analytic_assumes=(Fact(text),),
    ),
  )
  values = io.read_sealed(path)
  for attack in values['audit']['attacks']:
    check = {'key': text, 'values': {'text': text}}
    attack.update(view=text, failed_checks=[check], notes=[check])
  io.write_sealed(path, values)
  result = run_result.load_result(path)
  for made in (
    page.render_markdown(report.make_page(result, {})),
    html.render_html(report.make_page(result, {}), {}),
  ):
    assert '<script>' not in made
    is_html = made.startswith('<!doctype')
    link = '(href|src)="' if is_html else r'(?<!\\)\]\('
    assert not re.search(f'{link}(https|javascript):', made)
    assert '&lt;script' in made
