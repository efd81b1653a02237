"""`epe_jax.estimate`: two arrays in, an audit that shows itself out."""

import fractions
import io
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import epe_jax
from epe_jax.audit import evaluation
from epe_jax.epsilon.types import Scores
from epe_jax.fact import Fact
from epe_jax.report import cells, checks, report
from epe_jax.scores import score_audit

RNG = np.random.default_rng(0)
IN, OUT = RNG.normal(2, 1, 80), RNG.normal(0, 1, 60)
QUANTILES = special.ndtri((np.arange(200) + 0.5) / 200)


@pytest.fixture(scope='module')
def found():
  return epe_jax.estimate(IN, OUT, delta=1e-5)


def test_two_arrays_give_every_estimate(found):
  expected = evaluation.evaluate_scores(Scores(IN, OUT), delta=1e-5)
  assert found.audit == expected
  (attack,) = found.audit.attacks
  methods = [estimate.method for estimate in attack.estimates]
  assert len(methods) == len(set(methods))
  assert found.warning is None


@pytest.mark.usefixtures('types_unchecked')
@pytest.mark.parametrize(
  'convert', [list, tuple, np.float32, jnp.asarray], ids=lambda f: f.__name__
)
def test_anything_that_is_like_an_array_is_scores(monkeypatch, convert):
  monkeypatch.setattr(
    evaluation, 'evaluate_scores', lambda scores, **settings: scores
  )
  scores = score_audit.estimate(convert(IN), convert(OUT), delta=1e-5).scores
  np.testing.assert_allclose(scores.observed, IN, rtol=1e-6)
  assert scores.observed.dtype == np.float64


@pytest.mark.usefixtures('types_unchecked')
@pytest.mark.parametrize(
  ('given', 'message'),
  [
    (([], OUT), 'in_scores is empty'),
    ((IN, np.empty(0)), 'out_scores is empty'),
    (
      (IN, [0.0, np.nan, np.inf]),
      r'out_scores has 1 values that are nan, the first is out_scores\[1\]',
    ),
    (([[1.0], [2.0]], OUT), r'in_scores has shape \(2, 1\)'),
    (([1j], OUT), 'in_scores has dtype complex128'),
    ((['a'], OUT), 'in_scores has dtype <U1'),
    ((IN, [fractions.Fraction(1, 2)]), 'out_scores has dtype object'),
    (([[1.0], [2.0, 3.0]], OUT), 'in_scores is not an array of numbers'),
  ],
)
def test_what_is_no_scores_is_refused_by_its_name(given, message):
  with pytest.raises(ValueError, match=message):
    epe_jax.estimate(*given, delta=1e-5)


def test_scores_whose_squares_float64_does_not_hold_are_refused():
  told = 'observed has a score of magnitude .*e[+]300, but .* Rescale'
  with pytest.raises(ValueError, match=told):
    epe_jax.estimate(1e300 * IN, 1e300 * OUT, delta=1e-5)
  with pytest.raises(ValueError, match=r'observed scores .* equal or nearly'):
    epe_jax.estimate(1e-170 * IN, 1e-170 * OUT, delta=1e-5)


@pytest.mark.parametrize('scale', [1e-130, 1e130])
def test_the_scale_of_scores_changes_no_estimate(found, scale):
  (scaled,) = epe_jax.estimate(
    scale * IN, scale * OUT, delta=1e-5
  ).audit.attacks
  (attack,) = found.audit.attacks
  assert [e.epsilon for e in scaled.estimates] == pytest.approx(
    [e.epsilon for e in attack.estimates], rel=1e-6
  )
  assert scaled.failed_checks == attack.failed_checks


@pytest.mark.usefixtures('types_unchecked')
def test_settings_out_of_range_are_refused():
  with pytest.raises(ValueError, match=r'delta=0; give a number in \(0, 1\)'):
    epe_jax.estimate(IN, OUT, delta=0)
  with pytest.raises(ValueError, match=r"delta='x'; give a number in \(0, 1\)"):
    epe_jax.estimate(IN, OUT, delta='x')  # pyright: ignore
  with pytest.raises(ValueError, match="higher='up' is neither"):
    epe_jax.estimate(IN, OUT, delta=1e-5, higher='up')  # pyright: ignore


