"""Participation: what a config asks for is who takes part."""

import itertools

import numpy as np
import pytest

from epe_jax import accounting
from epe_jax.accounting import matrix_mechanism
from epe_jax.audit import statistics
from epe_jax.audit.record_file import load_record
from epe_jax.data import federated, participation_log
from epe_jax.epsilon import known_shifts
from epe_jax.experiment import audited_run
from epe_jax.experiment.setup import analytic, build, participation
from epe_jax.experiment.setup import config as config_lib
from epe_jax.report import report, words
from epe_jax.sampling import client_schedules
from tests.helpers import load_config

pytestmark = pytest.mark.usefixtures('quick_compilation')

N = 50
DATA = federated.from_arrays(
  {'x': np.arange(N)}, np.array([f'c{i:02}' for i in range(N)])
)


def _config(**changes):
  fields = {'rounds': 20, 'clients_per_round': 10, 'evaluate_every': 20}
  return load_config('digits', **fields | changes)


def _planned(**changes):
  # As a run does, which checks each field by itself first.
  config = config_lib.check_config(_config(**changes))
  return participation.plan_participation(
    config, DATA, client_seed=0, canary_seed=changes.get('seed', 0)
  )


@pytest.mark.parametrize(
  ('changes', 'same'),
  [
    ({}, lambda: client_schedules.shuffled_epochs),
    ({'participation.kind': 'fixed_size'}, lambda: client_schedules.fixed_size),
  ],
)
def test_clients_follow_the_schedule_that_is_named(changes, same):
  found = _planned(**changes)
  expected = same()(0, num_clients=N, clients_per_round=10)
  for t in range(20):
    np.testing.assert_array_equal(found.clients(t), expected(t))
  assert found.slots == 10
  counts = client_schedules.count_participations(
    expected, rounds=20, num_clients=N
  )
  assert found.max_rounds == counts.max()


def test_poisson_rounds_have_room_for_the_largest():
  found = _planned(**{'participation.kind': 'poisson'})
  sizes = [len(found.clients(t)) for t in range(20)]
  assert len(set(sizes)) > 1
  assert found.slots == max(sizes)
  # m is of the design and not of the draw: it must not depend on who came.
  assert found.expected_clients == 10 + found.canaries.sum() / 20


def test_a_log_is_followed(tmp_path):
  path = tmp_path / 'log.csv'
  lines = [
    f'{t},c{(t + i) % N:02}' for t in range(20) for i in range(1 + t % 3)
  ]
  path.write_text('\n'.join(['round,client_id', *lines]))
  changes = {'participation.kind': 'log', 'participation.log': str(path)}
  found = _planned(**changes)
  assert [len(found.clients(t)) for t in range(20)] == [
    1 + t % 3 for t in range(20)
  ]
  assert found.slots == 3
  assert found.expected_clients == pytest.approx(39 / 20 + 20 / 20)
  with pytest.raises(ValueError, match=r'rounds=21, but .*log\.csv has 20'):
    participation.plan_participation(
      load_config('digits', rounds=21, clients_per_round=10, **changes),
      DATA,
      client_seed=0,
      canary_seed=0,
    )
  with pytest.raises(ValueError, match="not with 'as_clients'"):
    _planned(**changes, **{'canaries.schedule': 'as_clients'})


def test_canaries_as_clients_share_the_slots_of_a_round():
  found = _planned(**{'canaries.schedule': 'as_clients'})
  in_round = found.canaries.sum(axis=1)
  for t in range(20):
    assert in_round[t] + len(found.clients(t)) == 10
  assert found.expected_clients == 10
  # 70 clients and canaries in rounds of 10: each once in 7 rounds.
  assert found.canaries[:14, :20].sum(axis=0).tolist() == [2] * 20


def test_replaced_clients_are_gone_and_canaries_have_their_rounds():
  found = _planned(**{'canaries.schedule': 'replace'})
  for t in range(20):
    assert found.canaries[t].sum() + len(found.clients(t)) == 10
  seen = {i for t in range(20) for i in found.clients(t).tolist()}
  assert len(seen) == N - 20
  assert found.expected_clients == 10


