"""The page that everybody reads: short, and of what was found."""

import dataclasses
import math
import pathlib
import re

import pytest

from epe_jax.audit import attackers, evaluation, upper_bounds
from epe_jax.audit.results import Audit
from epe_jax.epsilon.types import Scores
from epe_jax.experiment import client_rounds, finished_runs, run_result
from epe_jax.fact import Fact
from epe_jax.report import (
  cells,
  first_page,
  html,
  leaks,
  page,
  report,
  run_tables,
)
from epe_jax.report.comparisons import comparison, labelled_runs
from epe_jax.report.figures import of_audit
from epe_jax.report.provenance import Provenance
from tests import recorded_runs

MAX_WORDS = 260
_RUNS = pathlib.Path(__file__).parents[2] / 'docs' / 'runs'
_BELONGS = Provenance('2026-11-24', '0' * 12, '1' * 64, '2' * 64)


def count_words(content):
  """Words of the first page in HTML and in Markdown, the larger number.

  Those of the table are not counted.
  """
  shown = html.render_html(
    content, dict.fromkeys((*of_audit.CAPTIONS, 'comparison.png'), _SVG)
  )
  body = shown[shown.index('<body>') : shown.index('<details')]
  body = re.sub('<table.*?</table>', '', body, flags=re.S)
  markdown = page.render_markdown(content).partition('<details')[0]
  # A picture has words for those who cannot see it, which are its caption.
  markdown = re.sub(r'!\[[^]]*\]\([^)]*\)|^\|.*', '', markdown, flags=re.M)
  texts = (re.sub('<[^>]+>', ' ', body), markdown)
  return max(len(re.findall(r'\S*\w\S*', text)) for text in texts)


_SVG = '<svg viewBox="0 0 345 100" xmlns="http://www.w3.org/2000/svg"></svg>'


@pytest.mark.parametrize(
  'name', ['digits', 'emnist', 'emnist62', 'stackoverflow']
)
def test_the_page_of_a_recorded_run_has_at_most_260_words(name):
  result = finished_runs.load_result(_RUNS / name)
  content = report.make_page(result, of_audit.CAPTIONS, _BELONGS)
  assert count_words(content) <= MAX_WORDS


def test_the_pages_of_scores_and_of_comparisons_have_at_most_260_words():
  audit = recorded_runs.audit_by_law()
  result = recorded_runs.result(audit=audit)
  runs = [labelled_runs.label_run(name, result) for name in ('one', 'two')]
  compared = comparison.make_page(runs)
  assert count_words(compared) <= MAX_WORDS
  scores = audit.find(attackers.OWN).scores
  of_scores = evaluation.evaluate_scores(
    dataclasses.replace(scores, shift=None), delta=1e-5
  )
  content = report.make_audit_page(of_scores, {'summary.png': 'Scores.'})
  assert count_words(content) <= MAX_WORDS


def test_a_row_is_at_least_about_and_at_most_what_was_found():
  result = finished_runs.load_result(_RUNS / 'digits')
  found = leaks.find_leaks(result)
  models = (attackers.CHANGE, attackers.OWN, attackers.RESIDUAL)
  for leak, model in zip(found, models, strict=True):
    attack = result.audit.find(model)
    assert leak.attack is attack
    assert leak.at_least == attack.bounds[0]
    assert leak.about == attack.first
    # Clients take part as often as canaries do, in one round.
    assert leak.client_about.agreeing == leak.about.epsilon
    # An expectation is not a limit, but that of the worst case is one of all.
    assert leak.at_most <= result.analytic_epsilon
    assert leak.client_at_most == result.clients_analytic_epsilon
  assert found[0].at_most == result.analytic_epsilon


def test_what_was_not_measured_has_a_limit_and_no_number():
  result = recorded_runs.result(num_observed=5)
  table = first_page.make_leak_table(leaks.find_leaks(result))
  for row in table.body:
    assert row[1:] == ['–', '–', '35.5', '–', '57.2']
  names = ['first and last model', 'every round', 'worst case']
  assert [row[0] for row in table.body] == names
  unknown = dataclasses.replace(result, analytic_epsilon=math.nan)
  assert all(math.isnan(x.at_most) for x in leaks.find_leaks(unknown))


