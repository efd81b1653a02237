"""The auditor of any loop sees what the observers of ours see."""

import stat

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import epe_jax
from epe_jax import accounting, audit, canaries, io
from epe_jax.audit import attackers, observers
from epe_jax.audit.record_file import load_record, write_record
from epe_jax.fact import Fact
from epe_jax.report import cells
from tests.auditor.adapters import laws

DIM, ROUNDS, CLIENTS = 5000, 12, 10


def make_config(**config):
  return epe_jax.AuditConfig(
    **{
      'dim': DIM,
      'rounds': ROUNDS,
      'clip_norm': 2.0,
      'noise_multiplier': 0.5,
      'delta': 1e-3,
      'num_observed': 60,
      'num_unobserved': 60,
      'server_momentum': 0.0,
      **config,
    }
  )


def make_auditor(seed=0, **config):
  return epe_jax.Auditor(make_config(**config), seed=seed)


def make_release(auditor, t, noise_std=1.0):
  """A release of round t, and what it was divided by."""
  injection = auditor.injection(t)
  divisor = CLIENTS + injection.count
  noise = np.random.default_rng(t).normal(0, noise_std, DIM)
  return (injection.update + noise) / divisor, divisor


def observe_rounds(auditor, rounds):
  for t in rounds:
    release, divisor = make_release(auditor, t)
    auditor.observe(t, release, divisor=divisor, others=np.zeros(DIM))


def assert_records_equal(a, b):
  for name, x in vars(a).items():
    y = getattr(b, name)
    if name == 'cosines':
      assert x.keys() == y.keys()
      for key in x:
        np.testing.assert_array_equal(x[key], y[key], err_msg=key)
    elif isinstance(x, np.ndarray | tuple):
      np.testing.assert_array_equal(np.asarray(x), np.asarray(y), err_msg=name)
    else:
      assert x == y, name


@pytest.mark.integration
@pytest.mark.parametrize('family', ['hadamard', 'sphere'])
def test_it_scores_what_the_observers_of_our_own_loop_score(family):
  auditor = make_auditor(family=family)
  device = canaries.family(family)(
    jax.random.wrap_key_data(np.array(auditor.canary_key)), 120, DIM
  )
  observer = observers.all_iterates(device, rounds=ROUNDS, buffer=1)
  state, model = observer.init(jnp.zeros(DIM)), np.zeros(DIM)
  for t in range(ROUNDS):
    release, divisor = make_release(auditor, t)
    auditor.observe(t, release, divisor=divisor)
    model += release
    vector = jnp.asarray(release, jnp.float32)
    state = observer.update(
      state, observers.RoundView(vector, vector, vector, vector)
    )
  auditor.observe_final(model, initial=np.zeros(DIM))
  record = auditor.record()
  expected = observer.scores(state, jnp.zeros(DIM))['aggregate']
  np.testing.assert_allclose(record.trace, expected, atol=1e-6)
  final = observers.compute_cosines(device, jnp.asarray(model, jnp.float32))
  np.testing.assert_allclose(record.cosines['final'], final, atol=1e-6)
  np.testing.assert_array_equal(
    record.cosines['final'], record.cosines['change']
  )


def test_who_knows_the_other_updates_finds_the_noise_under_them():
  quiet, loud = make_auditor(), make_auditor()
  others = np.full(DIM, 3.0)
  for t in range(ROUNDS):
    release, divisor = make_release(quiet, t)
    quiet.observe(t, release, divisor=divisor, others=np.zeros(DIM))
    loud.injection(t)
    loud.observe(t, release + others, divisor=divisor, others=others)
  a, b = (x.record().cosines['residual'] for x in (quiet, loud))
  np.testing.assert_allclose(a, b, atol=1e-5)


