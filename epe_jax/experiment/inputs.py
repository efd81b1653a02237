"""Digests of what a run reads: one that goes on has to find the same."""

from collections.abc import Mapping
import hashlib
import pathlib
from typing import Any

from epe_jax import io
from epe_jax.data import federated
from epe_jax.experiment import workloads

# Small files, whose contents are read.
_FILES = {
  'data.word_count': lambda config: config.data.get('word_count'),
  'participation.log': lambda config: config.participation.log,
  'canaries.matrix': lambda config: config.canaries.matrix,
}


def compute_digests(
  config: workloads.Config,
  train: federated.FederatedData,
  test: federated.FederatedData,
) -> dict[str, str]:
  """Name of an input -> a digest of what is in it.

  Of data it is taken from what was imported, whatever the file, its name and
  its time are: a file of the same content is the same input.

  Args:
    config: every field set.
    train: the clients that train.
    test: what is evaluated on.
  """
  found = {
    'the training data': federated.compute_digest(train),
    'the test data': federated.compute_digest(test),
  }
  for name, field in _FILES.items():
    if path := field(config):
      content = pathlib.Path(path).read_bytes()
      found[name] = hashlib.sha256(content).hexdigest()
  return found


def check_digests(path: pathlib.Path, now: Mapping[str, str]) -> None:
  """Raises a ValueError unless a run goes on with what it began with.

  Args:
    path: of what `compute_digests` gave when the run began.
    now: what it gives today.
  """
  if not path.exists():
    raise ValueError(
      f'{path} is missing, so nobody knows whether this run would go on with '
      'the data that it began with; it is damaged, or of another version of '
      'epe_jax. Begin anew in another --workdir.'
    )
  before: dict[str, Any] = io.read_json(path)
  changed = [
    name
    for name in sorted(before.keys() | now.keys())
    if before.get(name) != now.get(name)
  ]
  if changed:
    raise ValueError(
      f'{", ".join(changed)} changed since this run began, by the digests in '
      f'{path}. Restore what it began with, or begin anew in another --workdir.'
    )
