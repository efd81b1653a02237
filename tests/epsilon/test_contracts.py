"""What all public functions of the package have in common."""

import dataclasses
import functools
import inspect
import re
import typing

import numpy as np
import pytest

from epe_jax import epsilon

FUNCTIONS = {
  name: getattr(epsilon, name)
  for name in epsilon.__all__
  if inspect.isfunction(getattr(epsilon, name))
}
# What an argument means wherever it is one: its type, and the values between
# which it lies. It has to be given by name.
WORDS = {
  'confidence': (float, (0.5, 1.0)),
  'significance': (float, (0.0, 0.5)),
  'sides': (typing.Literal['in', 'both'], None),
}
# Other words for these.
SYNONYMS = {'alpha', 'beta', 'level', 'one_sided', 'two_sided', 'side'}
D = 10_000
SPLIT = epsilon.Split(seed=0)


def parameters(function):
  hints = typing.get_type_hints(function)
  for name, parameter in inspect.signature(function).parameters.items():
    yield name, hints.get(name), parameter


def scores(shape=(), design='fixed', *, scale=D**-0.5, **settings):
  rng = np.random.default_rng(0)
  observed = rng.normal(2, 1, (*shape, 60)) * scale
  unobserved = rng.normal(0, 1, (*shape, 50)) * scale
  return epsilon.Scores(observed, unobserved, design=design, **settings)


# Each estimator, with the settings that it cannot do without.
ESTIMATORS = {
  'eps_lo': {},
  'family_bound': {'family': epsilon.gaussian_family()},
  'gaussian_lower_bound': {},
  'gdp_bound': {},
  'location_mixture': {},
  'location_mixture_bound': {},
  'lower_bound': {},
  'max_threshold': {},
  'maximum_over_rounds': {'own': np.full((60, 1), 2.0), 'rounds': 3},
  'most_exposed': {},
  'one_run': {},
  'one_run_gdp': {},
  'one_run_independent': {},
  'two_gaussian': {},
}


def scores_of(name, shape=()):
  design = 'coin_flip' if name.startswith('one_run') else 'fixed'
  # Maxima are in units of one score.
  scale = 1.0 if name == 'maximum_over_rounds' else D**-0.5
  return scores(shape, design, scale=scale)


def call(name, shape=(), **settings):
  return FUNCTIONS[name](
    scores_of(name, shape), delta=1e-5, **ESTIMATORS[name], **settings
  )


def test_estimators_are_all_functions_of_scores_and_delta():
  found = {
    name
    for name, function in FUNCTIONS.items()
    if [n for n, _, p in parameters(function) if p.kind != p.KEYWORD_ONLY]
    == ['scores']
    and typing.get_type_hints(function)['return'] is epsilon.Estimate
  }
  assert found == ESTIMATORS.keys()


def test_words_of_arguments_mean_one_thing():
  for function, signature in FUNCTIONS.items():
    for name, hint, parameter in parameters(signature):
      assert name not in SYNONYMS, f'{function}({name})'
      if (
        name == 'delta' and 'scores' in inspect.signature(signature).parameters
      ):
        assert (hint, parameter.default) == (float, parameter.empty), function
      if name not in WORDS:
        continue
      kind, limits = WORDS[name]
      assert hint == kind, f'{function}({name})'
      if limits is None:
        assert parameter.default == 'in', f'{function}({name})'
      elif parameter.default is not parameter.empty:
        assert parameter.kind == parameter.KEYWORD_ONLY, f'{function}({name})'
        assert limits[0] < parameter.default < limits[1], f'{function}({name})'


def test_levels_out_of_range_are_refused_by_name():
  for function in ESTIMATORS:
    for name, *_ in parameters(FUNCTIONS[function]):
      for wrong in (
        (0.0, 1.0, np.nan) if name in WORDS and name != 'sides' else ()
      ):
        with pytest.raises(ValueError, match=f'{name}={wrong}'):
          call(function, **{name: wrong})


@pytest.mark.usefixtures('types_unchecked')
def test_sides_that_there_are_not_are_refused_by_name():
  with pytest.raises(
    ValueError, match="sides='out' is neither 'in' nor 'both'"
  ):
    call('lower_bound', sides='out')