def test_an_audit_goes_on_from_its_file_to_the_same_record(tmp_path):
  path = tmp_path / 'audit.npz'
  whole, part = make_auditor(), make_auditor()
  observe_rounds(whole, range(ROUNDS))
  observe_rounds(part, range(5))
  part.save(path)
  resumed = epe_jax.Auditor.load(path)
  assert resumed.num_rounds_observed == 5
  observe_rounds(resumed, range(5, ROUNDS))
  assert_records_equal(resumed.record(), whole.record())


def test_what_was_requested_before_a_file_was_written_counts_after_it_is_read(
  tmp_path,
):
  whole, part = make_auditor(), make_auditor()
  ids = whole.canary_ids(0).tolist()
  release = whole.injection(0, clip_norm=6.0).update
  whole.observe(0, release, divisor=10)
  part.injection(0, clip_norm=6.0)
  part.save(tmp_path / 'audit.npz')
  resumed = epe_jax.Auditor.load(tmp_path / 'audit.npz')
  resumed.observe(0, release, divisor=10)
  assert np.flatnonzero(resumed.record().included[0]).tolist() == ids
  assert_records_equal(resumed.record(), whole.record())


@pytest.mark.usefixtures('no_floors')
@pytest.mark.parametrize('noise_multiplier', [None, 0.0, 0.5])
@pytest.mark.parametrize('server_momentum', [None, 0.0, 0.9])
@pytest.mark.parametrize('design', ['fixed', 'coin_flip'])
def test_every_claim_can_be_evaluated_with_the_final_model(
  noise_multiplier, server_momentum, design
):
  auditor = make_auditor(
    noise_multiplier=noise_multiplier,
    server_momentum=server_momentum,
    design=design,
    repetitions=2,
  )
  model = np.zeros(DIM)
  for t in range(ROUNDS):
    release, divisor = make_release(auditor, t)
    auditor.observe(t, release, divisor=divisor)
    model += release
  auditor.observe_final(model, initial=np.zeros(DIM))
  attacks = {a.threat_model.key: a for a in auditor.evaluate().attacks}
  assert {'own_round', 'change', 'final'} <= attacks.keys()
  for attack in attacks.values():
    # Nothing is claimed, and so nothing is allowed.
    assert (attack.analytic is None) == (noise_multiplier is None)
    assert not np.isnan(attack.first.epsilon)


def test_a_file_of_something_else_is_refused(tmp_path):
  path, auditor = tmp_path / 'audit.npz', make_auditor()
  auditor.save(path)
  arrays = io.read_arrays(path)
  config = str(arrays['config']).replace('0.5', '-5.0')
  for changed in (
    {**arrays, 'config': config},
    {n: x for n, x in arrays.items() if n != 'key'},
  ):
    io.write_arrays(path, changed)
    with pytest.raises(ValueError, match=r'or damaged \(.*`Auditor\.save` wr'):
      epe_jax.Auditor.load(path)


def test_the_file_is_for_its_owner_alone_and_needs_no_pickle(tmp_path):
  path = tmp_path / 'audit.npz'
  make_auditor().save(path)
  assert stat.S_IMODE(path.stat().st_mode) == 0o600
  with np.load(path, allow_pickle=False) as arrays:
    assert {'key', 'planned'} <= set(arrays)


@pytest.mark.usefixtures('no_floors')
def test_notes_are_kept_and_printed(tmp_path):
  auditor = make_auditor()
  observe_rounds(auditor, range(ROUNDS))
  first = Fact('settings_read', {'source': 'a', 'clip_norm': 1.0})
  for clip_norm in (3.0, 2.0):
    values = {'source': 'b', 'clip_norm': clip_norm}
    auditor.add_note(Fact('settings_read', values))
  auditor.add_note(first)
  assert [x.values['clip_norm'] for x in auditor.notes] == [2.0, 1.0]
  path = tmp_path / 'audit.npz'
  auditor.save(path)
  loaded = epe_jax.Auditor.load(path)
  assert loaded.notes == auditor.notes
  for text in (auditor.report(), loaded.report()):
    assert '- Note: read from the b: clip norm 2.\n' in text
    assert text.endswith('- Note: read from the a: clip norm 1.')


