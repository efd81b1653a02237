"""Public functions of numbers and scores name the argument that is wrong."""

import dataclasses
import inspect
import math
import re
import reprlib
import types
import typing

import numpy as np
import pytest

from epe_jax import accounting, epsilon, planning

FUNCTIONS = {
  name: getattr(module, name)
  for module in (epsilon, accounting, planning)
  for name in module.__all__
  if inspect.isfunction(getattr(module, name))
}
# It takes a planned run, which other tests damage.
del FUNCTIONS['plan']
SCORES = epsilon.Scores(np.linspace(-1, 3, 60), np.linspace(-2, 2, 50))
COINS = epsilon.Scores(SCORES.observed, SCORES.unobserved, design='coin_flip')
NORMAL = dict(mean0=0.0, std0=1.0, mean1=1.0, std1=1.0)
FAMILY = epsilon.gaussian_family()
NOTHING = lambda log_fpr: -np.expm1(log_fpr)


def of_scores(scores=SCORES, **settings):
  return dict(scores=scores, delta=1e-5, **settings)


# A right value of each argument without a default, and of those whose default is None.
CALLS = {
  'anderson_darling': dict(values=SCORES.observed),
  'bootstrap_interval': of_scores(
    rng=np.random.default_rng(0), estimator=epsilon.two_gaussian, resamples=20
  ),
  'clopper_pearson_upper': dict(count=1, trials=9, significance=0.05),
  'compute_risks': dict(mu=1.0),
  'compute_risks_of_curve': dict(fnr=NOTHING),
  'draw_null': dict(
    rng=np.random.default_rng(0), shape=(2,), null=epsilon.Sphere(100)
  ),
  'eps_lo': of_scores(),
  'epsilon_gdp': dict(mu=1.0, delta=1e-5),
  'epsilon_mixture': dict(
    shift=np.array([1.0, 2.0]), delta=1e-5, weights=np.array([0.4, 0.6])
  ),
  'epsilon_of_allocation': dict(noise_multiplier=1.0, delta=1e-5, rounds=10),
  'epsilon_of_best': dict(
    noise_multiplier=1.0, delta=1e-5, probability=0.1, rounds=10, runs=3
  ),
  'epsilon_of_discrete_gaussian': dict(std=4.0, delta=1e-5, l2=4.0),
  'epsilon_of_matrix_mechanism': dict(
    noise_multiplier=1.0, sensitivity=1.0, delta=1e-5
  ),
  'epsilon_of_poisson': dict(
    noise_multiplier=1.0, delta=1e-5, probability=0.1, rounds=10
  ),
  'epsilon_of_releases': dict(noise_multiplier=1.0, delta=1e-5),
  'epsilon_of_ring': dict(ring=accounting.Ring(40.0, 40.0, 4, 0), delta=1e-5),
  'epsilon_of_skellam': dict(std=4.0, delta=1e-5, l2=4.0),
  'epsilon_two_gaussians': dict(**NORMAL, delta=1e-5),
  'estimate_noise_floor': dict(
    rng=np.random.default_rng(0),
    estimator=epsilon.two_gaussian,
    delta=1e-5,
    num_observed=20,
    num_unobserved=20,
    null=epsilon.Sphere(100),
    simulations=10,
  ),
  'family_bound': of_scores(family=FAMILY),
  'gaussian_family': {},
  'gaussian_lower_bound': of_scores(),
  'gdp_bound': of_scores(),
  'find_sensitivity': dict(
    strategy=np.eye(3), schema=accounting.ParticipationSchema()
  ),
  'jeffreys_upper': dict(count=1, trials=9, significance=0.05),
  'location_mixture': of_scores(),
  'location_mixture_bound': of_scores(),
  'log_delta_one_direction': dict(**NORMAL, epsilon=1.0),
  'lower_bound': of_scores(),
  'max_threshold': of_scores(),
  'maximum_over_rounds': of_scores(own=np.full((60, 1), 2.0), rounds=3),
  'min_canaries': dict(bound='gaussian', certified=3.0, truth=4.0, delta=1e-5),
  'most_exposed': of_scores(),
  'mu_of_epsilon': dict(epsilon=1.0, delta=1e-5),
  'null_distribution': dict(null=epsilon.Sphere(100)),
  'one_run': of_scores(COINS),
  'one_run_gdp': of_scores(COINS),
  'one_run_independent': of_scores(COINS),
  'two_gaussian': of_scores(),
  'whiten': dict(noising=np.eye(3)),
}
# Values that are wrong elsewhere and right here.
RIGHT = {
  ('draw_null', 'rounds'): (1.5,),
  ('estimate_noise_floor', 'rounds'): (1.5,),
  ('estimate_noise_floor', 'simulations'): (None,),
  ('compute_risks', 'mu'): (math.inf,),
  ('epsilon_gdp', 'mu'): (math.inf,),
  ('epsilon_mixture', 'weights'): (None,),
  ('mu_of_epsilon', 'epsilon'): (math.inf,),
  ('one_run', 'delta'): (0.0,),
  ('find_sensitivity', 'strategy'): (-1,),
  ('anderson_darling', 'values'): (-1,),
  **{
    (name, mean): (-1,)
    for name in (
      'epsilon_two_gaussians',
      'log_delta_one_direction',
    )
    for mean in ('mean0', 'mean1')
  },
}
OPTIONAL = {'l1': (None,)}
# The ends of open ranges, which are the same in all functions.
BEYOND = {
  'confidence': (1.0,),
  'delta': (0.0, 1.0),
  'dim': (0,),
  'granularity': (0.0,),
  'l2': (0.0,),
  'num_observed': (0,),
  'periods': (0,),
  'probability': (0.0, 1.1),
  'rounds': (0,),
  'significance': (0.0, 1.0),
  'variance': (0.0,),
}