def test_a_bound_has_one_minus_its_significance_and_a_point_estimate_nothing():
  for function in ESTIMATORS:
    takes = {name for name, *_ in parameters(FUNCTIONS[function])}
    settings = {'significance': 0.1} if 'significance' in takes else {}
    estimate = call(function, **settings)
    is_bound = bool(settings)
    assert estimate.confidence == (0.9 if is_bound else None), function
    assert (estimate.kind == 'point_estimate') != is_bound, function
    if is_bound:
      assert estimate.epsilon <= call(function, significance=0.3).epsilon


def test_more_confidence_widens_an_interval_and_leaves_the_estimate():
  bootstrap = functools.partial(
    epsilon.bootstrap_interval,
    estimator=epsilon.two_gaussian,
    scores=scores(),
    delta=1e-5,
    resamples=200,
  )
  makers = [
    functools.partial(call, function)
    for function in ESTIMATORS
    if 'confidence' in inspect.signature(FUNCTIONS[function]).parameters
  ]
  assert len(makers) == 3
  for make in (
    *makers,
    lambda confidence: bootstrap(
      np.random.default_rng(0), confidence=confidence
    ),
  ):
    narrow, wide = make(confidence=0.5), make(confidence=0.9)
    assert wide.interval[0] < narrow.interval[0] < narrow.epsilon
    assert narrow.epsilon < narrow.interval[1] < wide.interval[1]
    assert narrow.epsilon == wide.epsilon
    assert narrow.confidence is wide.confidence is None


def test_both_sides_prove_what_guesses_of_in_do_not():
  # Half of the others score below all that took part, and half as they do.
  observed = np.linspace(0, 1, 200)
  scores = epsilon.Scores(observed, np.append(observed[::2], np.full(100, -9)))
  of_in = epsilon.lower_bound(scores, delta=1e-5, sides='in')
  of_both = epsilon.lower_bound(scores, delta=1e-5, sides='both')
  assert of_in.epsilon < np.log(2)
  assert of_both.epsilon > of_in.epsilon + 1


@pytest.mark.parametrize('function', ESTIMATORS)
def test_leading_axes_are_audits_of_their_own(function):
  if function == 'maximum_over_rounds':
    return  # All audits share the law of their maxima.
  together = np.asarray(call(function, (2, 1)).epsilon)
  assert together.shape == (2, 1)
  audits = scores_of(function, (2, 1))
  for at in np.ndindex(2, 1):
    alone = dataclasses.replace(
      audits, observed=audits.observed[at], unobserved=audits.unobserved[at]
    )
    estimate = FUNCTIONS[function](alone, delta=1e-5, **ESTIMATORS[function])
    assert isinstance(estimate.epsilon, float)
    # Vectors of other lengths are rounded otherwise.
    assert estimate.epsilon == pytest.approx(together[at], rel=1e-6)


@pytest.mark.parametrize(
  ('make', 'cured'),
  [
    # Spread of unobserved scores that are all equal, or too few to have one.
    (
      lambda null: epsilon.two_gaussian(
        epsilon.Scores(np.array([0.1, 0.2]), np.zeros(3), null), delta=1e-5
      ),
      epsilon.Sphere(D),
    ),
    (
      lambda null: epsilon.location_mixture(
        epsilon.Scores(
          np.array([0.1, 0.2]), np.zeros(1), null, shift=np.array([1.0, 2.0])
        ),
        delta=1e-5,
      ),
      epsilon.Sphere(D),
    ),
    # Scores that are no cosines.
    (
      lambda null: epsilon.Scores(np.array([2.0]), np.zeros(3), null),
      epsilon.Unknown(),
    ),
  ],
)
def test_a_refused_null_law_is_named_as_the_argument_of_scores(make, cured):
  is_unknown = isinstance(cured, epsilon.Unknown)
  with pytest.raises(ValueError, match='null=') as error:
    make(epsilon.Sphere(D) if is_unknown else epsilon.Unknown())
  # The flag is --dim, and no argument is.
  assert not re.search(r'(?<!-)\bdim\b(?!=\d)', str(error.value))
  make(cured)