@pytest.mark.parametrize(
  ('model', 'message'),
  [
    (
      {'w': 4900, 'bn.running_mean': 50, 'bn.running_var': 50, 'b': 100},
      r"difference is .*mean'\] \(50\), .*var'\] \(50\)\..*dim counts every",
    ),
    (
      {'w': 7, 'b': 5},
      r"Its arrays begin with like\['b'\] \(5\), like\['w'\] \(7\)",
    ),
  ],
)
def test_arrays_that_are_the_difference_are_named(model, message):
  like = {name: np.zeros(size) for name, size in model.items()}
  with pytest.raises(ValueError, match=message):
    make_auditor().injection(0, like=like)


def test_canaries_are_new_each_time_unless_of_a_simulation():
  assert make_auditor(seed=3).canary_key == make_auditor(seed=3).canary_key
  a, b = (epe_jax.Auditor(make_config()) for _ in range(2))
  assert a.canary_key != b.canary_key


def test_nothing_printed_tells_the_key():
  auditor = make_auditor()
  observe_rounds(auditor, range(ROUNDS))
  text = repr(auditor) + auditor.report()
  assert not any(str(int(word)) in text for word in auditor.canary_key)


def test_a_round_that_failed_leaves_its_canaries_out():
  auditor = make_auditor()
  lost = auditor.canary_ids(4)
  observe_rounds(auditor, [t for t in range(ROUNDS) if t != 4])
  record = auditor.record()
  assert record.num_rounds == ROUNDS - 1
  assert not record.observed[lost].any()
  assert record.observed.sum() == 60 - len(lost)


def test_a_canary_that_dropped_out_took_no_part():
  auditor = make_auditor()
  for t in range(ROUNDS):
    ids = auditor.canary_ids(t)
    release, divisor = make_release(auditor, t)
    auditor.observe(t, release, divisor=divisor, included=ids[1:])
  assert auditor.record().observed.sum() == 60 - ROUNDS


@pytest.mark.integration
@pytest.mark.usefixtures('no_floors')
def test_canaries_that_miss_some_of_their_rounds_are_counted(tmp_path):
  auditor = make_auditor(repetitions=2)
  for t in range(ROUNDS):
    ids = auditor.canary_ids(t)
    release, divisor = make_release(auditor, t)
    auditor.observe(t, release, divisor=divisor, included=ids[t % 2 :])
  values = {'num': 114, 'planned': 120, 'fewest': 1, 'most': 2}
  write_record(tmp_path / 'scores.npz', auditor.record())
  for record in (auditor.record(), load_record(tmp_path / 'scores.npz')):
    for attack in audit.evaluate(record).attacks:
      assert Fact('rounds_missed', values) in attack.notes
  text = ' '.join(auditor.report().split())
  assert '114 of 120 assigned participations of canaries took place' in text
  assert 'and the limit, of 2 rounds, above what others allow' in text
  limit = accounting.epsilon_of_releases(0.5, delta=1e-3, participations=2)
  assert f' ≤ {cells.format_number(limit.epsilon)}' in text
  observed = make_auditor(repetitions=2)
  observe_rounds(observed, range(ROUNDS))
  assert 'assigned participations' not in observed.report()


def test_the_order_of_rounds_does_not_matter():
  forth, back = make_auditor(), make_auditor()
  observe_rounds(forth, range(ROUNDS))
  observe_rounds(back, reversed(range(ROUNDS)))
  assert_records_equal(forth.record(), back.record())


def test_a_clip_norm_that_adapts_scales_the_injection():
  auditor = make_auditor()
  plain, larger = (
    auditor.injection(0).update,
    auditor.injection(0, clip_norm=6.0).update,
  )
  np.testing.assert_allclose(larger, 3 * plain, rtol=1e-6)
  auditor.observe(0, larger / 5, divisor=5)
  assert auditor.record().rounds.canary_norm[0] == pytest.approx(6.0 / 5)