def kinds(hint):
  """The types that a hint consists of."""
  is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
  return typing.get_args(hint) if is_union else (hint,)


def wrong_values(name, argument, hint, right):
  """What no number of this type may be, and what this one may not be."""
  allowed = (
    *RIGHT.get((name, argument), ()),
    *OPTIONAL.get(argument, ()),
  )
  if typing.get_origin(hint) is typing.Literal:
    return [None, 'wrong', 1.0]
  wrong = [math.nan, None, -1, math.inf, '1', *BEYOND.get(argument, ())]
  if {*kinds(hint)} <= {int, float, type(None)}:
    wrong += [[1]] if float in kinds(hint) else [1.5, [1]]
  values = [x for x in wrong if not any(x is y or x == y for y in allowed)]
  if np.ndim(right):
    shaped = lambda x: np.full(np.shape(right), x)
    values = [
      shaped(float(x)) if isinstance(x, float | int) else x for x in values
    ]
  return values


def is_numeric(hint):
  return any(k in (int, float) or hasattr(k, 'array_type') for k in kinds(hint))


def cases():
  for name, function in FUNCTIONS.items():
    hints = typing.get_type_hints(function)
    for argument, parameter in inspect.signature(function).parameters.items():
      hint = hints[argument]
      if hint is bool:
        continue
      if is_numeric(hint) or typing.get_origin(hint) is typing.Literal:
        right = CALLS[name].get(argument, parameter.default)
        for wrong in wrong_values(name, argument, hint, right):
          yield name, argument, wrong


def test_every_public_function_is_called():
  assert CALLS.keys() == FUNCTIONS.keys()
  for name, function in FUNCTIONS.items():
    needed = {
      argument
      for argument, p in inspect.signature(function).parameters.items()
      if p.default is p.empty
    }
    assert needed <= CALLS[name].keys(), name
    function(**CALLS[name])


@pytest.mark.usefixtures('types_unchecked')
def test_a_wrong_argument_is_named_and_nan_is_never_perfect_privacy():
  silent = []
  for name, argument, wrong in cases():
    settings = {**CALLS[name], argument: wrong}
    try:
      result = FUNCTIONS[name](**settings)
    except (ValueError, TypeError) as error:
      if not re.search(rf'\b{argument}\b', str(error)):
        silent.append(f'{name}({argument}={reprlib.repr(wrong)}): {error}')
    except Exception as error:
      silent.append(f'{name}({argument}={reprlib.repr(wrong)}): {error!r}')
    else:
      silent.append(f'{name}({argument}={reprlib.repr(wrong)}) = {result}')
  assert not silent, '\n'.join(silent)


EXTREMES = (
  *(0, 5e-324, 1e-308, 1e-100, 1e-30, 1 - 2**-53, 1, 1e9, 1e30, 1e100, 1e308),
  *(-1e308, 2**63, 10**400),
)


