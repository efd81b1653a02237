"""The file of an auditor, from which an audit goes on where training does."""

import dataclasses
import json
import os
from typing import NamedTuple

from jaxtyping import Bool, Float, UInt32
import numpy as np

from epe_jax import io
from epe_jax.audit.audit_config import AuditConfig
from epe_jax.audit.round_scalars import RoundScalars

_SCHEMA = 1
_COSINES, _ROUNDS = 'cosines_', 'rounds_'


class AuditorState(NamedTuple):
  """All that an auditor keeps.

  Attributes:
    config: of the audit.
    key: the two words of the canary key.
    assigned: rounds that canaries are assigned.
    planned: rounds in which canaries are to take part.
    included: rounds in which they did.
    cosines: with what was seen, by the names of `Record.cosines`; 0 in rounds that
      were not observed.
    rounds: numbers of each round; NaN where the round was not observed.
  """

  config: AuditConfig
  key: UInt32[np.ndarray, 'words=2']
  assigned: Bool[np.ndarray, 'T k']
  planned: Bool[np.ndarray, 'T k']
  included: Bool[np.ndarray, 'T k']
  cosines: dict[str, Float[np.ndarray, '... k']]
  rounds: RoundScalars

  @property
  def observed_rounds(self) -> Bool[np.ndarray, ' T']:
    """Which rounds were observed."""
    return np.isfinite(self.rounds.canary_norm)


def write_state(path: str | os.PathLike, state: AuditorState) -> None:
  """Writes an auditor whole or not at all, readable by its owner alone."""
  arrays = {
    'schema': np.int64(_SCHEMA),
    'config': json.dumps(dataclasses.asdict(state.config)),
    'key': state.key,
    'assigned': state.assigned,
    'planned': state.planned,
    'included': state.included,
  }
  arrays |= {_COSINES + name: x for name, x in state.cosines.items()}
  arrays |= {_ROUNDS + name: x for name, x in state.rounds._asdict().items()}
  io.write_arrays(path, arrays, private=True)


def read_state(path: str | os.PathLike) -> AuditorState:
  """Reads an auditor.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is damaged or of another version.
  """
  arrays = io.read_arrays(path)
  try:
    io.check_schema(path, int(arrays['schema']), reads=_SCHEMA)
    config = AuditConfig(**json.loads(str(arrays['config'])))
    shape = config.rounds, config.num_canaries
    state = AuditorState(
      config=config,
      key=arrays['key'],
      assigned=arrays['assigned'].reshape(shape),
      planned=arrays['planned'].reshape(shape),
      included=arrays['included'].reshape(shape),
      cosines={
        name.removeprefix(_COSINES): x
        for name, x in arrays.items()
        if name.startswith(_COSINES)
      },
      rounds=RoundScalars(
        *(arrays[_ROUNDS + name] for name in RoundScalars._fields)
      ),
    )
  except (KeyError, TypeError) as error:
    raise ValueError(
      f'{path} is no file of an auditor, or damaged ({error}); give what '
      '`Auditor.save` wrote.'
    ) from error
  return state
