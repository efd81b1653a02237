"""Digests of the data, files, observers and random bits with which a run resumes."""

from collections.abc import Mapping
import hashlib
import pathlib

import jax

from epe_jax import io
from epe_jax.data import federated
from epe_jax.experiment import workdirs
from epe_jax.experiment.setup import build, randomness
from epe_jax.experiment.setup.config import Config
from epe_jax.types import PyTree

# Settings of JAX that change the numbers of a program. A version counts only by its
# random bits: it may round in another way, and so may another device.
_SETTINGS = (
  'jax_default_matmul_precision',
  'jax_default_prng_impl',
  'jax_threefry_partitionable',
)


def write_inputs(
  config: Config,
  files: workdirs.Workdir,
  setup: build.Setup,
  secret: bytes | None,
) -> str:
  """Writes what a run begins with, or checks that it resumes with the same.

  Args:
    files: its workdir. config.json is written last, and training begins with
      it.
    secret: the secret of the run, None for a simulation.

  Returns:
    A digest of everything that decides the run, as it began.

  Raises:
    ValueError: the run has begun with other data, files or observers, another
      secret or other settings of JAX.
    FileNotFoundError: what it has begun with is not known any more.
  """
  digests = compute_digests(
    config, setup.train, setup.test, observers=setup.state.observers
  )
  digests |= {name: str(jax.config.values[name]) for name in _SETTINGS}
  digests['what JAX and NumPy draw'] = randomness.fingerprint_generators()
  if secret is not None:
    digests['private/secret'] = randomness.fingerprint_secret(secret)
  if files.config.exists() and workdirs.has_begun(files):
    before = io.read_fields(files.inputs)
    changed = [
      name
      for name in sorted(before.keys() | digests.keys())
      if before.get(name) != digests.get(name)
    ]
    if changed:
      raise ValueError(
        f'{", ".join(changed)} changed since this run began, by the digests in '
        f'{files.inputs}. Resume with what the run began with, or start again in '
        'another --workdir.'
      )
  else:
    if secret is not None:
      io.write_atomically(files.secret, lambda f: f.write(secret), private=True)
    io.write_json(files.inputs, digests, private=True)
    io.write_json(files.config, config.to_dict())
  return _hash(files.inputs.read_bytes() + files.config.read_bytes())


def compute_digests(
  config: Config,
  train: federated.FederatedData,
  test: federated.FederatedData,
  *,
  observers: Mapping[str, PyTree],
) -> dict[str, str]:
  """Computes a digest of each input of a run, by its name, such as 'the test data'.

  The digest of data is that of the imported columns, whatever the file, its name
  and its time are: a file of the same content is the same input. The digest of an
  observer is that of the shapes of its state: it detects an observer whose state
  would not fit a checkpoint, but not one that computes something else in the same
  arrays.
  """
  digests = {
    'the training data': federated.compute_digest(train),
    'the test data': federated.compute_digest(test),
  }
  log = config.participation.kind == 'log' and config.participation.log
  # Small files, whose contents are hashed if the config uses them.
  for name, path in {
    'data.word_count': config.data.get('word_count'),
    'participation.log': log,
  }.items():
    if path:
      digests[name] = _hash(pathlib.Path(path).read_bytes())
  for name, state in observers.items():
    arrays = [
      (jax.tree_util.keystr(path), x.shape, str(x.dtype))
      for path, x in jax.tree_util.tree_leaves_with_path(state)
    ]
    digests[f'observer {name!r}'] = _hash(repr(arrays).encode())
  return digests


def _hash(content: bytes) -> str:
  return hashlib.sha256(content).hexdigest()
