"""What a person sees of a finished audit: its table, words and figures."""

import copy
import json
import math
import pathlib
import re
import struct
import subprocess
import sys

import numpy as np
import pytest

from epe_jax import estimates, readings, report, results, words
from epe_jax.figures import of_run
from tests import recorded_runs

_FILES = ('report.md', *of_run.CAPTIONS)
_SCRIPT = pathlib.Path(__file__).parents[1] / 'scripts' / 'report.py'
_FINAL = ('final model', 'cosine with the final model')
_OWN = ('all iterates', 'own round')
_MAXIMUM = ('all iterates', 'maximum over rounds')

# Runs the script once for each list of arguments that it reads, in one process
# as importing takes seconds, and prints [exit code, stdout, stderr] of each.
_DRIVER = """
import contextlib, importlib.util, io, json, sys
from absl import app
from absl.testing import flagsaver
spec = importlib.util.spec_from_file_location('script', sys.argv[1])
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)
outcomes = []
for arguments in json.load(sys.stdin):
  out, err, code = io.StringIO(), io.StringIO(), 0
  with (
    flagsaver.flagsaver(),
    contextlib.redirect_stdout(out),
    contextlib.redirect_stderr(err),
  ):
    try:
      app.run(script.main, argv=['report.py', *arguments])
    except SystemExit as stop:
      code = stop.code or 0
  outcomes.append([code, out.getvalue(), err.getvalue()])
json.dump(outcomes, sys.stdout)
"""


def _row(reading, method, epsilon, floor=(0.01, 0.7), confidence=None):
  quantiles = floor and {'5': floor[0], '50': sum(floor) / 2, '95': floor[1]}
  return {
    'threat_model': reading[0],
    'statistic': reading[1],
    'method': method,
    'epsilon': epsilon,
    'delta': 1e-5,
    'confidence': confidence,
    'floor': floor and sum(floor) / 2,
    'floor_quantiles': quantiles,
  }


def _result(**changes):
  return {
    'schema': results.SCHEMA,
    'task': 'digits',
    'data': 'handwritten digits | real images',
    'config': {
      'rounds': 100,
      'server': {'learning_rate': 1.0, 'momentum': 0.9},
      'audit': {'delta': None, 'sees': 'aggregate'},
    },
    'versions': {'epe_jax': '0.1.0', 'device': '1 x cpu'},
    'rounds': 100,
    'dim': 151306,
    'delta': 1e-5,
    'num_observed': 1000,
    'num_unobserved': 1000,
    'repetitions': 1,
    'noise_multiplier': 0.2,
    'noise': 'reproducible simulation',
    'analytic_epsilon': 35.5,
    'analytic_assumes': 'one who takes part in one round',
    'clients_analytic_epsilon': 57.25,
    'clients_analytic_assumes': 'one who takes part in 2 rounds',
    'estimates': [
      _row(_FINAL, 'two_gaussian_null', 1.2),
      _row(_FINAL, 'two_gaussian_fitted', 1.31, floor=(0.05, 0.9)),
      _row(_FINAL, 'eps_lo', 0.88, floor=None),
      _row(_OWN, 'two_gaussian_null', 8.25),
      _row(_OWN, 'max_threshold_gaussian', 8.5),
      _row(_MAXIMUM, 'two_gaussian_fitted', 579.25),
    ],
    'accuracy': 0.93,
    'baseline_accuracy': 0.1,
    'amplification': None,
    'waited_share': 0.01,
    'loss': 0.31,
    'seconds_per_round': 0.2,
    'seconds': 31.5,
  } | changes


def _finished_run(folder, result=None, **recorded):
  (folder / 'private').mkdir(parents=True, exist_ok=True)
  run = recorded_runs.by_law(**recorded)
  results.write_scores(folder / 'private/scores.npz', run)
  results.write_json(folder / 'result.json', result or _result())
  lines = [json.dumps(r) + '\n' for r in recorded_runs.metrics(len(run.trace))]
  (folder / 'private/metrics.jsonl').write_text(''.join(lines))
  return folder


def _attacker(result, phrase):
  """The one paragraph that has this phrase."""
  (said,) = [s for s in words.sentences(result) if phrase in s]
  return said


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  folder = _finished_run(tmp_path_factory.mktemp('run'))
  report.write(folder)
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
    lines = report.table(result).splitlines()
    assert max(map(len, lines)) <= 100
    rows = [s for s in lines if s.endswith(('kind', 'no guarantee'))]
    assert len(rows) > len(result['estimates'])
    starts = {len(re.split(r'kind$|point estimate', s)[0]) for s in rows}
    assert len(starts) == 1


