"""What a run will cost: laws of the arithmetic, and the norms it stands on."""

import math

import pytest
from studies import costs

from epe_jax.planning import devices

JOB = costs.Job(
  clients=1000, dim=10**9, canaries=2000, rounds=100, positions=50
)
DEVICE = costs.best_device(devices.H200)


def plan(devices=16, **changes):
  return costs.plan_round(JOB._replace(**changes), DEVICE, devices)


def test_training_is_proportional_to_clients_positions_and_parameters():
  for name in ('clients', 'positions', 'dim'):
    double = plan(**{name: 2 * getattr(JOB, name)})
    assert double.training == pytest.approx(2 * plan().training)
    assert double.flops == pytest.approx(2 * plan().flops)


def test_a_sphere_look_is_proportional_to_canaries_and_a_hadamard_look_to_groups():
  one, two, three = (
    plan(canaries=k).scoring for k in (2000, 4096, 4097)
  )  # fmt: skip
  assert two['sphere'] == pytest.approx(4096 / 2000 * one['sphere'])
  assert two['hadamard'] == one['hadamard']
  assert three['hadamard'] == pytest.approx(2 * two['hadamard'])
  for family in ('sphere', 'hadamard'):
    double = plan(dim=2 * JOB.dim).scoring[family]
    assert double == pytest.approx(2 * one[family])


def test_devices_share_all_work_but_not_the_trace():
  few, many = plan(devices=16), plan(devices=32)
  for name in ('training', 'serving'):
    assert getattr(few, name) == pytest.approx(2 * getattr(many, name))
  assert few.scoring['sphere'] == pytest.approx(2 * many.scoring['sphere'])
  assert few.audit_bytes['hadamard'] == many.audit_bytes['hadamard']
  trace = 4 * JOB.canaries * JOB.rounds
  vector = few.audit_bytes['sphere'] - trace
  assert vector == pytest.approx(4 * JOB.dim / 16)
  assert vector == pytest.approx(2 * (many.audit_bytes['sphere'] - trace))


def test_rounds_looked_at_together_trade_time_for_memory():
  one, ten = plan(), plan(buffer=10)
  assert one.scoring['sphere'] == pytest.approx(10 * ten.scoring['sphere'])
  trace = 4 * JOB.canaries * JOB.rounds
  kept = [p.audit_bytes['sphere'] - trace for p in (one, ten)]
  assert kept[1] == pytest.approx(10 * kept[0])
  assert one.scoring['hadamard'] == ten.scoring['hadamard']


def test_the_share_of_an_audit_falls_as_clients_are_added():
  shares = [
    plan(clients=m).scoring['sphere'] / plan(clients=m).seconds
    for m in (10, 100, 1000)
  ]
  assert shares == sorted(shares, reverse=True)


def test_a_copy_lies_on_as_few_devices_as_hold_it_in_half_of_their_memory():
  for dim in (10**6, 10**10, 10**11):
    found = plan(devices=1024, dim=dim)
    share = found.model_devices
    assert share & (share - 1) == 0
    assert found.vector_bytes <= DEVICE.memory / 2
    assert share == 1 or 2 * found.vector_bytes > DEVICE.memory / 2
  with pytest.raises(ValueError, match=r'dim=10,000,000,000.*more devices'):
    plan(devices=2, dim=10**10)


def test_a_single_copy_has_nothing_to_add_up():
  assert plan(devices=1).reducing == 0
  assert plan(devices=2).reduced_bytes == pytest.approx(4 * JOB.dim)


@pytest.mark.parametrize(
  'changes', [{'clients': 0}, {'rounds': 0}, {'positions': -1.0}]
)
def test_sizes_out_of_range_are_refused(changes):
  with pytest.raises(ValueError, match='give positive numbers'):
    plan(**changes)
  with pytest.raises(ValueError, match='devices=0'):
    plan(devices=0)


def test_nothing_measured_could_beat_a_device_at_its_best():
  # A normal needs more than the bytes of it would, were it stored.
  assert DEVICE.normals < devices.H200.bandwidth / 4
  assert DEVICE.fold_seconds < DEVICE.server_seconds


@pytest.mark.parametrize('alignment', [0.0, 0.25, 1.0])
def test_the_noise_of_a_round_is_that_of_the_norm_of_its_sum(alignment):
  m, dim, z, bound = 50, 2000, 0.3, 0.7
  # |Σ x_i|² of m vectors of norm S whose inner products are a S².
  squared = bound**2 * (m + m * (m - 1) * alignment)
  # In a random direction the sum of updates is noise of std |Σ x_i| / √d.
  law = math.sqrt(z**2 + squared / bound**2 / dim)
  found = costs.effective_noise(z, clients=m, dim=dim, alignment=alignment)
  assert found == pytest.approx(law)


def test_an_alignment_that_is_no_mean_cosine_is_refused():
  with pytest.raises(ValueError, match=r'alignment=1\.5'):
    costs.effective_noise(1.0, clients=2, dim=2, alignment=1.5)