def test_by_coin_flip_every_canary_has_a_round_and_a_coin():
  groups = {'canaries.observed': 60, 'canaries.unobserved': 100}
  plan_of = lambda seed, **more: _planned(
    seed=seed, **groups, **{'canaries.schedule': 'coin_flip'}, **more
  )
  plans = [plan_of(seed) for seed in range(5)]
  for found in plans:
    assert found.design == 'coin_flip'
    np.testing.assert_array_equal(found.assigned.sum(axis=0), 1)
    heads = found.canaries.any(axis=0)
    np.testing.assert_array_equal(found.canaries, found.assigned & heads)
    # m is of the design and not of the draw: it must not tell of the coins.
    assert found.expected_clients == 10 + 80 / 20
  # All 800 coins: five standard deviations, whichever group was asked for.
  heads = np.stack([found.canaries.any(axis=0) for found in plans])
  assert abs(heads.sum() - 400) < 5 * np.sqrt(200)
  for group in (heads[:, :60], heads[:, 60:]):
    assert abs(group.mean() - 0.5) < 5 * 0.5 / np.sqrt(group.size)
  groups = {'canaries.observed': 20, 'canaries.unobserved': 30}
  again = plan_of(0, **{'canaries.repetitions': 2})
  np.testing.assert_array_equal(again.assigned[:10].sum(axis=0), 1)
  assert set(again.canaries.sum(axis=0)) == {0, 2}


@pytest.mark.parametrize('kind', ['shuffled', 'one_order'])
@pytest.mark.parametrize(('rounds', 'expected'), [(5, 1), (20, 4), (12, 3)])
def test_canaries_as_clients_take_part_as_often_as_clients(
  kind, rounds, expected
):
  found = _planned(
    **{
      'canaries.repetitions': 'as_clients',
      'participation.kind': kind,
      'rounds': rounds,
    }
  )
  assert found.max_rounds == found.periods == expected
  assert set(found.canaries.sum(axis=0)) == {0, expected}


def test_canaries_as_clients_of_a_log_take_part_as_the_busiest_client(tmp_path):
  log = tmp_path / 'log.csv'
  lines = [f'{t},c{i:02}' for t in range(4) for i in ((0, 1), (0, 2))[t % 2]]
  log.write_text('round,client_id\n' + '\n'.join(lines))
  found = _planned(
    **{
      'canaries.repetitions': 'as_clients',
      'participation.kind': 'log',
      'participation.log': str(log),
      'rounds': 4,
    }
  )
  assert found.max_rounds == found.periods == 4


@pytest.mark.parametrize(
  ('changes', 'refused', 'tested'),
  [
    # In 20 rounds a client of epochs of 5 takes part in 4.
    ({'canaries.repetitions': 5}, (8.0, 1e4), ()),
    ({'canaries.repetitions': 4}, (), (0.1, 1e4)),
    # One round that is known is allowed ε = 4.38.
    ({'participation.kind': 'poisson'}, (1.5, 4.37), (4.38,)),
    ({'participation.kind': 'fixed_size'}, (4.37,), (4.38,)),
    ({'participation.kind': 'limited'}, (4.37,), (4.38,)),
    (
      {'participation.kind': 'poisson', 'canaries.schedule': 'as_clients'},
      (4.38,),
      (1e4,),
    ),
  ],
)
def test_a_claim_is_not_tested_by_canaries_who_are_allowed_more(
  changes, refused, tested
):
  fields = {'rounds': 20, 'noise_multiplier': 1.0, 'audit.delta': 1e-5}
  fields |= {'clients_per_round': 40, 'clipping.kind': 'fixed'}
  config = config_lib.check_config(load_config('digits', **fields | changes))
  setup = build.build(config)
  for claim in (*refused, *tested):
    config.audit.claim = claim
    if claim in tested:
      analytic.analyze_privacy(config, setup)
      continue
    with pytest.raises(ValueError, match=f'audit.claim={claim:g} cannot be'):
      analytic.analyze_privacy(config, setup)