def test_a_reversed_sign_is_warned_of_and_shown():
  with pytest.warns(UserWarning, match='sign is probably reversed'):
    reversed_ = epe_jax.estimate(OUT, IN, delta=1e-5)
  assert '\nWarning: the sign is probably reversed' in repr(reversed_)
  assert "give higher='out'" in ' '.join(repr(reversed_).split())
  assert reversed_._repr_markdown_().count('score lower than others') == 1
  (attack,) = reversed_.audit.attacks
  assert attack.bounds[0].epsilon == 0


def test_it_reads_as_text_and_as_markdown(found):
  bound = cells.format_epsilon(found.lower_bound)
  point = cells.format_epsilon(found.point_estimate)
  *first, _, head, row = repr(found).splitlines()
  first = ' '.join(first)
  assert first.startswith(f'Canaries show ε of at least {bound} (95 % confid')
  assert head.startswith('attacker has     lower bound (95 %)')
  assert row.startswith('scores as given')
  assert bound in row
  assert cells.format_with_interval(found.point_estimate) in row
  assert ' '.join(found.text.split()).startswith(first)
  shown = found._repr_markdown_()
  assert shown.startswith(f'**{first}')
  assert f'| {bound} |' in shown
  assert point in shown


def test_twenty_canaries_are_said_to_be_few():
  few = epe_jax.estimate(IN[:20], OUT[:20], delta=1e-5)
  said = 'canaries are few (20 took part, 20 held out)'
  assert said in ' '.join(repr(few).split())
  assert said in few._repr_markdown_()
  assert 'few' not in repr(epe_jax.estimate(IN, OUT, delta=1e-5))


def test_it_prints_where_there_are_no_greek_letters(found, monkeypatch):
  written = io.BytesIO()
  stream = io.TextIOWrapper(written, encoding='ascii')
  monkeypatch.setattr(sys, 'stdout', stream)
  print(found, flush=True)
  assert written.getvalue().startswith(b'Canaries show eps of at least ')
  assert b'delta = 1e-5' in written.getvalue()
  stream.detach()


def test_scores_that_separate_perfectly_have_a_bound():
  found = epe_jax.estimate([1] * 100, [0] * 100, delta=1e-5)
  _, bound, _ = found.audit.headline
  # Randomized response tells p of all canaries right, and all 200 in 1 of 20 audits.
  p = 0.05 ** (1 / 200)
  assert bound.epsilon == pytest.approx(np.log(p / (1 - p)), abs=0.02)
  (attack,) = found.audit.attacks
  assert not any('gaussian' in one.method for one in attack.estimates)


def test_an_estimate_of_scores_that_separate_perfectly_is_said_to_extrapolate():
  separate = epe_jax.estimate(IN + 80, OUT, delta=1e-5)
  (attack,) = separate.audit.attacks
  assert attack.first.epsilon > 1000
  said = ' '.join(repr(separate).split())
  shown = cells.format_epsilon(attack.first)
  assert (
    f'Note: the fitted-law estimate {shown} extrapolates: every canary' in said
  )
  assert '80 of them show no more than the lower bound; the rest is' in said
  assert 'extrapolates' in report.format_headline_estimates(separate.audit)
  assert 'extrapolates' not in repr(epe_jax.estimate(IN, OUT, delta=1e-5))


def test_an_estimate_that_counts_is_not_said_to_extrapolate():
  separate = epe_jax.estimate([1] * 100, [0] * 100, delta=1e-5)
  (attack,) = separate.audit.attacks
  assert attack.first.method == 'max_threshold_empirical'
  assert attack.notes == (Fact('separated', {'num': 100}),)


def test_the_bound_that_contradicts_an_estimate_is_named_with_what_it_assumes():
  # Shifted by 60, of spreads 0.1 and 4.
  ins, outs = 60 + 0.1 * QUANTILES, 4 * QUANTILES
  (attack,) = epe_jax.estimate(ins, outs, delta=1e-5).audit.attacks
  (failed,) = attack.failed_checks
  doubt = checks.describe_check(failed)
  assert 'both Gaussians, spread free; holds if ' in doubt
  assert 'scores are Gaussian): the estimate is wrong' in doubt