def test_every_estimate_is_in_the_table_with_its_method_floor_and_kind():
  text = report.table(_result())
  for cells in (
    ('two Gaussians, std of the null', '1.20', '0.01 to 0.70'),
    ('two Gaussians, std fitted', '1.31', '0.05 to 0.90'),
    ("the paper's ε_lo (no bound)", '0.88', '-'),
    ('two Gaussians, std of the null', '8.25', '0.01 to 0.70'),
    ('best threshold, Gaussian rates', '8.50', '0.01 to 0.70'),
    ('two Gaussians, std fitted', '579.2', '0.01 to 0.70'),
  ):
    pattern = r'\s+'.join(map(re.escape, cells)) + r'\s+point estimate, no'
    assert re.search(pattern, text), cells


def test_only_an_estimate_with_a_confidence_is_called_a_lower_bound():
  bound = _row(_FINAL, 'clopper_pearson', 0.5, confidence=0.95)
  with_bound = _result(estimates=[*_result()['estimates'], bound])
  text = report.table(with_bound)
  assert re.search(r'clopper pearson .* lower bound, 95 %\n', text)
  assert text.count('lower bound, 95 %') == 1
  assert 'lower bound, ' not in report.table(_result())


def test_both_analytic_epsilons_are_above_the_table_with_what_they_assume():
  head = report.table(_result()).split('\n\n')[0]
  assert 'Analytic ε = 35.5 for canaries: one who takes part in one' in head
  assert 'Analytic ε = 57.2 for clients: one who takes part in 2' in head
  same = _result(
    clients_analytic_epsilon=35.5,
    clients_analytic_assumes='one who takes part in one round',
  )
  head = report.table(same).split('\n\n')[0]
  assert head.count('Analytic ε') == 1
  assert 'for canaries and clients' in head


def test_infinity_is_printed_as_a_sign_and_means_certainty():
  result = _result(
    noise_multiplier=0.0,
    analytic_epsilon='Infinity',
    clients_analytic_epsilon='Infinity',
    estimates=[
      _row(_FINAL, 'two_gaussian_null', 'Infinity'),
      _row(_FINAL, 'eps_lo', math.inf),
    ],
  )
  text = report.table(result)
  assert not re.search(r'\binf|\bnan', text.replace('infinite', ''), re.I)
  # Two analytic, two in rows, one in words.
  assert text.count('∞') == 5
  flat = ' '.join(text.split())
  assert 'could become certain,' in flat
  assert 'Without noise there is no limit' in flat


@pytest.mark.parametrize('epsilon', [0.0, 0.3, 1.2, 5.0])
def test_the_posterior_multiplies_even_odds_by_e_to_the_epsilon(epsilon):
  sure = words.posterior(epsilon)
  np.testing.assert_allclose(sure / (1 - sure), math.exp(epsilon), rtol=1e-12)


@pytest.mark.parametrize(
  ('epsilon', 'sure'),
  [
    (1.2, 'at most 77 % sure'),
    (4.5, 'at most 98.9 % sure'),
    (7.5, 'at most 99.9 % sure'),
    (8.0, 'practically certain (more than 99.9 % sure)'),
    (5e17, 'practically certain (more than 99.9 % sure)'),
  ],
)
def test_an_estimate_is_told_as_how_sure_an_attacker_may_become(epsilon, sure):
  result = _result(
    estimates=[_row(_FINAL, 'two_gaussian_null', epsilon)],
    analytic_epsilon='Infinity',
  )
  said = _attacker(result, 'sees only the final model')
  assert said == (
    'An attacker who sees only the final model: '
    f'ε ≈ {words.number(epsilon)} at δ = 1e-5 (0.01 to 0.70 is what this '
    'estimator reports when nothing leaks). Suspecting at 50 % that someone '
    f'took part, such an attacker could become {sure}, leaving aside the rare '
    'outcomes that δ allows.'
  )


@pytest.mark.parametrize(('epsilon', 'inside'), [(0.7, True), (0.71, False)])
def test_an_estimate_inside_its_floor_is_told_as_no_leakage(epsilon, inside):
  rows = [
    _row(_FINAL, 'two_gaussian_null', epsilon),
    _row(_MAXIMUM, 'two_gaussian_fitted', epsilon),
  ]
  result = _result(estimates=rows)
  for phrase in ('only the final model', 'does not know when'):
    said = _attacker(result, phrase)
    assert ('not distinguishable from no leakage at all' in said) == inside
    assert ('sure,' in said or 'extrapolates' in said) != inside