def test_an_injection_is_the_sum_of_its_canaries():
  auditor = make_auditor(repetitions=3)
  injection = auditor.injection(1)
  assert injection.count == len(injection.ids) > 1
  parts = [auditor.canary_update(int(j)) for j in injection.ids]
  np.testing.assert_allclose(injection.update, sum(parts), atol=1e-6)
  for part in parts:
    assert np.linalg.norm(part) == pytest.approx(2.0, rel=1e-5)


def add_securely(messages, rng, *, step=2.0**-16):
  """A sum of which nobody sees a part: integers under masks that cancel."""
  masks = rng.integers(2**32, size=(len(messages), DIM), dtype=np.uint32)
  grid = np.rint(np.array(messages) / step).astype(np.int64).astype(np.uint32)
  # Each mask is added by one client and subtracted by the next.
  sent = grid + masks - np.roll(masks, 1, axis=0)
  assert len(np.unique(sent[0])) > 0.99 * DIM
  return sent.sum(axis=0, dtype=np.uint32).astype(np.int32) * step


@pytest.mark.parametrize('num_dropped', [0, 2])
def test_canary_clients_are_seen_through_secure_aggregation(num_dropped):
  auditor = make_auditor(num_observed=240, num_unobserved=240)
  for t in range(ROUNDS):
    rng, ids = np.random.default_rng(t), auditor.canary_ids(t).tolist()
    clients = [auditor.canary_update(j) for j in ids]
    arrived = (clients + [np.zeros(DIM)] * CLIENTS)[num_dropped:]
    total = add_securely(arrived, rng) + rng.normal(0, 0.5 * 2.0, DIM)
    auditor.observe(
      t,
      total / len(arrived),
      divisor=len(arrived),
      included=ids[num_dropped:],
    )
  assert auditor.record().observed.sum() == 240 - num_dropped * ROUNDS
  laws.assert_claim_is_met(auditor)


def test_only_canaries_that_are_included_are_in_the_sum():
  auditor = make_auditor()
  first, *_ = auditor.canary_ids(0).tolist()
  update = auditor.canary_update(
    first, like=[np.zeros((50, 100))], clip_norm=6.0
  )
  assert np.linalg.norm(update[0]) == pytest.approx(6.0, rel=1e-5)
  auditor.observe(0, update, divisor=3, included=[first], clip_norm=6.0)
  record = auditor.record()
  assert np.flatnonzero(record.included[0]) == [first]
  assert record.rounds.canary_norm[0] == pytest.approx(2.0)


def test_an_injection_has_the_structure_of_a_model():
  auditor = make_auditor()
  flat = auditor.injection(2).update
  model = {'b': np.zeros(1000), 'a': [np.zeros((40, 100), np.float32)]}
  shaped = auditor.injection(2, like=model).update
  np.testing.assert_array_equal(
    np.concatenate([shaped['a'][0].ravel(), shaped['b']]), flat
  )
  buffers = {'b': np.ones(1000), 'a': [np.ones((40, 100), np.float32)]}
  assert auditor.add_injection(2, buffers) == len(auditor.canary_ids(2))
  np.testing.assert_allclose(buffers['b'], 1 + shaped['b'], atol=1e-6)
  auditor.observe(2, buffers, divisor=1.0)


def test_by_coins_half_of_the_canaries_take_part_and_have_bounds_from_one_run():
  auditor = make_auditor(
    design='coin_flip', num_observed=300, num_unobserved=100
  )
  observe_rounds(auditor, range(ROUNDS))
  record = auditor.record()
  np.testing.assert_array_equal(record.assigned.sum(axis=0), np.ones(400))
  assert 150 < record.observed.sum() < 250
  attacks = audit.evaluate(record, threat_models=[attackers.OWN], floors=False)
  methods = {e.method for e in attacks.attacks[0].estimates}
  assert any(method.startswith('one_run') for method in methods)


