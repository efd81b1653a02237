"""Jobs of Ray, whatever their errors say; without Ray."""

import types

import pytest

from epe_jax.experiment import launchers


class RayError(Exception):
  """As Ray's: that of a task cancelled before it starts has no text."""


@pytest.mark.parametrize(
  ('error', 'says'),
  [(RayError(), 'Ray: RayError'), (RayError('at\nnode died\n'), 'node died')],
)
def test_a_job_that_ends_with_an_error_is_lost_and_says_why(
  error, says, monkeypatch
):
  def get(reference):
    raise error

  told = []
  warn = lambda text, *values: told.append(text % values)
  monkeypatch.setattr(launchers.logging, 'warning', warn)
  ray = types.SimpleNamespace(
    wait=lambda references, timeout: (references, []),
    get=get,
    exceptions=types.SimpleNamespace(RayError=RayError),
  )
  assert launchers._RayJob(ray, 'task').poll() == launchers.LOST
  (text,) = told
  assert says in text