@pytest.mark.parametrize(
  ('kind', 'changes'),
  [
    ('shuffled', {}),
    ('one_order', {}),
    ('fixed_size', {}),
    ('poisson', {}),
    ('cyclic', {'participation.separation': 3}),
    (
      'limited',
      {'participation.separation': 2, 'participation.max_rounds': 6},
    ),
  ],
)
def test_what_clients_leave_is_the_law_of_those_who_are_drawn(kind, changes):
  config = config_lib.check_config(
    _config(
      **{'participation.kind': kind, 'rounds': 18, **changes},
    )
  )
  of_rounds = np.linspace(0.7, 0.1, 18)
  refuse = lambda t: pytest.fail('who takes part is a secret')
  laws = participation.find_client_shifts(config, DATA, refuse, of_rounds)
  sums = []
  for seed in range(200):
    clients = participation._schedule_clients(config, DATA, seed, N)
    taken = np.zeros((18, N))
    for t in range(18):
      taken[t, clients(t)] = 1
    if kind in ('shuffled', 'one_order'):
      # Those of most rounds: of four epochs, the last of which is cut short.
      taken = taken[:, taken.sum(axis=0) == 4]
    sums.append([np.sqrt(of_rounds**2 @ taken), of_rounds @ taken])
  for law, sum_ in zip(laws, np.concatenate(sums, axis=1)):
    weights = np.array(law.weights) / np.sum(law.weights)
    points = np.array(law.shifts)
    mean = points @ weights
    # Limited clients are a sample of their law.
    tolerance = 0.03 if kind == 'limited' else 0.01
    assert mean == pytest.approx(sum_.mean(), rel=tolerance)
    spread = np.sqrt((points - mean) ** 2 @ weights)
    assert spread == pytest.approx(sum_.std(), rel=0.05)
    assert points.max() >= sum_.max() - 1e-3
    values, counts = np.unique(sum_.round(4), return_counts=True)
    expected = known_shifts.epsilon_mixture(values, 1e-3, counts / sum_.size)
    found = known_shifts.epsilon_mixture(points, 1e-3, weights)
    assert found == pytest.approx(expected, rel=2 * tolerance)


def test_rounds_of_which_nobody_came_back_set_those_of_a_client_apart(tmp_path):
  path = tmp_path / 'log.jsonl'
  path.write_text(
    '{"t": 1, "who": "c00"}\n{"t": 2, "who": null}\n{"t": 5, "who": "c00"}\n'
  )
  changes = {
    'participation.kind': 'log',
    'participation.log': str(path),
    'participation.log_round': 't',
    'participation.log_client': 'who',
    'participation.log_empty_rounds': True,
    'canaries.schedule': 'worst_case',
    'rounds': 5,
    'clipping.kind': 'fixed',
    'noise.correlation': 'banded',
  }
  found = _planned(**changes)
  assert [len(found.clients(t)) for t in range(5)] == [1, 0, 0, 0, 1]
  # Canaries have the rounds of the client, 4 apart.
  assert np.flatnonzero(found.sensitivity.pattern).tolist() == [0, 4]
  assert {*np.flatnonzero(found.canaries.any(axis=1)).tolist()} == {0, 4}


def test_of_a_log_the_client_counts_of_whom_most_is_kept(tmp_path):
  # c02 takes part twice, when little is kept of it.
  path = tmp_path / 'log.csv'
  path.write_text('round,client_id\n0,c01\n1,c02\n2,c02\n')
  config = _config(
    **{'participation.kind': 'log', 'participation.log': str(path), 'rounds': 3}
  )
  clients, _ = participation_log.replay_log(path, DATA.client_ids.tolist())
  for of_rounds, most in (([0.9, 0.3, 0.2], 0.9), ([0.4, 0.3, 0.2], 0.5)):
    laws = participation.find_client_shifts(
      config, DATA, clients, np.array(of_rounds)
    )
    assert laws[1].shifts == pytest.approx((most,))


@pytest.mark.parametrize('kind', ['fixed_size', 'poisson', 'cyclic', 'limited'])
def test_how_often_the_busiest_client_came_is_told_of_simulations_alone(kind):
  """Else the law alone decides, and no draw of it."""
  stated = {True: set(), False: set()}
  for simulation in stated:
    for seed in range(12):
      config = config_lib.check_config(
        _config(
          **{
            'participation.kind': kind,
            'simulation': simulation,
            'participation.max_rounds': 8 if kind == 'limited' else None,
          }
        )
      )
      found = participation.plan_participation(
        config, DATA, client_seed=seed, canary_seed=0
      )
      counts = client_schedules.count_participations(
        found.clients, rounds=20, num_clients=N
      )
      assert counts.max() <= found.max_rounds
      stated[simulation].add(found.max_rounds)
  assert len(stated[False]) == 1
  assert len(stated[True]) > 1 or kind == 'limited'