@pytest.mark.parametrize('reading', [_FINAL, _OWN])
def test_words_are_about_the_calibrated_estimate_alone(reading):
  rows = [
    _row(reading, 'two_gaussian_null', 2.0),
    _row(reading, 'two_gaussian_fitted', 3.0),
    _row(reading, 'eps_lo', 4.0),
  ]
  said = words.sentences(_result(estimates=rows))
  others = copy.deepcopy(rows)
  for row in others[1:]:
    row['epsilon'] = 5.0
  assert words.sentences(_result(estimates=others)) == said
  rows[0]['epsilon'] = 5.0
  assert words.sentences(_result(estimates=rows)) != said


def test_an_estimate_above_the_analytic_epsilon_is_flagged():
  rows = [_row(_OWN, 'two_gaussian_null', 8.25)]
  for analytic, flagged in ((8.0, True), (8.25, False), ('Infinity', False)):
    result = _result(estimates=rows, analytic_epsilon=analytic)
    said = _attacker(result, 'knows when a person took part')
    assert ('exceeds the analytic ε of 8.0' in said) == flagged


def test_the_fit_of_maxima_is_said_to_extrapolate_and_gives_no_certainty():
  said = _attacker(_result(), 'does not know when')
  assert '579.2' in said
  assert 'the largest of 100 cosines' in said
  assert 'extrapolates' in said
  assert 'exceeds the analytic ε of 35.5' in said
  assert 'sure' not in said
  unlimited = _result(analytic_epsilon='Infinity')
  said = _attacker(unlimited, 'does not know when')
  assert 'exceeds the 8.25 of the attacker who knows more' in said


def test_one_round_has_no_maximum_to_speak_of():
  assert not any(
    'does not know when' in said for said in words.sentences(_result(rounds=1))
  )


@pytest.mark.parametrize(('clients', 'warned'), [(57.25, True), (35.5, False)])
def test_clients_who_leak_more_than_canaries_are_warned_of(clients, warned):
  said = words.sentences(_result(clients_analytic_epsilon=clients))
  assert any('more rounds than canaries do' in s for s in said) == warned
  assert any('ε of one is 57.2' in s for s in said) == warned


def test_the_papers_bound_is_said_to_be_none_where_it_is_shown():
  assert _attacker(_result(), 'It is no bound')
  without = _result(estimates=[_row(_FINAL, 'two_gaussian_null', 1.2)])
  assert not any('no bound' in said for said in words.sentences(without))


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
  assert ('not for publishing' in report.table(result)) == warned


def test_without_noise_canaries_alone_in_their_rounds_are_told_apart(tmp_path):
  simulated = recorded_runs.by_vectors(
    momentum=0.0, noise=0.0, observed=12, unobserved=40, dim=500
  )
  # Of each round the canary itself is left, and nothing.
  recorded = simulated.recorded
  assert recorded.rounds is not None
  removed = readings.others_removed(
    recorded.residual, recorded.participation, recorded.rounds
  )
  np.testing.assert_array_equal(removed, recorded.participation)
  rows = estimates.of_run(recorded)
  found = {
    row['method']: row['epsilon']
    for row in rows
    if row['statistic'] == 'own round, others removed'
  }
  assert 0 < found['two_gaussian_null'] < math.inf
  # No cosine in the null law is as large as 1.
  assert found['clopper_pearson_band'] == math.inf
  assert 'two_gaussian_fitted' not in found
  limitless = {
    'analytic_epsilon': math.inf,
    'clients_analytic_epsilon': math.inf,
  }
  folder = _finished_run(
    tmp_path, result=_result(estimates=rows, noise_multiplier=0.0, **limitless)
  )
  results.write_scores(folder / 'private/scores.npz', recorded)
  text = report.write(folder).read_text()
  assert 'Without noise the analytic ε is infinite; only other' in text
  assert '| ∞ |' in text


def test_an_undefined_estimate_claims_nothing():
  rows = [_row(_FINAL, 'two_gaussian_null', 'NaN', floor=None)]
  text = report.table(_result(estimates=rows))
  assert 'undefined' in text
  assert 'no ε could be estimated' in text
  assert 'sure' not in text


def test_write_leaves_whole_files_and_no_drafts(workdir):
  given = {'result.json', 'private'}
  assert {p.name for p in workdir.iterdir()} == given | set(_FILES)
  for name in _FILES[1:]:
    png = (workdir / name).read_bytes()
    assert png.startswith(b'\x89PNG\r\n\x1a\n')
    assert png.endswith(b'IEND\xaeB`\x82')
    # 12 inches at 150 dots each.
    assert struct.unpack('>I', png[16:20]) == (1800,)


