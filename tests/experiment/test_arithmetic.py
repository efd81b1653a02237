"""A run under a kernel that miscomputes ends before its first round."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epe_jax import canaries, io
from epe_jax.audit import observers
from epe_jax.cli import program
from epe_jax.experiment import arithmetic, audited_run
from epe_jax.experiment.setup import build
from epe_jax.experiment.sweeps import seeds
from epe_jax.training import clipping
from tests import helpers

RELEASE = {'simulation': False, 'noise_multiplier': 1.0}


@functools.cache
def set_up(**changes):
  config = helpers.quick_digits()
  config.update_from_flattened_dict(changes)
  secret = None if config.simulation else b'0' * 32
  return config, build.build(config, secret=secret)


def check(**changes):
  return arithmetic.check_arithmetic(*set_up(**changes))


pytestmark = pytest.mark.usefixtures('quick_compilation', 'small_task')


@pytest.mark.parametrize('family', canaries.FAMILIES)
def test_right_arithmetic_of_each_family_passes(family):
  shares = check(**{'canaries.family': family})
  assert {'norm', 'canary_norm', 'cosine_final', 'cosine_change'} < {*shares}
  assert max(shares.values()) < 0.5


@pytest.mark.parametrize(
  'changes',
  [
    {'precision': 'tensorfloat32'},
    {'precision': 'bfloat16'},
    {'audit.trace': False},
    {'audit.view': 'server_update'},
    {'chunk': 3},
    {'clipping.kind': 'adaptive'},
    {'noise_multiplier': 0.0},
    RELEASE,
    {'secure_aggregation.bits': 16, 'noise_multiplier': 1.0},
    {'canaries.observed': 0, 'canaries.unobserved': 0},
  ],
  ids=str,
)
def test_right_arithmetic_passes_whatever_a_run_does(changes):
  shares = check(**changes)
  assert ('canary_norm' in shares) == ('canaries.observed' not in changes)
  assert max(shares.values()) < 1


def drop_rows(x):
  """One row of 1,000 is missed."""
  return x.at[..., ::1000].set(0)


def as_tensorfloat32(x):
  return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=10)


def lose_all(x):
  return jnp.full_like(x, jnp.nan)


DAMAGES = [drop_rows, as_tensorfloat32, lose_all]


@pytest.mark.parametrize('damage', DAMAGES)
def test_cosines_that_are_wrong_end_the_run(monkeypatch, damage):
  right = observers.compute_cosines
  monkeypatch.setattr(
    observers, 'compute_cosines', lambda c, v: right(c, damage(v))
  )
  with pytest.raises(arithmetic.Miscomputed, match='cosine_'):
    check()


@pytest.mark.parametrize('name', ['final_model', 'rounds'])
def test_an_observer_that_is_wrong_ends_the_run(monkeypatch, name):
  make = build.make_observers

  def damaged(*arguments):
    made = make(*arguments)
    scores = made[name].scores
    off = lambda *a: {k: 1.001 * x for k, x in scores(*a).items()}
    return made | {name: made[name]._replace(scores=off)}

  monkeypatch.setattr(build, 'make_observers', damaged)
  with pytest.raises(arithmetic.Miscomputed, match='cosine_'):
    check()


def slip(x):
  """Those of one canary are off by 1 %."""
  return x.at[..., 8].multiply(1.01)


@pytest.mark.parametrize('family', ['sphere', 'hadamard'])
@pytest.mark.parametrize(
  ('part', 'damage'), [('project', slip), ('superpose', lambda x: 1.0001 * x)]
)
def test_canaries_that_are_wrong_end_the_run(monkeypatch, family, part, damage):
  config, setup = set_up(**{'canaries.family': family, 'canaries.observed': 44})
  choose = canaries.family

  def choose_damaged(*arguments, **settings):
    def make(*sizes):
      made = choose(*arguments, **settings)(*sizes)
      right = getattr(made, part)
      return made._replace(**{part: lambda *x: damage(right(*x))})

    return make

  monkeypatch.setattr(canaries, 'family', choose_damaged)
  with pytest.raises(arithmetic.Miscomputed, match=r'canary_norm|cosine_'):
    arithmetic.check_arithmetic(config, setup)


# A coarser step of a grid hides what coarser floats do.
@pytest.mark.parametrize(
  ('damage', 'changes'), [*((x, {}) for x in DAMAGES), (drop_rows, RELEASE)]
)
def test_clipped_updates_that_are_wrong_end_the_run(
  monkeypatch, damage, changes
):
  right = clipping.clip

  def clip(*arguments):
    clipped, norm = right(*arguments)
    return damage(clipped), norm

  monkeypatch.setattr(clipping, 'clip', clip)
  with pytest.raises(arithmetic.Miscomputed, match=r'_sum|sum_norm'):
    check(**changes)


def test_norms_by_which_updates_are_clipped_that_are_wrong_end_the_run(
  monkeypatch,
):
  right = clipping.clip

  def clip(x, clip_norm, noise, key):
    wrong = noise._replace(norm=lambda x: noise.norm(drop_rows(x)))
    return right(x, clip_norm, wrong, key)

  monkeypatch.setattr(clipping, 'clip', clip)
  with pytest.raises(arithmetic.Miscomputed, match='update_norms'):
    check()


def test_a_norm_that_is_wrong_ends_the_run(monkeypatch):
  config, setup = set_up()
  right = jnp.linalg.norm
  wrong = lambda x, **settings: right(drop_rows(x), **settings)
  monkeypatch.setattr(jnp.linalg, 'norm', wrong)
  with pytest.raises(arithmetic.Miscomputed, match=' norm is'):
    arithmetic.check_arithmetic(config, setup)


def test_a_row_that_is_taken_for_another_ends_the_run(monkeypatch):
  config, setup = set_up()
  right = jax.vmap

  def mix_up(function, *settings, **named):
    mapped = right(function, *settings, **named)
    wrong = lambda x: mapped(x.at[-1].set(x[-128]))
    return lambda *x: (wrong if np.shape(x[0])[:1] > (2**15,) else mapped)(*x)

  monkeypatch.setattr(jax, 'vmap', mix_up)
  with pytest.raises(arithmetic.Miscomputed, match='row_norms'):
    arithmetic.check_arithmetic(config, setup)


def test_a_run_that_miscomputes_leaves_no_file_and_says_what_to_try(
  monkeypatch, tmp_path
):
  right = observers.compute_cosines
  monkeypatch.setattr(
    observers, 'compute_cosines', lambda c, v: right(c, drop_rows(v))
  )
  with pytest.raises(arithmetic.Miscomputed) as error:
    audited_run.run(helpers.quick_digits(), tmp_path / 'run')
  for part in ('float64', f'jax {jax.__version__}', 'cpu', 'XLA_FLAGS=--xla_'):
    assert part in str(error.value)
  # Not a bug of the package, but of what it runs on.
  assert program.is_of_input(error.value)
  assert not [x for x in (tmp_path / 'run').rglob('*') if x.is_file()]


@pytest.mark.integration
def test_a_checked_run_is_that_without_a_check_and_says_that_it_is_checked(
  monkeypatch, tmp_path, unestimated
):
  for name in ('checked', 'unchecked'):
    audited_run.run(helpers.quick_digits(), tmp_path / name)
    compared = io.read_json(tmp_path / name / 'result.json')['arithmetic']
    assert ('cosine_final' in compared) == (name == 'checked')
    monkeypatch.setattr(arithmetic, 'check_arithmetic', lambda *x: {})
  checked, unchecked = (
    tmp_path / name / 'private/scores.npz' for name in ('checked', 'unchecked')
  )
  assert checked.read_bytes() == unchecked.read_bytes()
  checked, unchecked = (
    tmp_path / name / 'model.npz' for name in ('checked', 'unchecked')
  )
  assert checked.read_bytes() == unchecked.read_bytes()


def test_seeds_that_are_vmapped_are_checked_too(monkeypatch):
  monkeypatch.setattr(
    observers, 'compute_cosines', lambda c, v: jnp.zeros((*v.shape[:-1], c.num))
  )
  with pytest.raises(arithmetic.Miscomputed):
    next(seeds.run_seeds(helpers.quick_digits(), [0, 1]))
