"""Files of scores: of a run of this package, or of any other system."""

import os
import pathlib
from typing import Any, NamedTuple

import numpy as np

from epe_jax import io
from epe_jax.audit.record import Record, load_record
from epe_jax.epsilon.types import Scores
from epe_jax.experiment import workdirs
from epe_jax.scores import score_tables
from epe_jax.scores.formats import groups, registry
from epe_jax.scores.formats.score_format import ScoreFormat

_TABLES = ('.csv', '.tsv', '.txt')
CURE = (
  'Give the workdir of a finished run, its private/scores.npz, an .npz with '
  'arrays in and out, or a CSV or TSV with columns in and out, or score and label '
  '(1 or 0). epe-jax estimate --help has examples, and names the other tools '
  'whose files are read.'
)
"""The cure that ends every error about a file that is none of these."""


class Loaded(NamedTuple):
  """What was read from a file.

  Attributes:
    scores: the record of a run, or external scores.
    note: how columns without names were read; None of all other files.
    tool: the format of another tool that the file has; None of all other files.
  """

  scores: Record | Scores
  note: str | None = None
  tool: ScoreFormat | None = None


def load_scores(path: str | os.PathLike, **settings: Any) -> Record | Scores:
  """Reads scores from a workdir, an .npz, a table or a file of another tool.

  Args:
    path: the workdir of a finished run; its private/scores.npz; an .npz with
      arrays `observed` and `unobserved`, or of other names of `score_tables.PAIRS`,
      or `scores` and `labels`; a table .csv, .tsv or .txt as
      `score_tables.read_table` takes it, or '-' for one on stdin; or a file or
      folder of a tool of `formats`.
    **settings: those of `load`.

  Returns:
    The record of a run, or external scores.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is none of these, a line of the table is no score, or a
      setting does not fit the file.
  """
  return load(path, **settings).scores


def load(
  path: str | os.PathLike,
  *,
  dim: int | None = None,
  design: str | None = None,
  inclusion_probability: float | None = None,
  source: str = 'auto',
  higher: str | None = None,
) -> Loaded:
  """Reads scores as `load_scores`, and says how it understood them.

  Args:
    path: as `load_scores` takes it.
    dim: d, if external scores are cosines in R^d; otherwise None.
    design: 'coin_flip' if an independent coin decided for each canary of external
      scores; otherwise 'fixed'. None for the convention of the tool, and 'fixed'
      without one.
    inclusion_probability: of these coins, in (0, 1); the largest, if they
      differ. None for the convention of the tool, and 1/2 without one.
    source: a name of `registry.FORMATS`, or 'auto' to recognize the format.
    higher: which group scores higher in the file, canaries that took part ('in') or
      the others ('out'); None for the convention of the tool, and 'in' without one.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: as `load_scores`.
  """
  path = find_scores(path) if source == 'auto' else pathlib.Path(path)
  settings = _drop_none(
    design=design, inclusion_probability=inclusion_probability, higher=higher
  )
  if tool := find_format(path, source):
    if tool.read is None:
      raise ValueError(
        f'{path} has counts of guesses and no scores. Give it alone to '
        'epe-jax estimate, or to formats.read_counts.'
      )
    if dim is not None:
      raise ValueError(
        f'dim={dim} says that scores are cosines, but {path} is {tool.label}; '
        'leave dim out.'
      )
    return Loaded(tool.read(path, **settings), tool=tool)
  if path.suffix == '.npz':
    arrays = io.read_arrays(path)
    if 'schema' in arrays:
      if higher is not None:
        raise ValueError(
          f'higher={higher!r} is of files of other systems, but {path} is the '
          'record of a run; leave it out.'
        )
      return Loaded(load_record(path))
    return Loaded(_read_npz(path, arrays, dim=dim, **settings))
  if path.suffix in _TABLES or str(path) == score_tables.STDIN:
    table = score_tables.read_table(path, higher=higher)
    scores = groups.make_scores(
      path, table.observed, table.unobserved, dim=dim, **settings
    )
    return Loaded(scores, table.note)
  raise ValueError(f'{path} is neither .npz nor .csv nor .tsv. {CURE}')