_CORRELATED = {
  'rounds': 13,
  'clipping.kind': 'fixed',
  'noise.bands': 4,
  'noise_multiplier': 1.0,
}
# Of 50 clients 10 take part in a round.
_ALLOWED = {
  'shuffled': lambda p: len({t // 5 for t in p}) == len(p),
  'one_order': lambda p: p == (*range(p[0], 13, 5),) and p[0] < 5,
  'limited': lambda p: len(p) <= 3 and all(np.diff(p) >= 4),
  'cyclic': lambda p: len({t % 4 for t in p}) == 1,
}


@pytest.mark.parametrize('noise', ['banded', 'tree', 'bisr'])
@pytest.mark.parametrize('kind', _ALLOWED)
def test_canaries_of_correlated_noise_have_the_worst_rounds_of_clients(
  kind, noise
):
  """Against all sets of rounds that the participation allows."""
  limits = {
    'limited': {'separation': 4, 'max_rounds': 3},
    'cyclic': {'separation': 4},
  }
  found = _planned(
    **_CORRELATED,
    **{'participation.kind': kind, 'noise.correlation': noise},
    **{f'participation.{x}': y for x, y in limits.get(kind, {}).items()},
  )
  patterns = [
    p
    for n in (1, 2, 3, 4)
    for p in itertools.combinations(range(13), n)
    if _ALLOWED[kind](p)
  ]
  _check_canaries(found, patterns, 1.06 if noise == 'bisr' else 1)


@pytest.mark.parametrize('kind', ['shuffled', 'one_order'])
def test_canaries_among_clients_of_correlated_noise_move_no_more_than_these(
  kind,
):
  """Epochs are as long as it takes clients and canaries."""
  found = _planned(
    **_CORRELATED,
    **{
      'participation.kind': kind,
      'noise.correlation': 'banded',
      'canaries.schedule': 'as_clients',
    },
  )
  assert found.correlation is not None
  moved = found.correlation.strategy @ found.canaries
  norms = np.linalg.norm(moved, axis=0)
  assert max(norms) <= found.sensitivity.bound * (1 + 1e-9)
  # 70 clients and canaries are in 13 rounds twice at most, 7 rounds apart in one order.
  assert found.max_rounds == 2
  adjacent = matrix_mechanism.measure_patterns(
    found.correlation.strategy, [[6, 7], [0, 7]]
  )
  assert found.sensitivity.bound == pytest.approx(
    adjacent[0 if kind == 'shuffled' else 1], rel=1e-6
  )


def _check_canaries(found, patterns, looseness=1):
  """Their rounds are of these sets, and move as much as any of these."""
  norms = matrix_mechanism.measure_patterns(
    found.correlation.strategy, patterns
  )
  worst = max(norms)
  assert worst * (1 - 1e-9) <= found.sensitivity.bound
  assert found.sensitivity.bound <= looseness * worst * (1 + 1e-9)
  canaries = {tuple(np.flatnonzero(x).tolist()) for x in found.canaries.T}
  # Those that are unobserved have none.
  canaries.remove(())
  assert canaries
  for p in canaries:
    assert norms[patterns.index(p)] >= 0.99 / looseness * worst


@pytest.mark.parametrize('noise', ['banded', 'tree'])
def test_canaries_of_correlated_noise_copy_clients_of_a_log(tmp_path, noise):
  rng = np.random.default_rng(0)
  cohorts = [rng.choice(N, 6, replace=False) for _ in range(13)]
  lines = [f'{t},c{i:02}' for t, cohort in enumerate(cohorts) for i in cohort]
  path = tmp_path / 'log.csv'
  path.write_text('\n'.join(['round,client_id', *lines]))
  found = _planned(
    **_CORRELATED,
    **{
      'participation.kind': 'log',
      'participation.log': str(path),
      'noise.correlation': noise,
    },
  )
  rounds = [
    tuple(t for t, cohort in enumerate(cohorts) if i in cohort)
    for i in range(N)
  ]
  _check_canaries(found, [p for p in rounds if p])


@pytest.mark.parametrize('kind', ['poisson', 'fixed_size', 'limited'])
def test_canaries_as_clients_whose_rounds_are_drawn_are_refused(kind):
  with pytest.raises(
    ValueError,
    match=f"canaries.repetitions='as_clients', .*{kind}.* canaries.schedule=",
  ):
    _planned(
      **{'canaries.repetitions': 'as_clients', 'participation.kind': kind}
    )


def test_without_coins_assigned_rounds_are_those_of_the_canaries_that_take_part():
  for how in ('once_per_period', 'as_clients', 'replace'):
    found = _planned(**{'canaries.schedule': how})
    assert found.design == 'fixed'
    np.testing.assert_array_equal(found.assigned, found.canaries)
    assert not found.canaries[:, 20:].any()


@pytest.mark.parametrize('schedule', ['once_per_period', 'coin_flip'])
def test_a_round_holds_more_added_canaries_than_clients(schedule):
  found = _planned(
    **{'canaries.schedule': schedule, 'canaries.observed': 1000},
  )
  # Rounds of 10 clients, and 50 canaries or more that take no client's place.
  assert found.assigned.sum(axis=1).min() >= 50
  assert found.slots == 10


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (
      {
        'canaries.schedule': 'coin_flip',
        'canaries.observed': 3,
        'canaries.unobserved': 0,
      },
      'of 3 canaries take part by their coins',
    ),
    ({'participation.kind': 'random'}, "participation.kind='random'; give one"),
    ({'canaries.schedule': 'often'}, "canaries.schedule='often'; give one of"),
    ({'participation.kind': 'log'}, r'participation\.log=None'),
    (
      {'participation.kind': 'cyclic', 'participation.separation': 6},
      'expected_clients=10, but each of 6 groups',
    ),
    (
      {
        'participation.kind': 'cyclic',
        'participation.separation': 21,
        'clients_per_round': 2,
      },
      r'participation\.separation=21 .* rounds=20, so that some groups never',
    ),
    (
      {'participation.kind': 'limited', 'participation.separation': 6},
      r'participation\.separation=6 and participation\.max_rounds=None rule out',
    ),
    (
      {'canaries.schedule': 'replace', 'canaries.observed': 51},
      'num=51 canaries cannot replace 50',
    ),
  ],
)
def test_wrong_fields_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    _planned(**changes)


