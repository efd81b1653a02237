"""The time of training: its arithmetic, its floors, and what was measured."""

import jax
from peers import works
import pytest

from epe_jax.planning import devices, flops, measurements, training_costs
from epe_jax.planning.training_costs import Training
from epe_jax.tasks import emnist, stackoverflow

FLOPS = {'emnist': works.cnn_flops(), 'stackoverflow': works.lstm_flops()}
EMNIST = Training('emnist', 500, 101, 197.5, 16, 1_206_590, FLOPS['emnist'])


def example(**columns):
  return {k: jax.ShapeDtypeStruct(*x) for k, x in columns.items()}


@pytest.mark.parametrize(
  ('task', 'columns', 'expected'),
  [
    (
      emnist.task(),
      example(pixels=((28, 28), 'float32'), label=((), 'int32')),
      (1_206_590, FLOPS['emnist']),
    ),
    (
      stackoverflow.task(),
      example(words=((20,), 'int16')),
      (4_050_748, FLOPS['stackoverflow']),
    ),
  ],
)
def test_the_flops_of_a_program_are_those_of_the_textbook(
  task, columns, expected
):
  dim, textbook = expected
  assert flops.count_parameters(task) == dim
  counted = flops.count_flops(task, columns, batch_size=16)
  # A few products more, such as those of biases.
  assert textbook <= counted < 1.01 * textbook


def test_a_floor_is_of_what_takes_longer():
  sheet = devices.H200
  assert devices.floor_seconds(sheet.float32, 1.0, sheet) == 1
  assert devices.floor_seconds(sheet.bfloat16, 1.0, sheet, 'bfloat16') == 1
  assert devices.floor_seconds(1.0, 3 * sheet.bandwidth, sheet) == 3


@pytest.mark.parametrize('device', ['cpu', *devices.SHEETS])
def test_a_floor_is_proportional_to_clients_and_to_their_examples(device):
  sheet = training_costs.choose_sheet(device)
  once = training_costs.compute_floor(EMNIST, sheet)
  for twice in (
    EMNIST._replace(clients=2 * EMNIST.clients),
    EMNIST._replace(examples=2 * EMNIST.examples),
  ):
    assert training_costs.compute_floor(twice, sheet) == pytest.approx(2 * once)


def test_nothing_measured_is_faster_than_its_floor():
  for x in measurements.load_measurements().rounds:
    training = Training(
      x.task, 1, 1, x.examples, x.batch_size, x.dim, FLOPS[x.task], x.precision
    )
    floor = training_costs.compute_floor(
      training, training_costs.choose_sheet(x.device)
    )
    assert floor < x.examples * x.seconds_per_example, x.file


def test_a_measurement_is_of_the_same_model_batches_and_device():
  found = training_costs.find_measured(EMNIST, 'cpu')
  assert found is not None
  # Of two that fit, that whose clients have more examples.
  assert found.examples == 175
  other_classes = EMNIST._replace(dim=1_199_882)
  assert training_costs.find_measured(other_classes, 'cpu') == found
  for changed in (
    EMNIST._replace(task='stackoverflow'),
    EMNIST._replace(dim=55_210),
    EMNIST._replace(batch_size=8),
    EMNIST._replace(precision='bfloat16'),
    EMNIST._replace(examples=16),
  ):
    assert training_costs.find_measured(changed, 'cpu') is None