def load_groups(
  observed: str | os.PathLike,
  unobserved: str | os.PathLike,
  *,
  dim: int | None = None,
  design: str | None = None,
  inclusion_probability: float | None = None,
  higher: str | None = None,
) -> Scores:
  """Reads external scores from two files, one of each group.

  Args:
    observed: a file with the scores of canaries that took part, as
      `score_tables.read_column` takes it.
    unobserved: one with those of canaries that did not.
    dim: as in `load`, like the others.
    design: see above.
    inclusion_probability: see above.
    higher: see above.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: a file is none of scores, or both are one.
  """
  if os.fspath(observed) == os.fspath(unobserved):
    raise ValueError(
      f'{observed} is given for both groups; give a file for each.'
    )
  arrays = [score_tables.read_column(path) for path in (observed, unobserved)]
  return groups.make_scores(
    f'{observed}, {unobserved}',
    *arrays,
    dim=dim,
    **_drop_none(
      design=design, inclusion_probability=inclusion_probability, higher=higher
    ),
  )


def find_format(
  path: str | os.PathLike, source: str = 'auto'
) -> ScoreFormat | None:
  """The format of another tool that a file is to be read as.

  Args:
    path: the file.
    source: a name of `registry.FORMATS`, or 'auto' to recognize the format.

  Returns:
    The format; None for files of this package, and tables.

  Raises:
    ValueError: there is no format of that name.
  """
  if source == 'auto':
    return registry.recognize(path)
  if source not in registry.FORMATS:
    raise ValueError(
      f"source={source!r} is neither 'auto' nor one of "
      f'{", ".join(registry.FORMATS)}.'
    )
  return registry.FORMATS[source]


def find_scores(path: str | os.PathLike) -> pathlib.Path:
  """Finds the file that scores are read from.

  Args:
    path: a workdir, whose private/scores.npz it is; the folder of a model of
      LiRA, which it is itself; or the file, or '-' for stdin, as they are.

  Raises:
    FileNotFoundError: there is no such file.
  """
  path = pathlib.Path(path)
  if str(path) == score_tables.STDIN:
    return path
  if path.is_dir():
    if registry.recognize(path) is not None:
      return path
    folder, path = path, workdirs.workdir_at(path).scores
    if not path.is_file():
      workdirs.check_ended(folder)
  if not path.is_file():
    raise FileNotFoundError(f'{path} does not exist. {CURE}')
  return path


def _read_npz(
  path: pathlib.Path, arrays: dict[str, np.ndarray], **settings: Any
) -> Scores:
  """Reads an array for each group, or scores with a label each."""
  pairs = [pair for pair in score_tables.PAIRS if set(pair) <= arrays.keys()]
  if len(pairs) == 1:
    observed, unobserved = (_read_group(path, arrays, x) for x in pairs[0])
    return groups.make_scores(path, observed, unobserved, **settings)
  if not pairs and {'scores', 'labels'} <= arrays.keys():
    return groups.split_by_label(
      path, arrays['scores'], arrays['labels'], **settings
    )
  some = f'of {len(pairs)} audits' if pairs else 'and no two of known names'
  raise ValueError(f'{path} has the arrays {sorted(arrays)}, {some}. {CURE}')


def _read_group(
  path: pathlib.Path, arrays: dict[str, np.ndarray], name: str
) -> np.ndarray:
  group = np.squeeze(arrays[name])
  if group.ndim > 1:
    raise ValueError(
      f'{path}: {name} has shape {group.shape}, but one audit has an '
      'array [n]. Write one file for each audit.'
    )
  return np.atleast_1d(group)


def _drop_none(**settings: Any) -> dict[str, Any]:
  return {name: x for name, x in settings.items() if x is not None}
