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
  ('name', 'change'),
  [
    ('rounds_clip_norm', lambda x: x[:-1]),
    ('cosines_final', lambda x: x[1:]),
    ('assigned', lambda x: x[:-1]),
    ('included', lambda x: x[0]),
    ('dim', lambda x: np.asarray('many')),
  ],
)
def test_a_file_whose_arrays_are_not_of_one_run_is_called_damaged(
  arrays, tmp_path, name, change
):
  path = tmp_path / 'scores.npz'
  io.write_arrays(path, {**arrays, name: change(arrays[name])})
  with pytest.raises(ValueError, match=f'{path} is damaged: '):
    load_record(path)


def test_what_was_written_is_read(arrays, tmp_path):
  path = tmp_path / 'scores.npz'
  io.write_arrays(path, arrays)
  record = load_record(path)
  np.testing.assert_array_equal(record.trace, arrays['cosines_aggregate'])


def test_a_ring_is_read_as_it_was_written(arrays, tmp_path):
  path, ring = tmp_path / 'scores.npz', (4233.0, 4355.0, 1024.0, 6.0, 1.0)
  io.write_arrays(path, {**arrays, 'ring': np.asarray(ring)})
  assert tuple(load_record(path).ring) == ring


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
