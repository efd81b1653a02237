"""Figures of a finished audit: what is drawn, read off the drawings."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import special, stats

from epe_jax.audit import evaluation
from epe_jax.audit.attackers import (
  OF_INDEPENDENT_NOISE,
  OWN,
  THREAT_MODELS,
  score_all,
)
from epe_jax.epsilon import tradeoff, two_gaussians
from epe_jax.report import cells, leaks, words
from epe_jax.report.figures import (
  attackers,
  cosines,
  epsilons,
  of_audit,
  style,
)
from epe_jax.watch import by_round, sequential
from tests import recorded_runs

pytestmark = pytest.mark.usefixtures('quick_compilation')


def curve(axes, label):
  (line,) = [
    x for x in axes.get_lines() if str(x.get_label()).startswith(label)
  ]
  return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


def titled(fig, title):
  (axes,) = [x for x in fig.axes if x.get_title().startswith(title)]
  return axes


def labels(axes):
  return axes.get_legend_handles_labels()[1]


def run_of(record, analytic):
  """What result.json says of a run, as far as figures need it."""
  return recorded_runs.result(
    delta=1e-5,
    analytic_epsilon=analytic,
    num_observed=int(record.observed.sum()),
    num_unobserved=int((~record.observed).sum()),
    audit=(found := evaluation.evaluate(record, floors=False)),
    leaks_by_round=by_round.evaluate_rounds(record, found),
  )


@pytest.fixture(scope='module')
def record():
  # So many dimensions that canaries are little of the final model.
  return recorded_runs.by_law(
    observed=2000, unobserved=2000, shift=3.0, dim=10**7
  )


@pytest.fixture(scope='module')
def drawn(record):
  """Every figure of that run, whose noise multiplier is said to be 1/4."""
  analytic = two_gaussians.epsilon_two_gaussians(0, 1, 4.0, 1, 1e-5)
  lines = recorded_runs.metrics(20)
  return of_audit.draw_run(run_of(record, analytic), record, lines)


def test_densities_are_drawn_in_units_of_one_over_root_d(record):
  fig = cosines.draw_densities(
    evaluation.evaluate(record, floors=False).attacks
  )
  for title in ('last model only', 'every round'):
    axes = next(x for x in fig.axes if x.get_title() == title)
    x, y = curve(axes, 'exact')
    np.testing.assert_allclose(y, stats.norm.pdf(x), rtol=1e-4)
    for label, mean in (('took part', 3.0), ('held out', 0.0)):
      x, y = curve(axes, f'{label}: n = 2,000')
      np.testing.assert_allclose(np.trapezoid(y, x), 1, rtol=2e-3)
      centre = np.trapezoid(x * y, x)
      # Five standard errors of a mean: fails one time in 1.7 million.
      assert abs(centre - mean) < 5 / np.sqrt(2000)


def test_the_exact_law_is_drawn_only_where_it_holds():
  def drawn(record):
    fig = cosines.draw_densities(
      evaluation.evaluate(record, floors=False).attacks
    )
    return {
      axes.get_title()
      for axes in fig.axes
      if any(s.startswith('exact, held out') for s in labels(axes))
    }

  models = {'last model only', 'first and last model'}
  own = {'every round', 'worst case'}
  assert drawn(recorded_runs.by_law()) == models | own
  removed = {'worst case'}
  assert drawn(recorded_runs.by_law(repetitions=4)) == models | removed


def test_the_trace_marks_the_rounds_of_a_typical_canary():
  record = recorded_runs.by_law(observed=61, repetitions=3)
  own = score_all(record)[-2].scores.observed
  typical = int(np.flatnonzero(own == np.median(own))[0])
  left, right = cosines.draw_trace(
    record,
    record.trace,
    typical=leaks.find_typical_canary(record, record.trace),
  ).axes
  assert (
    left.get_title() == f'canary {typical}: the median of 61 that took part'
  )
  assert right.get_title() == 'canary 61: one of 60 held out'
  rounds, marked = curve(left, 'a round it took part in')
  np.testing.assert_array_equal(
    rounds, 1 + np.flatnonzero(record.included[:, typical])
  )
  np.testing.assert_allclose(marked.sum(), own[typical] * 1e3 * np.sqrt(3))
  rounds, _ = curve(right, 'a round it took part in')
  assert len(rounds) == 0
  _, expected = curve(left, 'expected in its round')
  np.testing.assert_allclose(expected, 3.0, rtol=1e-5)
  assert left.get_ylim() == right.get_ylim()


def test_the_trade_off_is_counted_and_that_of_both_epsilons(drawn):
  fig = drawn['tradeoff.png']
  assert [x.get_title().partition(':')[0] for x in fig.axes] == [
    words.spell_name(threat_model) for threat_model in OF_INDEPENDENT_NOISE
  ]
  axes = titled(fig, 'every round: ε ≈ ')
  # A Gaussian mechanism is a straight line on axes of normal quantiles.
  ends = axes.transScale.transform([[0.01, 0.1], [0.1, 0.01]])
  np.testing.assert_allclose(ends, special.ndtri([[0.01, 0.1], [0.1, 0.01]]))
  for label, mu, slack in (('least that', 4.0, 1e-6), ('fitted', 3.0, 0.12)):
    fpr, fnr = curve(axes, label)
    found = -special.ndtri(fpr) - special.ndtri(fnr)
    np.testing.assert_allclose(found, mu, atol=slack)
  fpr, fnr = curve(axes, 'counted')
  middle = (fnr > 0.1) & (fnr < 0.9)
  found = -special.ndtri(fpr[middle]) - special.ndtri(fnr[middle])
  # A quantile at 0.1 has a standard error of 1.7/√n: five of them.
  np.testing.assert_allclose(found, 3.0, atol=5 * 1.7 / np.sqrt(2000))
  fpr, fnr = curve(axes, 'guessing')
  np.testing.assert_allclose(fpr + fnr, 1)
  assert 'fitted Gaussians' not in labels(titled(fig, 'every round (maximum)'))


def test_the_lower_bound_has_its_curve_among_the_trade_offs(record, drawn):
  axes = titled(drawn['tradeoff.png'], 'worst case')
  fpr, fnr = curve(axes, '(ε, δ)-DP with the lower bound')
  bound = evaluation.evaluate(record, floors=False).headline[1]
  needed = 1 - 1e-5 - np.exp(bound.epsilon) * fpr
  other = np.exp(-bound.epsilon) * (1 - 1e-5 - fpr)
  np.testing.assert_allclose(fnr, np.maximum(needed, other), rtol=1e-6)
  # The counted errors, the fitted ones at least, reach down to it.
  fitted_fpr, fitted = curve(axes, 'fitted')
  assert np.any(fitted < np.interp(fitted_fpr, fpr, fnr))


def test_attackers_are_points_with_intervals_floors_and_bounds():
  audit = evaluation.evaluate(recorded_runs.by_law())
  fig = attackers.draw_attackers(
    audit.attacks, analytic=20.0, canaries='60 and 60', finding='ε ≥ 4'
  )
  (axes,) = fig.axes
  assert (fig.get_suptitle(), axes.get_title()) == ('ε ≥ 4', '60 and 60')
  assert not axes.patches
  names = [text.get_text() for text in axes.get_yticklabels()]
  assert names == [
    words.spell_name(attack.threat_model) for attack in audit.attacks
  ]
  bands = [c.get_paths()[0].get_extents() for c in axes.collections]
  sizes = {}
  for y, attack in enumerate(audit.attacks):
    lines = [x for x in axes.get_lines() if set(x.get_ydata()) == {y}]
    points = {float(x.get_xdata()[0]) for x in lines if len(x.get_xdata()) == 1}
    counted = [e for e in attack.bounds if e.is_shape_free]
    shaped = [e for e in attack.bounds if not e.is_shape_free]
    first = attack.first
    assert points == {e.epsilon for e in (first, counted[0], *shaped)}
    (dot,) = [x for x in lines if x.get_marker() == 'o']
    sizes.setdefault(attack.is_calibrated, set()).add(dot.get_markersize())
    intervals = [tuple(x.get_xdata()) for x in lines if len(x.get_xdata()) == 2]
    shown = first.interval if attack.is_calibrated else None
    assert intervals == ([shown] if shown else [])
    of_row = [b for b in bands if b.y0 < y < b.y1]
    assert len(of_row) == (first.floor is not None)
    for band in of_row:
      assert (band.x0, band.x1) == pytest.approx(
        (first.floor.q05, first.floor.q95)
      )
  # What is not calibrated does not stand out.
  assert max(sizes[False]) < min(sizes[True])
  x, _ = curve(axes, 'limit: ε = 20.0')
  assert list(x) == [20.0, 20.0]


def test_epsilon_falls_with_delta_along_the_curve_of_its_mechanism(
  record, drawn
):
  (axes,) = drawn['delta.png'].axes
  for label, mu in (('limit', 4.0), ('worst case', 3.0)):
    deltas, found = curve(axes, label)
    assert np.all(np.diff(found) <= 0)
    pairs = list(zip(found, deltas))[::3]
    at = [tradeoff.mu_of_epsilon(e, d) for e, d in pairs if e > 0.01]
    # One μ describes the whole line.
    np.testing.assert_allclose(at, at[0], rtol=1e-6)
    assert at[0] == pytest.approx(mu, abs=5 / np.sqrt(2000))
  calibrated = [
    r
    for r in score_all(record)
    if r.is_calibrated and r.scores.shift is not None
  ]
  assert len(axes.collections) == len(calibrated) == 4
  # Of rarer outcomes than one canary of 2,000 no curve is drawn, though the δ of the
  # run is 1e-5: there the estimates stand alone.
  deltas, _ = curve(axes, 'worst case')
  assert deltas[0] == pytest.approx(1 / 2000)
  alone = [
    float(x.get_ydata()[0])
    for x in axes.get_lines()
    if list(x.get_xdata()) == [1e-5] and x.get_marker() == 'o'
  ]
  audit = evaluation.evaluate(record, floors=False)
  assert alone == [
    audit.find(one.threat_model).first.epsilon for one in calibrated
  ]
  # 90 % of means of 2,000 are within 1.645/√2000 of theirs.
  mean = calibrated[2].scores.observed.mean() * np.sqrt(record.dim)
  reach = 1.645 / np.sqrt(2000)
  low, high = (
    two_gaussians.epsilon_two_gaussians(0, 1, x, 1, 1 / 2000)
    for x in (mean - reach, mean + reach)
  )
  vertices = axes.collections[2].get_paths()[0].vertices
  shaded = vertices[np.isclose(vertices[:, 0], 1 / 2000, atol=0)][:, 1]
  slack = 0.15 * (high - low)
  assert shaded.min() == pytest.approx(low, abs=slack)
  assert shaded.max() == pytest.approx(high, abs=slack)


def test_by_round_shows_the_rows_and_their_intervals():
  record = recorded_runs.by_law()
  rows = by_round.evaluate_by_round(record, rounds=[8, 14, 20], resamples=20)
  bounds = sequential.bound_sequentially(record)
  left, right = epsilons.draw_over_rounds(
    rows, bounds, analytic=20.0, finding='found'
  ).axes
  (line,) = [
    x
    for x in right.get_lines()
    if x.get_label().endswith('once, if f Gaussian')
  ]
  np.testing.assert_array_equal(line.get_ydata(), bounds.epsilon_gdp)
  for axes, is_bound in ((left, False), (right, True)):
    for threat_model in THREAT_MODELS:
      mine = [
        one
        for one in rows
        if one.threat_model == threat_model
        and (one.estimate.confidence is not None) == is_bound
      ]
      if not mine:
        assert words.spell_name(threat_model) not in labels(axes)
        continue
      (line,) = [
        x
        for x in axes.get_lines()
        if x.get_label() == words.spell_name(threat_model)
      ]
      np.testing.assert_array_equal(
        line.get_xdata(), [one.round for one in mine]
      )
      np.testing.assert_array_equal(
        line.get_ydata(), [one.estimate.epsilon for one in mine]
      )
  assert len(right.collections) == 0
  n = record.included[:8].sum()
  assert f'{n} to 60 canaries had taken part, 60 held out' in left.get_xlabel()


@pytest.mark.integration
def test_infinite_and_unknown_epsilons_are_drawn_without_a_warning(
  tmp_path, coarse_figures
):
  record = recorded_runs.by_law(shift=3000.0, dim=10**8, rounds=20)
  result = run_of(record, math.inf)

  def unbounded(estimate, epsilon=np.inf):
    interval = estimate.interval and (1.0, np.inf)
    return dataclasses.replace(estimate, epsilon=epsilon, interval=interval)

  attacks = [
    dataclasses.replace(
      attack, estimates=tuple(map(unbounded, attack.estimates))
    )
    for attack in result.audit.attacks
  ]
  first = unbounded(attacks[0].first, np.nan)
  attacks[0] = dataclasses.replace(attacks[0], estimates=(first,))
  leaked = [
    one._replace(estimate=unbounded(one.estimate))
    for one in by_round.evaluate_by_round(record, rounds=[10, 20], resamples=20)
  ]
  audit = result.audit._replace(attacks=tuple(attacks))
  leaks = by_round.Rounds(tuple(leaked), None)
  for analytic in (float('inf'), float('nan')):
    figures = of_audit.draw_run(
      dataclasses.replace(
        result, audit=audit, leaks_by_round=leaks, analytic_epsilon=analytic
      ),
      record,
      recorded_runs.metrics(20),
    )
    drawn = (
      figures['attackers.png'],
      figures['by_round.png'],
      figures['delta.png'],
      figures['tradeoff.png'],
    )
    for fig in drawn:
      fig.savefig(tmp_path / 'a.png')
    texts = [text.get_text() for text in drawn[0].axes[0].texts]
    assert [text.partition(',')[0] for text in texts] == [
      'ε ≈ undefined',
      'ε ≈ ∞',
      'ε ≈ ∞',
      'not calibrated',
      'ε ≈ ∞',
      'ε ≈ ∞',
    ]


def test_titles_say_what_was_found(record, drawn):
  audit = evaluation.evaluate(record, floors=False)
  bound = cells.format_epsilon(audit.headline[1])
  for name in ('attackers.png', 'tradeoff.png'):
    assert f'ε ≥ {bound}' in drawn[name].get_suptitle()
  first = cells.format_epsilon(audit.find(OWN).first)
  assert first in drawn['by_round.png'].get_suptitle()
  assert '95.5 % after 20 rounds' in drawn['accuracy.png'].get_suptitle()
  two = [x.get_title().partition('\n')[0] for x in drawn['overview.png'].axes]
  assert two == ['last model only', 'every round']


@pytest.mark.integration
@pytest.mark.parametrize('highest', [0, 5e19, 1e300])
def test_an_axis_has_room_for_any_finite_epsilon(highest, tmp_path):
  fig, (axes,) = style.make_panels(1)
  style.set_epsilon_axis(axes, 'y', highest)
  fig.savefig(tmp_path / 'axis.png')
  assert axes.get_ylim()[1] > highest


def test_a_figure_is_drawn_once_and_saved_as_png_and_svg(drawn, tmp_path):
  text = style.write_figure(drawn['overview.png'], tmp_path / 'a.png')
  assert (tmp_path / 'a.png').read_bytes().startswith(b'\x89PNG')
  assert (tmp_path / 'a.svg').read_text() == text
  assert 'took part: n = 2,000</text>' in text
  assert style.render_svg(drawn['overview.png']) == text


@pytest.mark.integration
def test_a_run_has_every_figure_that_has_a_caption():
  simulated = recorded_runs.by_vectors(
    momentum=0.9, observed=24, unobserved=40, dim=500
  )
  result = run_of(simulated.record, math.inf)
  lines = recorded_runs.metrics(12)
  drawn = of_audit.draw_run(result, simulated.record, lines)
  assert list(drawn) == list(of_audit.CAPTIONS)
  left, _ = drawn['by_round.png'].axes
  rounds, _ = curve(left, 'first and last model')
  assert len(rounds) > 1
  # Models of rounds are left out where the trace does not give them.
  other = recorded_runs.replace_cosines(
    simulated.record, change=simulated.record.cosines['final']
  )
  result = run_of(other, math.inf)
  left, _ = of_audit.draw_run(result, other, lines)['by_round.png'].axes
  rounds, _ = curve(left, 'first and last model')
  assert len(rounds) == 1