def test_an_estimate_above_its_limit_is_explained():
  audit = recorded_runs.audit_by_law(floors=False)
  own = audit.find(attackers.OWN)
  above = float(own.first.epsilon) / 1.01
  for limit, is_said in ((above, True), (2 * above, False)):
    result = recorded_runs.result(audit=audit, analytic_epsilon=limit)
    said = report.format_summary(result)
    assert ('just above its limit' in ' '.join(said.split())) == is_said


def test_a_name_has_one_number_wherever_it_stands():
  result = finished_runs.load_result(_RUNS / 'digits')
  first = first_page.make_leak_table(leaks.find_leaks(result))
  every = run_tables.make_summary_table(result.audit)
  rows = {row[0]: row for row in every.body}
  assert len(rows) == len(every.body)
  for name, *numbers in first.body:
    assert numbers[:2] == rows[name][1:3]
  names = [
    x['name'] for x in first_page.describe_in_json(result.audit)['attacks']
  ]
  assert names == [*rows]


def test_a_client_is_guessed_as_often_as_the_table_of_attacks_says():
  result = finished_runs.load_result(_RUNS / 'digits')
  found = leaks.find_leaks(result)
  said = first_page.describe_client(result, found)
  table = run_tables.make_risk_table(
    result.audit.attacks, leaks.count_participations(result)
  )
  shares = {
    row[0]: float(row[1].split()[0])
    for row in table.body
    if row[1][0].isdigit()
  }
  assert f'about {shares[found[0].name]:.0f} % of cases' in said
  assert f'about {shares[found[2].name]:.1f} % in the worst case' in said
  assert 'chance is 50 %' in said


def test_clients_have_columns_only_where_their_numbers_are_others():
  result = finished_runs.load_result(_RUNS / 'digits')
  same = first_page.make_leak_table(leaks.find_leaks(result))
  assert same.head == [
    'attacker has',
    'lower bound (95 %)',
    'estimate [90 % interval]',
    'limit',
  ]
  more = dataclasses.replace(result, clients_analytic_epsilon=30.0)
  table = first_page.make_leak_table(leaks.find_leaks(more))
  assert table.head == [*same.head, 'client, estimate', 'client, limit']
  assert {row[-1] for row in table.body} == {'30.0'}


def test_a_bound_by_a_weaker_test_says_so_in_its_cell():
  # Canaries are more than a hundredth of each round.
  record = recorded_runs.by_law(
    shift=6.0, observed=600, unobserved=600, dim=900
  )
  audit = evaluation.evaluate(record, floors=False)
  own = audit.find(attackers.OWN)
  assert own.bounds[0].method == 'rank_test'
  table = first_page.make_leak_table(leaks.choose_leaks(audit))
  (cell,) = [row[1] for row in table.body if row[0] == 'every round']
  assert cell.endswith(' (weaker test: too many canaries a round)')
  usual = evaluation.evaluate(recorded_runs.by_law(), floors=False)
  table = first_page.make_leak_table(leaks.choose_leaks(usual))
  assert not any('weaker' in row[1] for row in table.body)


def test_no_sentence_of_the_first_page_is_in_the_appendix():
  result = finished_runs.load_result(_RUNS / 'digits')
  content = report.make_page(result, {}, _BELONGS)
  first = page.render_markdown(content._replace(appendix={}))
  rest = page.render_markdown(content).removeprefix(first)
  sentences = re.findall(r'[A-Z][^.|*]{30,}\.', first)
  assert len(sentences) > 5
  for sentence in sentences:
    assert sentence not in rest


def test_the_day_and_what_the_page_belongs_to_are_its_last_line():
  audit = recorded_runs.audit_by_law(floors=False)
  result = recorded_runs.result(audit=audit)
  last = report.format_summary(result, _BELONGS).rpartition('\n\n')[2]
  assert ' '.join(last.split()) == (
    '2026-11-24, run 000000000000, model 111111111111, record 222222222222, '
    'epe_jax 0.1.0.'
  )
  alone = report.format_summary(result).rpartition('\n\n')[2]
  assert alone == '2026-11-24, epe_jax 0.1.0.'