def test_coins_of_rounds_that_were_never_made_are_not_counted():
  auditor = make_auditor(design='coin_flip', num_observed=400, num_unobserved=0)
  observe_rounds(auditor, range(3))
  record = auditor.record()
  # Of 400 canaries in 12 rounds, those of three, and of them about half.
  num = auditor._state.assigned[:3].sum()
  assert 90 < num < 110
  assert record.observed.size == num
  np.testing.assert_array_equal(
    record.included.sum(axis=0), record.observed.astype(int)
  )
  assert 25 < record.observed.sum() < 75
  assert all(x.shape[-1] == num for x in record.cosines.values())


def test_coins_of_which_none_had_a_round_are_an_error():
  auditor = make_auditor(design='coin_flip', num_observed=1, num_unobserved=1)
  (empty,) = np.flatnonzero(~auditor._state.assigned.any(axis=1))[:1]
  observe_rounds(auditor, [int(empty)])
  with pytest.raises(ValueError, match='none of the 2 canaries'):
    auditor.record()


def test_what_a_server_optimizer_changes_is_not_calibrated():
  auditor = make_auditor(view='server_update', server_momentum=None)
  for t in range(ROUNDS):
    release, divisor = make_release(auditor, t)
    auditor.observe(t, release, divisor=divisor)
  assert auditor.record().view == 'server_update'
  assert 'uncalibrated' in auditor.report()


def test_a_release_of_zeros_tells_nothing():
  auditor = make_auditor()
  auditor.injection(0)
  auditor.observe(0, np.zeros(DIM), divisor=1.0)
  assert not auditor.record().trace.any()


@pytest.mark.usefixtures('types_unchecked')
def test_scalars_of_other_libraries_are_numbers_of_python_in_the_file(tmp_path):
  config = make_config(
    dim=np.int64(DIM), clip_norm=np.float32(0.5), delta=np.float64(1e-4)
  )
  auditor, path = epe_jax.Auditor(config, seed=0), tmp_path / 'audit.npz'
  auditor.save(path)
  assert epe_jax.Auditor.load(path).config == config
  assert type(config.dim) is int
  assert type(config.clip_norm) is float


@pytest.mark.usefixtures('types_unchecked')
@pytest.mark.parametrize(
  ('change', 'match'),
  [
    ({'dim': 1}, r'dim=1; give an integer in \[2, '),
    ({'clip_norm': 0.0}, r'clip_norm=0\.0; give a number in \[1e-10'),
    ({'delta': 'x'}, r"delta='x'; give a number in \(0, 1\)"),
    ({'noise_multiplier': -1.0}, r'noise_multiplier=-1\.0'),
    ({'num_observed': 0}, r'num_observed=0'),
    ({'repetitions': 13}, r'repetitions=13'),
    ({'server_momentum': 1.0}, r'server_momentum=1\.0'),
    ({'family': 'cube'}, r"family='cube'"),
  ],
)
def test_settings_out_of_range_are_named(change, match):
  with pytest.raises(ValueError, match=match):
    make_config(**change)


def inject_and_observe(auditor, release, like=None, **options):
  auditor.injection(0, like=like)
  auditor.observe(0, release, **{'divisor': 1.0, **options})


def observe_without_others(auditor):
  observe_rounds(auditor, [0])
  auditor.injection(1)
  auditor.observe(1, np.ones(DIM), divisor=1.0)


