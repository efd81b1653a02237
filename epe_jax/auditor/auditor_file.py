"""The file of an auditor, from which an audit resumes together with training."""

import dataclasses
import json
import os
from typing import NamedTuple

from jaxtyping import Bool, Float, UInt32
import numpy as np

from epe_jax import io, typed_json
from epe_jax.audit.record import FINAL_MODEL
from epe_jax.audit.record_checks import (
  are_clip_norms,
  find_fault_of_array,
  find_fault_of_rounds,
)
from epe_jax.auditor.audit_config import AuditConfig
from epe_jax.fact import Facts
from epe_jax.training.round_scalars import CLIP_NORMS, RoundScalars

SCHEMA = 3
"""The version of the file."""
_COSINES, _ROUNDS = 'cosines_', 'rounds_'


class AuditorState(NamedTuple):
  """The state of an auditor.

  Attributes:
    config: sizes, claims and design.
    key: the two words of the canary key.
    assigned: row t holds the canaries that are assigned round t.
    planned: row t holds the canaries that will take part in round t.
    included: row t holds the canaries that took part in round t.
    senders: row t holds the canaries whose messages of round t were requested.
    clip_norms: S of the rounds whose injection or messages were requested; NaN in
      others.
    cosines: cosines by the names of `Record.cosines`; 0 in rounds not observed.
    rounds: scalars of each round; NaN in rounds not observed.
    notes: what to know of the audit besides its scores.
  """

  config: AuditConfig
  key: UInt32[np.ndarray, 'words=2']
  assigned: Bool[np.ndarray, 'T k']
  planned: Bool[np.ndarray, 'T k']
  included: Bool[np.ndarray, 'T k']
  senders: Bool[np.ndarray, 'T k']
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
    'key': state.key,
    'assigned': state.assigned,
    'planned': state.planned,
    'included': state.included,
    'senders': state.senders,
    'clip_norms': state.clip_norms,
    'notes': json.dumps(typed_json.to_plain(state.notes)),
  }
  arrays |= {} if strategy is None else {'strategy': strategy}
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
    io.check_schema(path, int(arrays['schema']), reads=SCHEMA)
    config = AuditConfig(
      **io.parse_json(str(arrays['config'])), strategy=arrays.get('strategy')
    )
    state = AuditorState(
      config=config,
      key=arrays['key'],
      assigned=arrays['assigned'],
      planned=arrays['planned'],
      included=arrays['included'],
      senders=arrays['senders'],
      clip_norms=arrays['clip_norms'],
      cosines={
        name.removeprefix(_COSINES): x
        for name, x in arrays.items()
        if name.startswith(_COSINES)
      },
      rounds=RoundScalars(
        *(arrays[_ROUNDS + name] for name in RoundScalars._fields)
      ),
      notes=typed_json.from_plain(Facts, io.parse_json(str(arrays['notes']))),
    )
    fault = _find_fault(state)
  except (KeyError, TypeError, ValueError) as error:
    fault = str(error)
  if fault is not None:
    raise ValueError(
      f'{path} is not a file of an auditor, or damaged ({fault}); give what '
      '`Auditor.save` wrote.'
    )
  return state


def _find_fault(state: AuditorState) -> str | None:
  """Says what is impossible in a state; None if nothing is."""
  config = state.config
  rounds, num = shape = config.rounds, config.num_canaries
  if state.key.shape != (2,) or state.key.dtype != np.uint32:
    return f'key is {state.key.dtype}{list(state.key.shape)}'
  for name in ('assigned', 'planned', 'included', 'senders'):
    array = getattr(state, name)
    if array.shape != shape or array.dtype != bool:
      return (
        f'{name} is {array.dtype}{list(array.shape)}, and not bool{list(shape)}'
      )
  for subset, name in (
    ('included', 'planned'),
    ('senders', 'planned'),
    ('planned', 'assigned'),
  ):
    if np.any(getattr(state, subset) & ~getattr(state, name)):
      return f'{subset} has canaries in rounds that {name} has not'
  shaped = {
    _ROUNDS + name: (x, [(rounds,)])
    for name, x in state.rounds._asdict().items()
  }
  shaped |= {
    _COSINES + name: (x, [(num,)] if name in FINAL_MODEL else [shape])
    for name, x in state.cosines.items()
  }
  for name, (array, shapes) in shaped.items():
    if fault := find_fault_of_array(name, array, shapes, unknown=True):
      return fault
  made = state.observed_rounds
  if np.any(state.included[~made]):
    return 'included has canaries in rounds that were not observed'
  requested = state.clip_norms
  if requested.shape != (rounds,) or not are_clip_norms(
    requested[~np.isnan(requested)]
  ):
    return f'clip_norms has numbers that are not in {CLIP_NORMS}'
  made_rounds = RoundScalars(*(x[made] for x in state.rounds))
  if np.any(made_rounds.num_canaries != state.included[made].sum(axis=1)):
    return 'rounds_num_canaries is not the number of canaries in included'
  return find_fault_of_rounds(made_rounds, config.noise_multiplier, config.dim)
