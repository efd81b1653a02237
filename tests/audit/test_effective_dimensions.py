"""Effective dimensions of a run: measured, kept, and warned about."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epe_jax import canaries
from epe_jax.audit import audited_algorithm, effective_dimensions
from epe_jax.audit.effective_dimensions import warn_of_low_dimension
from epe_jax.report import page, report
from epe_jax.training import algorithms, fedavg
from epe_jax.training.round_scalars import RoundScalars
from tests import helpers
from tests.report import test_report

_DIM = 60


def _found(family='hadamard', **figures):
  some = {'rounds': [9e3, 8e3], 'final_model': 7e3, 'change': 7e3} | figures
  threshold = canaries.min_effective_dimension(family, 10**6)
  return effective_dimensions.summarize(family, threshold=threshold, **some)


def test_a_round_tells_the_effective_dimension_of_its_aggregate():
  aggregates = jnp.array(np.random.default_rng(0).standard_cauchy((3, _DIM)))
  aggregates = aggregates.astype(jnp.float32)
  known = set(RoundScalars._fields) - {'effective_dimension'}
  state = fedavg.TrainState(jnp.int32(0), {'x': jnp.zeros(_DIM)}, (), ())

  def step(state, cohort, injection, training_key, noise_key):
    del cohort, training_key, noise_key
    shown = aggregates[state.round]
    new = state._replace(round=state.round + 1)
    return new, helpers.make_round(
      shown, 0 * injection.direction(), loss=jnp.float32(1)
    )

  c = canaries.sphere(jax.random.key(0), 4, _DIM)
  plain = algorithms.Algorithm(lambda params: state, step)
  wrapped = audited_algorithm.audited(plain, c, np.zeros((3, 4), bool), {})
  now = wrapped.init(state.params)
  for x in np.asarray(aggregates, np.float64):
    now, info = jax.jit(wrapped.step)(now, None, None, None)
    expected = np.sum(x**2) ** 2 / np.sum(x**4)
    assert info.by_name().keys() == {
      'loss',
      'effective_dimension',
      *known,
    }
    np.testing.assert_allclose(
      info.scalars.effective_dimension, expected, rtol=1e-5
    )


def test_too_few_coordinates_are_warned_of_where_they_matter():
  family = 'hadamard'
  wide = {'rounds': [4e5, 3e5], 'final_model': 3e5, 'change': 3e5}
  assert warn_of_low_dimension(_found(family, **wide)) is None
  rounds = {'rounds': [3e5, 41.0, 0.0]}
  low = warn_of_low_dimension(_found(family, **wide | rounds)) or ''
  assert f"'{family}'" in low
  assert '41 in the round' in low
  assert 'last model' not in low
  assert "the family 'sphere'" in low
  low = warn_of_low_dimension(_found(family, **wide | {'change': 12.0})) or ''
  assert 'It is 12 in the change' in low


@pytest.mark.parametrize('family', ['sphere', 'hadamard2'])
def test_families_that_are_right_for_any_vector_do_not_warn(family):
  assert warn_of_low_dimension(_found(family, rounds=[1.0], change=1.0)) is None


def test_noise_is_dense_enough_and_a_few_coordinates_are_not():
  rng = np.random.default_rng(0)
  for dim in (3000, 200_000):
    noise = jnp.asarray(rng.standard_normal(dim), jnp.float32)
    few = noise * (jnp.arange(dim) < dim // 20)
    found = canaries.effective_dimension(jnp.stack([noise, few]))
    needed = canaries.min_effective_dimension('hadamard', dim)
    assert needed is not None
    assert found[1] < needed < found[0]
  with pytest.raises(ValueError, match="family='cube'"):
    canaries.min_effective_dimension('cube', 5)


def test_reports_state_it_where_it_was_measured():
  old = test_report._result()
  for wide, said in ((_found(change=12.0), True), (_found(), False)):
    result = dataclasses.replace(old, effective_dimension=wide)
    summary = ' '.join(report.format_summary(result).split())
    assert ('effective dimension of 6,000' in summary) == said
    text = page.render_markdown(report.make_page(result, {}))
    assert '9,000' not in text
    assert '8,000 or more in a round, 8,500 in the median' in text
  assert 'effective dimension' not in page.render_markdown(
    report.make_page(old, {})
  )
