"""The function of a loop that adds its noise, with canaries."""

import functools

import numpy as np
import pytest

from epe_jax.audit import attackers
from epe_jax.auditor.adapters import loop
from tests.auditor.adapters import laws

DIM, ROUNDS, CLIENTS, CLIP_NORM = 5_000, 25, 20, 2.0


def make_auditor(noise_multiplier=0.5, **config):
  return laws.make_auditor(
    **{'dim': DIM, 'rounds': ROUNDS, 'clip_norm': CLIP_NORM}
    | {'noise_multiplier': noise_multiplier, **config}
  )


def make_privatize(noise_multiplier):
  rng = np.random.default_rng(1)

  def privatize(total, count):
    """Adds noise."""
    std = noise_multiplier * CLIP_NORM
    noised = {k: x + std * rng.normal(size=x.shape) for k, x in total.items()}
    return {k: x / count for k, x in noised.items()}

  return privatize


def make_sum(scale=0.0):
  return {'w': np.full((DIM - 50,), scale), 'b': np.full((5, 10), scale)}


def run(privatize, rounds=ROUNDS, scale=0.0):
  releases = [privatize(make_sum(scale), CLIENTS) for _ in range(rounds)]
  return [np.concatenate([x['b'].ravel(), x['w']]) for x in releases]


@pytest.mark.parametrize('noise_multiplier', laws.NOISE_MULTIPLIERS)
def test_the_noise_of_a_function_is_measured(noise_multiplier):
  auditor = make_auditor(noise_multiplier)
  run(loop.audit(auditor=auditor)(make_privatize(noise_multiplier)))
  laws.assert_claim_is_met(auditor)
  laws.assert_claim_is_met(auditor, attackers.RESIDUAL)


def test_a_function_and_our_own_loop_give_the_same_epsilon():
  auditor = make_auditor()
  releases = run(loop.audit(auditor=auditor)(make_privatize(1e-9)))
  # All rounds have as many canaries: 500 in 25.
  divisor = CLIENTS + len(auditor.canary_ids(0))
  laws.assert_same_as_own_loop(make_auditor, releases, divisor=divisor)


def test_it_does_what_two_calls_a_round_do():
  by_calls, by_function = make_auditor(), make_auditor()
  privatize = loop.audit(auditor=by_function)(make_privatize(0.5))
  plain = make_privatize(0.5)
  for t in range(ROUNDS):
    total = make_sum(t / 100)
    injection = by_calls.injection(t, like=total)
    count = CLIENTS + injection.count
    put_in = {k: x + injection.update[k] for k, x in total.items()}
    release = plain(put_in, count)
    others = {k: x / count for k, x in total.items()}
    by_calls.observe(t, release, divisor=count, others=others)
    same = privatize(total, CLIENTS)
    for key in total:
      np.testing.assert_array_equal(same[key], release[key])
      assert (total[key] == t / 100).all(), 'the sum is not changed'
  a, b = by_calls.record(), by_function.record()
  for name in a.cosines:
    np.testing.assert_array_equal(a.cosines[name], b.cosines[name])


def test_large_updates_of_others_do_not_hide_the_noise():
  auditor = make_auditor()
  run(loop.audit(auditor=auditor)(make_privatize(0.5)), scale=3.0)
  laws.assert_claim_is_met(auditor, attackers.RESIDUAL)


def test_a_function_may_divide_by_what_it_likes():
  auditor = make_auditor()

  @loop.audit(auditor=auditor, divisor=50.0)
  def privatize(total, count):
    del count
    return {k: x / 50 for k, x in total.items()}

  run(privatize, rounds=1)
  np.testing.assert_allclose(auditor.record().rounds.canary_norm, 2 / 50)


def test_a_round_whose_function_fails_is_made_again():
  failures = iter([True, False, False])

  @loop.audit(auditor=make_auditor())
  def privatize(total, count):
    if next(failures):
      raise OSError('unreachable')
    return make_privatize(0.5)(total, count)

  with pytest.raises(OSError, match='unreachable'):
    run(privatize, rounds=1)
  run(privatize, rounds=2)
  assert privatize.auditor.num_rounds_observed == 2


def test_the_size_is_read_and_the_rest_is_asked_for():
  claim = {'clip_norm': CLIP_NORM, 'noise_multiplier': 0.5, 'delta': 1e-3}
  privatize = loop.audit(rounds=ROUNDS, **claim)(make_privatize(0.5))
  assert privatize.__doc__ == 'Adds noise.'
  with pytest.raises(ValueError, match='made when training starts'):
    privatize.auditor  # noqa: B018
  run(privatize)
  assert privatize.auditor.config.dim == DIM
  said = 'read from the sum: d = 5,000.'
  assert said in laws.describe_notes(privatize.auditor)
  for name in ('rounds', 'clip_norm', 'noise_multiplier', 'delta'):
    given = {'rounds': ROUNDS, **claim}
    del given[name]
    with pytest.raises(
      ValueError, match=f'^{name} of the audit is not known; give {name}='
    ):
      loop.audit(**given)


