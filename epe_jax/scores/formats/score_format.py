"""What is declared of a format of another tool."""

from collections.abc import Callable
from typing import NamedTuple

from epe_jax.epsilon.types import Scores
from epe_jax.scores.formats import groups


class ScoreFormat(NamedTuple):
  """A format of another tool.

  Attributes:
    name: as in --from.
    label: what it is, for people.
    read: `(path, **groups.Settings) -> Scores`, where settings that are left out
      have the convention of the tool; None for counts, which are not scores.
    higher: which group scores higher, unless the user says otherwise.
    suffix: of its files; '' for a folder.
    fields: names by which it is recognized: all of them are arrays of its .npz,
      keys of its .json, or files in its folder or one level below. Without any it
      is read only by name.
  """

  name: str
  label: str
  read: Callable[..., Scores] | None
  higher: groups.Higher = 'in'
  suffix: str = ''
  fields: frozenset[str] = frozenset()