@pytest.mark.parametrize(
  ('name', 'value', 'other'),
  [
    ('participation.separation', 2, 'participation.kind'),
    ('participation.log', 'log.csv', 'participation.kind'),
    ('noise.bands', 2, 'noise.correlation'),
    ('secure_aggregation.granularity', 0.1, 'secure_aggregation.bits'),
  ],
)
def test_a_field_without_effect_is_refused(name, value, other):
  with pytest.raises(
    ValueError, match=f'{name}=.* has no effect with {other}='
  ):
    config_lib.check_conflicts(_config(**{name: value}))


def test_amplification_is_known_for_poisson_and_unknown_elsewhere():
  find = lambda kind: analytic.find_amplification(
    _config(**{'participation.kind': kind}), num_clients=N, delta=1e-3
  )
  amplified = accounting.epsilon_of_poisson(
    0.2, delta=1e-3, probability=0.2, rounds=20
  )
  poisson, fixed_size = find('poisson'), find('fixed_size')
  assert poisson.values['epsilon'] == amplified.epsilon
  assert f'ε = {amplified.epsilon:.4g} for clients: ' in (
    words.describe_amplification(poisson)
  )
  assert fixed_size.key == 'no_tight_analysis'
  assert 'not known' in words.describe_amplification(fixed_size)
  assert find('shuffled') is None


