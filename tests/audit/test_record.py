"""Files of records: what cannot be so is called damaged."""

import numpy as np
import pytest

from epe_jax import io
from epe_jax.audit.record import respond_at_end, respond_to_rounds
from epe_jax.audit.record_file import load_record, write_record
from tests import recorded_runs


@pytest.fixture(scope='module')
def arrays(tmp_path_factory):
  path = tmp_path_factory.mktemp('record') / 'scores.npz'
  write_record(path, recorded_runs.by_vectors(momentum=0.9).record)
  return io.read_arrays(path)


@pytest.mark.parametrize(
  ('name', 'change', 'message'),
  [
    ('periods', lambda x: np.int64(0), r'periods=0 is out of range'),
    ('dim', lambda x: x // 10, r'rounds_effective_dimension has numbers > dim'),
    ('rounds_canary_norm', lambda x: x * 1e30, 'rounds_noise_std is not noise'),
    ('weight', lambda x: x * 2, 'weight is not what momentum keeps'),
    ('rounds_clip_norm', lambda x: x[:-1], r'rounds_clip_norm has shape'),
    ('cosines_final', lambda x: x * np.inf, r'cosines_final has numbers'),
  ],
)
def test_a_file_that_was_changed_by_hand_is_called_damaged(
  arrays, tmp_path, name, change, message
):
  path = tmp_path / 'scores.npz'
  io.write_arrays(path, {**arrays, name: np.asarray(change(arrays[name]))})
  with pytest.raises(ValueError, match=f'is damaged: {message}'):
    load_record(path)


def test_what_was_written_is_read(arrays, tmp_path):
  path = tmp_path / 'scores.npz'
  io.write_arrays(path, arrays)
  record = load_record(path)
  np.testing.assert_array_equal(record.trace, arrays['cosines_aggregate'])


@pytest.mark.parametrize(
  ('ring', 'is_possible'),
  [
    ((4233.0, 4355.0, 1024.0, 0.0, 0.0), True),
    ((4233.0, 4355.0, 1024.0, 6.0, 1.0), True),
    ((0.0, 4355.0, 1024.0, 0.0, 0.0), False),
    ((4233.0, 4355.0, 1024.0, -1.0, 0.0), False),
  ],
)
def test_a_ring_has_noise_length_and_size(arrays, tmp_path, ring, is_possible):
  path = tmp_path / 'scores.npz'
  io.write_arrays(path, {**arrays, 'ring': np.asarray(ring)})
  if is_possible:
    assert tuple(load_record(path).ring) == ring
  else:
    with pytest.raises(ValueError, match=r'ring=.* is out of range'):
      load_record(path)


def test_the_response_is_what_the_server_makes_of_an_impulse():
  for momentum in (0.0, 0.7):
    for s in range(5):
      update = theta = 0.0
      path = [theta]
      for t in range(5):
        update = momentum * update + (t == s)
        theta += update
        path.append(theta)
      np.testing.assert_allclose(
        respond_to_rounds(5, momentum=momentum)[:, s],
        path,
        atol=1e-12,
      )
    np.testing.assert_array_equal(
      respond_to_rounds(5, momentum=momentum)[-1],
      respond_at_end(5, momentum=momentum),
    )
