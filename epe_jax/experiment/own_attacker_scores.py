"""The scores of attackers of a user's own, in a file of their run.

Those of the attackers of this package follow from the record of a run. Those of others
follow from functions that only their run had, so the run keeps their scores.
"""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import os
import pathlib
from typing import Any

from jaxtyping import Shaped
import numpy as np

from epe_jax import io
from epe_jax.audit import threat_models
from epe_jax.audit.attack_results import AttackResult, Audit
from epe_jax.audit.record import Record
from epe_jax.epsilon.types import Gaussian, Scores, Sphere, Unknown, make_null

_ARRAYS = ('observed', 'unobserved', 'shift')
_TYPES: dict[str, Callable[[Any], Any]] = {
  'design': str,
  'overlap': float,
  'inclusion_probability': float,
}


def write_attack_scores(path: str | os.PathLike[str], audit: Audit) -> None:
  """Writes the scores of attackers that are not in `THREAT_MODELS`, if there are any.

  Args:
    path: the file, for the auditor alone.
    audit: what `evaluate` returned.
  """
  arrays = {
    f'{name}_{attack.threat_model.key}': np.asarray(value)
    for attack in audit.attacks
    if attack.scores is not None
    and threat_models.find(attack.threat_model.key) is None
    for name, value in _list_arrays(attack.scores)
  }
  if arrays:
    io.write_arrays(path, arrays, private=True)


def _list_arrays(scores: Scores) -> Iterator[tuple[str, Any]]:
  """What `make_null` makes the null law of is its one number, or none."""
  for name, value in vars(scores).items():
    match value:
      case None | Unknown():
        pass
      case Sphere(dim):
        yield 'dim', dim
      case Gaussian():
        yield 'dim', np.inf
      case _:
        yield name, value


def attach_scores(
  audit: Audit, record: Record, path: str | os.PathLike[str]
) -> Audit:
  """The audit of a finished run with the scores that its result.json does not hold.

  Args:
    audit: as `audit_json.from_json` read it.
    record: what attackers saw.
    path: what `write_attack_scores` may have written.

  Raises:
    ValueError: the file is damaged.
  """
  arrays = io.read_arrays(path) if pathlib.Path(path).is_file() else {}
  attacks = (
    dataclasses.replace(attack, scores=_find_scores(attack, record, arrays))
    for attack in audit.attacks
  )
  return audit._replace(attacks=tuple(attacks))


def _find_scores(
  attack: AttackResult,
  record: Record,
  arrays: Mapping[str, Shaped[np.ndarray, '...']],
) -> Scores | None:
  key = attack.threat_model.key
  if f'observed_{key}' not in arrays:
    attack_scores = attack.threat_model.score(record)
    return attack_scores and attack_scores.scores
  fields: dict[str, Any] = {
    name: arrays.get(f'{name}_{key}') for name in _ARRAYS
  }
  for name, type_ in _TYPES.items():
    if f'{name}_{key}' in arrays:
      fields[name] = type_(arrays[f'{name}_{key}'])
  # An integer, or inf; nothing if the law is unknown.
  dim = arrays.get(f'dim_{key}')
  return Scores(null=make_null(None if dim is None else dim.item()), **fields)