@pytest.mark.usefixtures('types_unchecked')
@pytest.mark.parametrize(
  ('options', 'error', 'message'),
  [
    ({'dims': 3}, TypeError, "'dims' is not a setting of an audit; give some"),
    ({'dim': 7}, ValueError, r'the sum has 5,000 numbers, but dim=7\. Its arr'),
    (
      {'auditor': make_auditor(), 'delta': 0.1},
      ValueError,
      'an auditor is given besides',
    ),
    ({'clip_norm': 0.0}, ValueError, r'clip_norm=0\.0; give a number in'),
    ({'divisor': 'x'}, ValueError, r"divisor='x'; give a number in \(0, inf\)"),
  ],
)
def test_misuse_is_named(options, error, message):
  claim = {'rounds': 5, 'clip_norm': 1.0, 'noise_multiplier': 0.5}
  with pytest.raises(error, match=message):
    run(loop.audit(**{**claim, 'delta': 1e-3, **options})(make_privatize(0.5)))


@pytest.mark.usefixtures('types_unchecked')
def test_a_decorator_without_settings_says_how_to_give_them():
  with pytest.raises(TypeError, match=r'write @loop\.audit\(rounds=\.\.\., '):

    @loop.audit
    def privatize(total, count):
      del count
      return total


@pytest.mark.usefixtures('types_unchecked')
@pytest.mark.parametrize(
  ('total', 'count', 'message'),
  [
    (np.zeros(9), '20', r"count='20'; give a number in \(0, inf\)"),
    (np.zeros(9), 0, r'count=0; give a number in \(0, inf\)'),
    (np.zeros(9), -1, 'count=-1; give a number'),
    (np.zeros(9, int), 20, r'type int64; give total\.astype\(float\), or'),
    (np.zeros(0), 20, 'total has no numbers; give some'),
  ],
)
def test_a_round_that_is_none_is_refused(total, count, message):
  claim = {'rounds': 5, 'clip_norm': 1.0, 'noise_multiplier': 0.5, 'delta': 0.1}
  with pytest.raises(ValueError, match=message):
    loop.audit(**claim)(lambda total, count: total / count)(total, count)


@pytest.mark.integration
def test_rounds_beyond_those_of_the_audit_are_made_and_said_to_be_not_audited():
  auditor = make_auditor()
  privatize = loop.audit(auditor=auditor)(make_privatize(0.5))
  run(privatize)
  before = auditor.record()
  with pytest.warns(
    UserWarning, match='one round beyond the 25 .* not audited'
  ):
    (release,) = run(privatize, rounds=1, scale=1000.0)
  # Noise of 1 in a sum of 1,000, divided by the clients alone.
  assert abs(release.mean() - 1000 / CLIENTS) < 1e-2
  run(privatize, rounds=1)
  np.testing.assert_array_equal(before.trace, auditor.record().trace)
  assert '- Warning: 2 rounds beyond the 25 that' in auditor.report()


def test_arrays_of_running_statistics_are_named_as_the_difference():
  privatize = loop.audit(
    dim=100, rounds=5, clip_norm=1.0, noise_multiplier=0.5, delta=1e-3
  )(lambda total, count: total)
  model = {
    'layer': np.zeros((10, 10)),
    'norm': {'running_mean': np.zeros(10), 'running_var': np.zeros(10)},
  }
  with pytest.raises(
    ValueError, match=r'difference is .*mean.\] \(10\), .*var.\] \(10\)\.'
  ):
    privatize(model, 3)
  del model['norm']['running_var']
  model['norm']['num_batches_tracked'] = np.array(3)
  with pytest.raises(
    ValueError, match=r'tracked.*int64.*integer counters never'
  ):
    privatize(model, 3)


def test_canaries_are_secret_unless_of_a_simulation():
  claim = {'clip_norm': 1.0, 'noise_multiplier': 0.5, 'delta': 1e-3}
  make = functools.partial(loop.audit, rounds=5, **claim)
  keys = set()
  for options in ({}, {}, {'seed': 1}, {'seed': 1}):
    privatize = make(**options)(make_privatize(0.5))
    run(privatize, rounds=1)
    keys.add(privatize.auditor.canary_key)
  assert len(keys) == 3