def test_a_bound_of_scores_above_their_point_estimate_is_a_doubt():
  # A few scores far below make the others wide, and separate both groups no less.
  rng = np.random.default_rng(0)
  ins, outs = rng.normal(5, 1, 200), rng.normal(0, 1, 200)
  outs[:40] -= 50
  wide = epe_jax.estimate(ins, outs, delta=1e-5)
  (attack,) = wide.audit.attacks
  assert attack.bounds[0].epsilon > attack.first.epsilon
  keys = [check.key for check in attack.failed_checks]
  assert keys.count('below_bound') == 1
  assert wide.point_estimate is None
  assert 'extrapolates' not in repr(wide)


@pytest.mark.parametrize(
  ('ins', 'outs'),
  [
    ([1, 2], [0, 1]),
    ([2, 3], [0, 1]),
    ([1, 1, 1, 1, 0], [0, 0, 0, 0, 1]),
  ],
)
def test_a_few_scores_bound_nothing(ins, outs):
  _, bound, _ = epe_jax.estimate(ins, outs, delta=1e-5).audit.headline
  assert bound.epsilon < 0.2


@pytest.mark.parametrize(
  ('ins', 'outs', 'counts'),
  [
    ([1.0], [0.0], '1 of canaries that took part and 1 of others'),
    ([1.0, 2.0], [0.0], '2 of canaries that took part and 1 of others'),
  ],
)
def test_one_score_of_a_group_is_too_few(ins, outs, counts):
  with pytest.raises(ValueError, match=f'too few scores: {counts}. Give at'):
    epe_jax.estimate(ins, outs, delta=1e-5)


def test_its_plot_shows_both_groups(found):
  fig = found.plot()
  (axes,) = fig.axes
  labels = axes.get_legend_handles_labels()[1]
  assert labels == ['took part: n = 80', 'held out: n = 60']


@pytest.mark.usefixtures('coarse_figures')
def test_a_report_has_the_estimates_and_every_figure(found, tmp_path):
  path = score_audit.write_score_report(
    tmp_path / 'new' / 'out', found.scores, found.audit
  )
  page = path.read_text()
  for part in found.text.split('\n\n')[:1]:
    assert ' '.join(part.split()) in page
  assert '80 canaries took part, 60 were held out' in page
  figures = [x.name for x in path.parent.glob('*.png')]
  assert len(figures) == 3
  for name in figures:
    assert f']({name})' in page
  assert (path.parent / 'estimates.json').is_file()
  bound = cells.format_epsilon(found.lower_bound)
  line = f'Canaries show ε of at least {bound} (95 % confidence)'
  assert page.split('\n\n')[1].startswith(f'**{line}')
  shown = (path.parent / 'report.html').read_text()
  shown = shown.replace('\N{NO-BREAK SPACE}', ' ')
  assert shown.index(line) < shown.index('<img')
  assert shown.count('<img') == 3


def test_an_infinite_score_is_the_largest_and_no_law_is_fitted():
  high, low = [*IN, np.inf], [*OUT, -np.inf]
  found = score_audit.estimate(high, low, delta=1e-5)
  largest = score_audit.estimate([*IN, 50.0], [*OUT, -50.0], delta=1e-5)
  assert found.lower_bound == largest.lower_bound
  assert {x.method for x in found.audit.attacks[0].estimates} < {
    x.method for x in largest.audit.attacks[0].estimates
  }
  assert 'of these scores the order is taken' in found.text
  assert found.point_estimate is None
  negated = score_audit.estimate(
    np.negative(high), np.negative(low), delta=1e-5, higher='out'
  )
  assert negated.lower_bound == found.lower_bound
  with pytest.raises(ValueError, match=r'dim=9 .* one is infinite'):
    score_audit.estimate([0.1, np.inf], [0.1, 0.2], delta=1e-5, dim=9)
  masked = np.ma.masked_array([1.0, np.inf], [True, False])
  with pytest.raises(ValueError, match='masked'):
    score_audit.estimate(masked, OUT, delta=1e-5)