def test_the_page_holds_the_table_the_words_the_figures_and_the_config(workdir):
  page = (workdir / 'report.md').read_text()
  assert page.startswith('# Privacy audit: digits\n')
  for said in words.sentences(_result()):
    assert f'\n- {said}\n' in page
  embedded = re.findall(r'!\[[^]]+\]\(([^)]+)\)', page)
  assert sorted(embedded) == sorted(_FILES[1:])
  (config,) = re.findall(r'```json\n(.*?)```', page, re.S)
  assert json.loads(config) == _result()['config']
  assert '--config=configs/digits.py' in page


def test_a_bar_in_a_text_does_not_break_a_markdown_table(workdir):
  lines = (workdir / 'report.md').read_text().splitlines()
  rows = [s for s in lines if s.startswith('|')]
  bars = [len(re.findall(r'(?<!\\)\|', s)) for s in rows]
  assert len(rows) == len(bars) > len(_result()['estimates'])
  assert set(bars) == {3, 7}
  assert any(r'digits \| real' in s for s in rows)


def test_writing_twice_gives_the_same_page(workdir):
  before = (workdir / 'report.md').read_bytes()
  assert report.write(workdir) == workdir / 'report.md'
  assert (workdir / 'report.md').read_bytes() == before


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
def test_runs_of_every_shape_are_drawn(tmp_path, shape):
  assert report.write(_finished_run(tmp_path, **shape)).is_file()


def test_a_report_of_fresh_noise_shows_nothing_that_noise_does_not_hide(
  tmp_path, monkeypatch
):
  drawn, draw = [], report.of_run.draw
  monkeypatch.setattr(
    report.of_run, 'draw', lambda *given: drawn.append(given) or draw(*given)
  )
  result = _result(noise='fresh')
  for name in ('seconds', 'seconds_per_round', 'waited_share'):
    del result[name]
  few = {'observed': 12, 'unobserved': 12}
  text = report.write(_finished_run(tmp_path, result, **few)).read_text()
  assert '| time |' not in text
  assert '(by_round.png)' in text
  ((_, recorded, history),) = drawn
  assert recorded.residual is None
  for name in ('clients', 'sum_norm', 'residual_norm'):
    assert np.isnan(getattr(recorded.rounds, name)).all()
  assert history
  for record in history:
    assert not record.keys() & {'loss', 'clients', 'below', 'update_norm'}
  assert any('test_loss' in record for record in history)
  # Nothing is hidden that noise hides already.
  whole = results.read_scores(tmp_path / 'private/scores.npz')
  np.testing.assert_array_equal(recorded.trace, whole.trace)
  hidden = {reading.statistic for reading in estimates.ladder(whole)} - {
    reading.statistic for reading in estimates.ladder(recorded)
  }
  assert hidden == {'own round, others removed'}


@pytest.mark.parametrize(
  'name', ['result.json', 'private/scores.npz', 'private/metrics.jsonl']
)
def test_a_missing_file_is_named_with_the_cure(tmp_path, name):
  _finished_run(tmp_path)
  (tmp_path / name).unlink()
  with pytest.raises(FileNotFoundError, match=r'scripts/train\.py') as error:
    report.write(tmp_path)
  assert str(tmp_path / name) in str(error.value)
  assert not any((tmp_path / made).exists() for made in _FILES)


def test_a_file_of_another_version_is_refused(tmp_path):
  _finished_run(tmp_path, result=_result(schema=99))
  with pytest.raises(ValueError, match=r'result\.json has schema=99'):
    report.write(tmp_path)
  _finished_run(tmp_path)
  arrays = results.read_arrays(tmp_path / 'private/scores.npz')
  results.write_arrays(
    tmp_path / 'private/scores.npz', {**arrays, 'schema': np.asarray(99)}
  )
  with pytest.raises(ValueError, match=r'scores\.npz has schema=99'):
    report.write(tmp_path)


def test_the_script_draws_a_run_again_and_names_what_is_wrong(tmp_path):
  done = _finished_run(tmp_path / 'done', observed=5, unobserved=5)
  commands = [[str(done)], [], [f'--workdir={tmp_path}/none']]
  process = subprocess.run(
    [sys.executable, '-c', _DRIVER, str(_SCRIPT)],
    input=json.dumps(commands),
    capture_output=True,
    text=True,
    check=False,
  )
  assert process.returncode == 0, process.stderr
  drawn, nothing, missing = json.loads(process.stdout)
  assert drawn[0] == 0
  assert drawn[1].startswith(report.table(_result()))
  assert all((done / name).exists() for name in _FILES)
  assert nothing[0] != 0
  assert 'Give the directory of one finished run' in ' '.join(nothing[1:])
  assert missing[0] != 0
  assert 'none/result.json does not exist' in ' '.join(missing[1:])
