"""Jobs of Ray, whatever their errors say; without Ray."""

import types

import pytest

from epe_jax.experiment import launchers


class RayError(Exception):
  """As Ray's: that of a task cancelled before it starts has no text."""


class RayTaskError(RayError):
  """As Ray's: what a task raised."""


@pytest.mark.parametrize(
  ('error', 'says', 'code'),
  [
    (RayError(), 'Ray: RayError', launchers.LOST),
    (RayError('at\nnode died\n'), 'node died', launchers.LOST),
    (RayTaskError("in task\nNo module 'epe_jax'"), "No module 'epe_jax'", 1),
  ],
)
def test_a_job_that_ends_with_an_error_says_why_in_the_log_of_its_point(
  error, says, code, tmp_path
):
  def get(reference):
    raise error

  ray = types.SimpleNamespace(
    wait=lambda references, timeout: (references, []),
    get=get,
    exceptions=types.SimpleNamespace(
      RayError=RayError, RayTaskError=RayTaskError
    ),
  )
  log = tmp_path / 'point.log'
  assert launchers._RayJob(ray, 'task', log).poll() == code
  assert says in log.read_text()