ONES = np.ones(DIM)
MISUSE = [
  (lambda a: a.record(), r'no round was observed yet'),
  (lambda a: a.injection(ROUNDS), r'round 12 is none of the 12 rounds'),
  (
    lambda a: a.injection(0, like=[ONES[:7]]),
    r'like has 7 numbers, but dim=5,',
  ),
  (
    lambda a: a.injection(0, clip_norm=0.0),
    r'clip_norm=0\.0; give a number in',
  ),
  (
    lambda a: a.add_injection(0, [0.0] * DIM),
    r'out\[0\] is a float and no array',
  ),
  (lambda a: a.canary_update(120), r'canary=120 is none of the 120, from 0'),
  (lambda a: a.observe(0, ONES, divisor=1.0), r'injection was never asked'),
  (lambda a: observe_rounds(a, [0, 0]), r'round 0 was observed already'),
  (observe_without_others, r"before it \['aggregate', 'residual'\]; give the"),
  (lambda a: inject_and_observe(a, [ONES[:3]]), r'release has 3 numbers, but'),
  (lambda a: inject_and_observe(a, np.nan * ONES), r'round 0 .*not finite'),
  (lambda a: inject_and_observe(a, ONES, divisor=0.0), r'divisor=0\.0; give a'),
  (
    lambda a: inject_and_observe(
      a, [ONES.reshape(100, 50)], like=[ONES.reshape(50, 100)]
    ),
    r'release has the shapes \[\(100, 50\)\], but',
  ),
  (
    lambda a: inject_and_observe(a, ONES, included=a.planned[0]),
    r'give the numbers of canaries, each once',
  ),
  (
    lambda a: inject_and_observe(a, ONES, included=2 * [a.canary_ids(0)[0]]),
    r'give the numbers of canaries, each once',
  ),
  (
    lambda a: inject_and_observe(a, ONES, included=a.canary_ids(1)),
    r'not among the canaries of round 0',
  ),
]


@pytest.mark.parametrize(('misuse', 'match'), MISUSE)
def test_misuse_is_named(misuse, match):
  with pytest.raises(ValueError, match=match):
    misuse(make_auditor())


def test_a_call_that_failed_changes_nothing():
  auditor = make_auditor()
  with pytest.raises(ValueError, match='like has 7 numbers'):
    auditor.injection(0, like=[np.zeros(7)])
  with pytest.raises(ValueError, match='divisor=0'):
    auditor.observe(0, ONES, divisor=0.0, clip_norm=1.0, included=[])
  with pytest.raises(ValueError, match='injection was never asked'):
    auditor.observe(0, ONES, divisor=1.0)


def test_who_takes_part_is_drawn_from_all_canaries():
  observed = make_auditor().planned.any(axis=0)
  assert observed.sum() == 60
  # Of a draw of 60 of 120, the first half has all with a probability of 1e-35.
  assert 0 < observed[:60].sum() < 60


@pytest.mark.integration
def test_rows_that_are_cut_off_do_not_bias_what_the_model_shows():
  # 4,096 + 904 columns: rows have much in common in the cut part.
  epsilons = []
  for seed in range(8):
    auditor = make_auditor(
      seed, noise_multiplier=2.0, num_observed=500, num_unobserved=500
    )
    model, rng = np.zeros(DIM), np.random.default_rng(seed)
    for t in range(ROUNDS):
      injection = auditor.injection(t)
      divisor = CLIENTS + injection.count
      noise = rng.normal(0, 4.0, DIM)
      release = (injection.update + noise) / divisor
      auditor.observe(t, release, divisor=divisor)
      model += release
    auditor.observe_final(model, initial=np.zeros(DIM))
    attack = audit.evaluate(auditor.record(), floors=False).find(
      attackers.CHANGE
    )
    epsilons.append(attack.first.epsilon)
  # Of 12 rounds in one, and of the canaries of all.
  expected = attack.analytic.epsilon
  error = np.std(epsilons, ddof=1) / np.sqrt(len(epsilons))
  assert abs(np.mean(epsilons) - expected) < 4 * error
  assert error < 0.2 * expected


def test_clients_that_drop_out_are_refused_where_coins_decide():
  auditor = make_auditor(design='coin_flip', num_unobserved=0)
  release, divisor = make_release(auditor, 0)
  with pytest.raises(ValueError, match=r"set design='fixed'"):
    auditor.observe(
      0, release, divisor=divisor, included=auditor.canary_ids(0)[1:]
    )