def extreme_values(right):
  """What may be given in place of a right value, and is odd."""
  nothing = [np.empty(0), [], np.empty((0, 2)), np.array(None), np.array('x')]
  yield from [*EXTREMES, np.array(math.nan), np.array(math.inf), *nothing]
  if np.ndim(right):
    yield from (np.full(np.shape(right), float(x)) for x in EXTREMES[:-1])
  elif isinstance(right, float | int):
    yield np.asarray(right)
    yield np.float32(right) if isinstance(right, float) else np.int32(right)


def has_nan(result):
  if dataclasses.is_dataclass(result):
    result = vars(result)
  if isinstance(result, dict):
    result = list(result.values())
  if isinstance(result, list | tuple):
    return any(map(has_nan, result))
  array = np.asarray(result)
  return array.dtype.kind == 'f' and bool(np.isnan(array).any())


def extreme_cases():
  for name, function in FUNCTIONS.items():
    hints = typing.get_type_hints(function)
    for argument, parameter in inspect.signature(function).parameters.items():
      if is_numeric(hints[argument]):
        right = CALLS[name].get(argument, parameter.default)
        for value in extreme_values(right):
          yield name, argument, value


@pytest.mark.integration
@pytest.mark.usefixtures('types_unchecked')
@pytest.mark.filterwarnings('ignore')
def test_extreme_input_gives_a_number_or_an_error_that_names_an_argument():
  silent = []
  for name, argument, value in extreme_cases():
    if name in ('epsilon_of_poisson', 'epsilon_of_best'):
      continue  # Of extreme noise dp_accounting has no grid.
    case = f'{name}({argument}={reprlib.repr(value)})'
    names = '|'.join(inspect.signature(FUNCTIONS[name]).parameters)
    try:
      result = FUNCTIONS[name](**{**CALLS[name], argument: value})
    except ValueError as error:
      # Estimators say the latter of scores that a setting makes.
      if not re.search(rf'\b({names})\b|scores of an audit', str(error)):
        silent.append(f'{case}: {error}')
    except Exception as error:
      silent.append(f'{case}: {error!r}')
    else:
      if has_nan(result):
        silent.append(f'{case} = {result}')
  assert not silent, '\n'.join(silent)


def test_mu_and_epsilon_are_inverse_in_any_size():
  for value in np.geomspace(1e-10, 1e150, 100):
    mu = epsilon.mu_of_epsilon(value, 1e-5)
    assert epsilon.epsilon_gdp(mu, 1e-5) == pytest.approx(value, rel=1e-9)
  for delta in (0.5, 0.9, 0.999):
    mu = epsilon.mu_of_epsilon(1.0, delta)
    assert epsilon.epsilon_gdp(mu, delta) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.usefixtures('types_unchecked')
def test_a_pair_of_arrays_is_no_scores():
  pair = SCORES.observed, SCORES.unobserved
  for name in (name for name, call in CALLS.items() if 'scores' in call):
    with pytest.raises(ValueError, match=r'scores=.*Scores\(observed, unob'):
      FUNCTIONS[name](**{**CALLS[name], 'scores': pair})


@pytest.mark.usefixtures('types_unchecked')
def test_weights_that_do_not_add_up_to_one_are_refused():
  for weights in ([0.5, 0.6], [1.0], [2.0, -1.0]):
    with pytest.raises(ValueError, match='weights'):
      epsilon.epsilon_mixture(
        np.array([1.0, 2.0]), 1e-5, weights=np.array(weights)
      )


@pytest.mark.usefixtures('types_unchecked')
def test_counts_are_whole_and_at_most_their_total():
  for count in (4, 1.5):
    with pytest.raises(ValueError, match='count'):
      epsilon.clopper_pearson_upper(count, 3, 0.05)


@pytest.mark.usefixtures('types_unchecked')
def test_a_list_of_numbers_is_as_good_as_an_array():
  lists, arrays = [1.0, 2.0], np.array([1.0, 2.0])
  assert np.array_equal(
    epsilon.epsilon_gdp(lists, 1e-5), epsilon.epsilon_gdp(arrays, 1e-5)
  )
  assert epsilon.epsilon_mixture(lists, 1e-5) == epsilon.epsilon_mixture(
    arrays, 1e-5
  )
