"""Every fact has words, and all words a fact; files have none of them."""

import ast
import pathlib

import numpy as np
import pytest
from scipy import special, stats

import epe_jax
from epe_jax import typed_json
from epe_jax.audit import audit_json, evaluation, failed_checks
from epe_jax.epsilon.types import Scores, Sphere
from epe_jax.fact import Fact
from epe_jax.report import checks, plans, words
from epe_jax.scores import score_audit

_PACKAGE = pathlib.Path(epe_jax.__file__).parent
NORMAL = stats.norm.ppf((np.arange(500) + 0.5) / 500)


# They make facts from names that they are given.
_MAKERS = 'Fact', '_name_test'
_GIVEN = {'spread_differs', 'not_gaussian_around_shifts'}


def made_keys():
  """The keys of all facts that any module of the package makes."""
  for path in _PACKAGE.rglob('*.py'):
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.Call) and ast.unparse(node.func) in _MAKERS:
        yield from (
          x.value for x in node.args[:1] if isinstance(x, ast.Constant)
        )
  yield from _GIVEN


def test_each_fact_that_is_made_has_words_and_each_of_these_is_made():
  tables = (
    checks.SENTENCES,
    words.OF_ANALYTIC,
    words.OF_AMPLIFICATION,
    plans.WARNINGS,
  )
  named = [key for table in tables for key in table]
  assert len(named) == len({*named})
  assert {*made_keys()} == {*named}


@pytest.mark.parametrize('ratio', [0.99996, 1.0004])
@pytest.mark.parametrize(
  ('key', 'name', 'others'),
  [
    ('noise_not_as_claimed', 'ratio', {}),
    ('release_shorter_than_noise', 'ratio', {}),
    ('canaries_not_as_predicted', 'share', {'standard_errors': 5.0}),
    ('epsilon_above_claim', 'noise_share', {'epsilon': 4.3, 'claimed': 4.2}),
  ],
)
def test_a_ratio_that_is_not_1_does_not_read_so(key, name, others, ratio):
  said = checks.describe_check(Fact(key, {name: ratio, **others}))
  assert f' {ratio:g} ' in said


@pytest.mark.parametrize(
  ('scores', 'keys'),
  [
    (Scores(3 + 2 * NORMAL, NORMAL), []),
    (Scores(0.03 * NORMAL, 0.01 * NORMAL, null=Sphere(10**4)), []),
    (Scores(0.01 * NORMAL, np.empty(0), null=Sphere(10**4)), []),
    (
      Scores(0.01 * NORMAL, 0.02 * NORMAL, null=Sphere(10**4)),
      ['not_cosines'],
    ),
    (
      Scores(0.01 * (NORMAL - 1), np.empty(0), null=Sphere(10**4)),
      ['swapped'],
    ),
    (Scores(np.exp(NORMAL), NORMAL), ['not_gaussian']),
    (Scores(np.zeros(9), np.ones(9)), ['swapped', 'all_equal', 'all_equal']),
    (Scores(np.arange(4.0), np.arange(4.0)), ['too_few_to_test'] * 2),
  ],
)
def test_what_scores_of_any_system_show_is_said(scores, keys):
  failed = [
    *failed_checks.check_not_swapped(scores),
    *failed_checks.check_normality(scores),
  ]
  assert [check.key for check in failed] == keys
  for check in failed:
    text = checks.describe_check(check)
    assert not text.endswith('.')
    assert typed_json.from_plain(Fact, typed_json.to_plain(check)) == check


@pytest.mark.parametrize(
  ('draw', 'is_copied'),
  [
    (lambda rng: np.repeat(rng.normal(size=50), 20), True),
    (lambda rng: rng.choice(rng.normal(size=300), 300), True),
    (lambda rng: np.repeat(rng.normal(size=99).astype(np.float32), 2), True),
    (lambda rng: rng.normal(size=1000), False),
    (lambda rng: rng.integers(2, size=1000), False),
    (lambda rng: rng.normal(0, 30, 1000).round(), False),
    (lambda rng: rng.normal(size=1000).round(2), False),
    (lambda rng: rng.integers(300, size=1000) / 300, False),
    (lambda rng: rng.normal(size=4000).astype(np.float16), False),
    # Confidences in float32 that come close to 1.
    (
      lambda rng: (
        -np.log(special.expit(rng.normal(13, 3, 1000).astype(np.float32)))
      ),
      False,
    ),
  ],
)
def test_fine_scores_that_repeat_are_no_independent_draws(draw, is_copied):
  rng = np.random.default_rng(0)
  scores = Scores(draw(rng), rng.normal(size=99))
  failed = failed_checks.check_repeats(scores)
  assert [x.values['group'] for x in failed] == ['observed'] * is_copied


def test_of_scores_that_repeat_the_first_page_says_that_no_bound_holds():
  rng = np.random.default_rng(0)
  copied = Scores(np.repeat(rng.exponential(size=50), 20), rng.normal(size=99))
  text = score_audit.ScoreAudit(
    copied, evaluation.evaluate_scores(copied, delta=1e-5, more=False), None
  ).text
  text = ' '.join(text.split())
  assert '950 of the 1,000 observed scores repeat others exactly' in text
  assert 'stay valid' not in text


def test_an_audit_is_kept_without_a_sentence():
  rng = np.random.default_rng(0)
  # Far apart, and neither group is Gaussian.
  scores = Scores(np.exp(rng.normal(size=60)) + 9, rng.uniform(size=60))
  found = evaluation.evaluate_scores(scores, delta=1e-5)
  (attack,) = found.attacks
  assert attack.failed_checks
  values = audit_json.to_json(found)
  assert audit_json.from_json(values) == found
  for check in attack.failed_checks:
    assert checks.describe_check(check) not in str(values)