def test_groups_that_take_turns_are_amplified_by_their_own_coins():
  """Of independent noise: no more turns, and no higher chance, than is said."""
  changes = {
    'participation.kind': 'cyclic',
    'participation.separation': 4,
    'rounds': 402,
    'clients_per_round': 3,
  }
  find = lambda **more: analytic.find_amplification(
    _config(**changes, **more), num_clients=N, delta=1e-3
  )
  # 101 turns of the first two groups.
  said = find()
  assert said.values['rounds'] == 101
  assert said.values['probability'] == pytest.approx(3 * 4 / N)
  amplified = accounting.epsilon_of_poisson(
    0.2, delta=1e-3, probability=3 * 4 / N, rounds=101
  )
  assert said.values['epsilon'] == amplified.epsilon
  clients = _planned(**changes).clients
  came = np.array([np.isin(np.arange(N), clients(t)) for t in range(402)])
  for i in range(N):
    assert not came[(np.arange(402) - i) % 4 != 0, i].any()
  # Five standard deviations of 5,025 coins.
  turns, q = 402 * N / 4, said.values['probability']
  assert abs(came.sum() / turns - q) < 5 * np.sqrt(q * (1 - q) / turns)
  ring = {'secure_aggregation.bits': 16, 'clipping.kind': 'fixed'}
  assert find(**ring).key == 'no_tight_analysis'
  tree = {'noise.correlation': 'tree', 'clipping.kind': 'fixed'}
  assert find(**tree).key == 'no_tight_analysis'


@pytest.mark.parametrize('per_round', [10, 60])
def test_clients_among_canaries_are_drawn_as_rarely_as_amplification_says(
  per_round,
):
  """As often as is said, also where a round has more than there are clients."""
  changes = {
    'participation.kind': 'poisson',
    'canaries.schedule': 'as_clients',
    'canaries.observed': 30,
  }
  config = load_config(
    'digits', rounds=100, clients_per_round=per_round, **changes
  )
  found = participation.plan_participation(
    config, DATA, client_seed=0, canary_seed=0
  )
  q = per_round / (N + 30)
  came = sum(len(found.clients(t)) for t in range(100))
  # Five standard deviations of 5,000 coins.
  assert abs(came / (N * 100) - q) < 5 * np.sqrt(q * (1 - q) / 5000)
  found = analytic.find_amplification(config, num_clients=N, delta=1e-3)
  assert found.values['probability'] == q
  amplified = accounting.epsilon_of_poisson(
    0.2, delta=1e-3, probability=q, rounds=100
  )
  assert found.values['epsilon'] == amplified.epsilon
  said = words.describe_amplification(found)
  assert f'with probability {q:.3g}' in said


def test_more_clients_in_a_round_than_there_are_is_refused_before_training():
  for changes, most in (
    ({'canaries.schedule': 'once_per_period'}, 50),
    ({'canaries.schedule': 'as_clients'}, 70),
  ):
    config = load_config(
      'digits',
      clients_per_round=71,
      **{'participation.kind': 'poisson', **changes},
    )
    with pytest.raises(ValueError, match=f'=71, but there are {most}'):
      participation.plan_participation(
        config, DATA, client_seed=0, canary_seed=0
      )


@pytest.mark.integration
@pytest.mark.usefixtures('small_task', 'unestimated')
def test_canaries_that_replace_clients_stand_out_in_their_own_rounds(tmp_path):
  config = load_config(
    'digits',
    **{
      'participation.kind': 'poisson',
      'canaries.schedule': 'replace',
      'canaries.observed': 40,
      'client.epochs': 1,
      'client.max_examples': 8,
    },
  )
  result = audited_run.run(config, tmp_path / 'run')
  assert 'amplification by sampling: ε =' in report.format_report(result)
  # Some of 40 clients who take part with chance 1/5 in 6 rounds never do.
  assert 2 <= result.num_observed < 40
  assert result.num_observed + result.num_unobserved == 60
  scores = load_record(tmp_path / 'run' / 'private/scores.npz')
  root_d = np.sqrt(result.dim)
  # With the others removed sqrt(d) cos has mean 1 / z = 5 nearly, for canaries
  # in their own rounds alone.
  assert scores.rounds is not None
  assigned = statistics.assign_held_out(scores.assigned)
  alone = statistics.score_residual(
    scores.cosines['residual'], scores.included, assigned, scores.rounds
  )
  n = scores.included.sum(axis=0)[scores.observed]
  assert (alone[scores.observed] / np.sqrt(n)).mean() > 3
  null = scores.cosines['residual'] * root_d
  assert abs(np.mean(null**2) - 1) < 5 * np.sqrt(2 / null.size)
