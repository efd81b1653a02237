"""The scores of attackers of a user's own, in the file of the record of their run.

Those of the attackers of this package follow from the record of a run. Those of others
follow from functions that only their run had, so the run keeps their scores.
"""

import dataclasses
import os
from typing import Any

import numpy as np

from epe_jax import io
from epe_jax.audit import attackers
from epe_jax.audit.record import Record
from epe_jax.audit.results import AttackResult, Audit
from epe_jax.epsilon.types import Gaussian, Scores, Sphere, make_null

_PREFIX = 'attack_scores/'
# The null law is written as the number that `make_null` makes it of, if it is known.
_NAMES = (
  *(field.name for field in dataclasses.fields(Scores) if field.name != 'null'),
  'dim',
)


def add_attack_scores(path: str | os.PathLike[str], audit: Audit) -> None:
  """Adds scores of attackers that are not in `THREAT_MODELS` to the file of a record."""
  arrays = {
    f'{_PREFIX}{name}_{attack.threat_model.key}': np.asarray(value)
    for attack in audit.attacks
    if attack.scores is not None
    and attackers.find(attack.threat_model.key) is None
    for name, value in _list_values(attack.scores).items()
  }
  if arrays:
    io.write_arrays(path, io.read_arrays(path) | arrays, private=True)


def _list_values(scores: Scores) -> dict[str, Any]:
  values = {**vars(scores), 'dim': None}
  match values.pop('null'):
    case Sphere(dim):
      values['dim'] = dim
    case Gaussian():
      values['dim'] = np.inf
  return {name: value for name, value in values.items() if value is not None}


def attach_scores(
  audit: Audit, record: Record, path: str | os.PathLike[str]
) -> Audit:
  """The audit of a finished run with the scores that its result.json does not hold.

  Raises:
    ValueError: the file is damaged.
  """
  arrays = io.read_arrays(path)

  def find_scores(attack: AttackResult) -> Scores | None:
    key = attack.threat_model.key
    if f'{_PREFIX}observed_{key}' not in arrays:
      attack_scores = attack.threat_model.score(record)
      return attack_scores and attack_scores.scores
    found = {x: arrays.get(f'{_PREFIX}{x}_{key}') for x in _NAMES}
    fields: dict[str, Any] = {
      name: x if x.ndim else x.item()
      for name, x in found.items()
      if x is not None
    }
    return Scores(null=make_null(fields.pop('dim', None)), **fields)

  return audit._replace(
    attacks=tuple(
      dataclasses.replace(attack, scores=find_scores(attack))
      for attack in audit.attacks
    )
  )