@pytest.mark.parametrize(
  ('fields', 'said'),
  [
    ({}, ', 100 canaries'),
    ({'noise': {'correlation': 'blt'}}, ' (blt), 100 canaries'),
    (
      {'secure_aggregation': {'bits': 16, 'noise': 'discrete_gaussian'}},
      ' (discrete gaussian, in sums modulo 2^16), 100 canaries',
    ),
  ],
)
def test_the_page_names_noise_that_is_not_that_of_dp_fedavg(fields, said):
  result = finished_runs.load_result(_RUNS / 'digits')
  other = dataclasses.replace(result, config=result.config | fields)
  text = ' '.join(report.format_summary(other).split())
  assert f'noise multiplier {result.noise_multiplier:g}{said}' in text


def test_a_bound_of_scores_by_coins_says_so():
  rng_scores = recorded_runs.by_law(design='coin_flip')
  scores = attackers.OWN.score(rng_scores).scores
  audit = evaluation.evaluate_scores(
    Scores(scores.observed, scores.unobserved, design='coin_flip'),
    delta=1e-5,
  )
  content = report.make_audit_page(audit, design='coin_flip')
  assert 'each by a coin of its own' in page.render_text(content)


@pytest.mark.parametrize(
  ('of_canaries', 'of_clients', 'said'),
  [
    (1, 1, 'clients take part as often and are assumed to leak no more'),
    (2, 16, 'in up to 16 rounds; their estimate ranges from orthogonal'),
    (3, 3, 'in up to 3 rounds; their estimate ranges from orthogonal'),
  ],
)
def test_the_page_says_where_the_epsilon_of_a_client_comes_from(
  of_canaries, of_clients, said
):
  record = recorded_runs.by_law()
  result = recorded_runs.result(
    audit=recorded_runs.audit_by_law(floors=False),
    participations=of_canaries,
    clients_participations=of_clients,
    clients_shifts=recorded_runs.client_shifts(record, of_clients),
  )
  assert said in first_page.describe_client(result, leaks.find_leaks(result))


def test_what_is_predicted_of_a_client_is_not_called_measured():
  record = recorded_runs.by_law()
  result = recorded_runs.result(
    audit=recorded_runs.audit_by_law(floors=False),
    clients_shifts=recorded_runs.client_shifts(record, 2),
  )
  final, *_ = found = leaks.find_leaks(result)
  none = [final._replace(client_about=None)]
  assert 'and have no estimate' in first_page.describe_client(result, none)
  uncalibrated = dataclasses.replace(final.attack, is_calibrated=False)
  others = [final._replace(attack=uncalibrated), *found[1:]]
  said = first_page.describe_client(result, others)
  assert 'their estimate is predicted, not measured' in said


def test_of_clients_who_are_drawn_in_secret_the_page_has_what_is_proven(
  tmp_path,
):
  record = recorded_runs.by_law()
  of_rounds = upper_bounds.expect_shifts(record)
  drawn = [[([t], 0.05) for t in range(record.num_rounds)]]
  result = recorded_runs.result(
    audit=recorded_runs.audit_by_law(floors=False),
    config=recorded_runs.result().config
    | {'participation': {'kind': 'poisson'}},
    clients_participations=12,
    clients_analytic_epsilon=20.1,
    clients_shifts=client_rounds.find_shifts(of_rounds, drawn),
    amplification=Fact(
      'amplified', {'epsilon': 1.07, 'rounds': 20, 'probability': 0.05}
    ),
  )
  run_result.write_result(tmp_path / 'result.json', result)
  assert run_result.load_result(tmp_path / 'result.json') == result
  found = leaks.find_leaks(result)
  assert [leak.client_at_most for leak in found] == [1.07] * 3
  # No canary takes part as clients do.
  assert [leak.client_about is None for leak in found] == [False, True, True]
  assert found[0].client_about.agreeing <= 1.07
  said = first_page.describe_client(result, found)
  assert 'clients take part in rounds drawn in secret' in said
  assert '12' not in said
  table = run_tables.make_risk_table(
    result.audit.attacks, leaks.count_participations(result)
  )
  # (ε, δ) allows no better guesses than e^ε to 1.
  most = cells.format_share(
    (math.exp(1.07) + result.delta) / (1 + math.exp(1.07))
  )
  assert {line[1] for line in table.body if 'at most' in line[1]} == {
    f'at most {most}'
  }
  alone = dataclasses.replace(result, num_observed=0, audit=Audit(()))
  said = first_page._describe_limit_of_client(alone)
  assert 'whose rounds are drawn in secret is 1.07 at most' in said
