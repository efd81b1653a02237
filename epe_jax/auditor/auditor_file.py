"""The file of an auditor, from which an audit resumes together with training."""

import dataclasses
import json
import os
from typing import NamedTuple

from jaxtyping import Bool, Float, UInt32
import numpy as np

from epe_jax import io, typed_json
from epe_jax.audit import record_file
from epe_jax.auditor.audit_config import AuditConfig
from epe_jax.fact import Facts
from epe_jax.training.round_scalars import RoundScalars

SCHEMA = 3
"""The version of the file."""
_ARRAYS = 'key', 'assigned', 'planned', 'included', 'clip_norms'


class AuditorState(NamedTuple):
  """The state of an auditor.

  Attributes:
    config: sizes, claims and design.
    key: the two words of the canary key.
    assigned: row t holds the canaries that are assigned round t.
    planned: row t holds the canaries that will take part in round t.
    included: row t holds the canaries that took part in round t.
    clip_norms: S of the rounds whose injection was requested; NaN in others.
    cosines: cosines by the names of `Record.cosines`; 0 in rounds not observed.
    rounds: scalars of each round; NaN in rounds not observed.
    notes: facts for the report.
  """

  config: AuditConfig
  key: UInt32[np.ndarray, 'words=2']
  assigned: Bool[np.ndarray, 'T k']
  planned: Bool[np.ndarray, 'T k']
  included: Bool[np.ndarray, 'T k']
  clip_norms: Float[np.ndarray, ' T']
  cosines: dict[str, Float[np.ndarray, '... k']]
  rounds: RoundScalars
  notes: Facts

  @property
  def observed_rounds(self) -> Bool[np.ndarray, ' T']:
    """The rounds observed so far, as a mask."""
    return np.isfinite(self.rounds.canary_norm)


def write_state(path: str | os.PathLike, state: AuditorState) -> None:
  """Writes an auditor atomically, readable by its owner alone."""
  settings = dataclasses.asdict(state.config)
  strategy = settings.pop('strategy')
  arrays = {
    'schema': np.int64(SCHEMA),
    'config': json.dumps(settings),
    **{name: getattr(state, name) for name in _ARRAYS},
    'notes': json.dumps(typed_json.to_plain(state.notes)),
  }
  arrays |= {} if strategy is None else {'strategy': strategy}
  arrays |= {record_file.COSINES + name: x for name, x in state.cosines.items()}
  arrays |= {
    record_file.ROUNDS + name: x for name, x in state.rounds._asdict().items()
  }
  io.write_arrays(path, arrays, private=True)


def read_state(path: str | os.PathLike) -> AuditorState:
  """Reads an auditor.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is damaged or of another version.
  """
  arrays = io.read_arrays(path)
  try:
    io.check_schema(path, int(arrays['schema']), reads=SCHEMA)
    return AuditorState(
      config=AuditConfig(
        **io.parse_json(str(arrays['config'])), strategy=arrays.get('strategy')
      ),
      **{name: arrays[name] for name in _ARRAYS},
      cosines=record_file.select_prefixed(arrays, record_file.COSINES),
      # Those that are missing are no defaults.
      rounds=RoundScalars(
        *(arrays[record_file.ROUNDS + name] for name in RoundScalars._fields)
      ),
      notes=typed_json.from_plain(Facts, io.parse_json(str(arrays['notes']))),
    )
  except (KeyError, TypeError, ValueError) as error:
    raise ValueError(
      f'{path} is not a file of an auditor, or damaged ({error}); give what '
      '`Auditor.save` wrote.'
    ) from error
