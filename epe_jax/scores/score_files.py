"""Files of scores: of a run of this package, or of any other system."""

from collections.abc import Callable, Sequence
import csv
import itertools
import os
import pathlib
import re
import sys
from typing import NamedTuple, Unpack

from jaxtyping import Float
import numpy as np

from epe_jax import io
from epe_jax.audit.record import Record
from epe_jax.audit.record_file import load_record
from epe_jax.epsilon.types import Scores
from epe_jax.experiment import workdirs
from epe_jax.scores import formats
from epe_jax.scores.formats import ScoreFormat

STDIN = '-'
"""The path that stands for stdin."""

PAIRS = (
  ('observed', 'unobserved'),
  ('in_canary_scores', 'out_canary_scores'),
  ('in', 'out'),
  ('in_score', 'out_score'),
  ('in_scores', 'out_scores'),
  ('included', 'excluded'),
  ('member', 'nonmember'),
  ('member', 'non_member'),
  ('members', 'nonmembers'),
  ('members', 'non_members'),
  ('member_scores', 'nonmember_scores'),
  ('member_scores', 'non_member_scores'),
  ('train', 'test'),
)
"""Names of two columns or arrays: canaries that took part, and others."""

SCORES = [
  'score',
  'scores',
  'y_score',
  'statistic',
  'confidence',
  'cosine',
  'loss',
]
"""Names of a column with the scores of all canaries."""

LABELS = [
  'observed',
  'label',
  'labels',
  'member',
  'membership',
  'memberships',
  'is_member',
  'is_in',
  'in_train',
  'is_train',
  'included',
  'challenge_bit',
  'y_true',
]
"""Names of a column that says which canaries took part."""

_WORDS = {
  **dict.fromkeys(('true', 'in', 'yes', 'member', 'train'), 1.0),
  **dict.fromkeys(
    ('false', 'out', 'no', 'nonmember', 'non-member', 'test'), 0.0
  ),
}
_FORMS = (
  'Give columns in and out, member and nonmember, or score and label (1: took '
  'part, 0 or -1: did not), named in the first line.'
)
_TWO_FILES = (
  'With a file for each group, give --in_scores=FILE and --out_scores=FILE.'
)
CURE = (
  'Give the workdir of a finished run, its private/scores.npz, an .npz with '
  'arrays in and out, or a CSV or TSV with columns in and out, or score and label '
  '(1 or 0). epe-jax estimate --help has examples, and names the other tools '
  'whose files are read.'
)
"""The cure that ends every error about a file that is none of these."""

# The number of a line, and one of its cells.
_Cell = tuple[int, str]


class Loaded(NamedTuple):
  """What was read from a file.

  Attributes:
    scores: the record of a run, or external scores.
    tool: the format of another tool that the file has; None of all other files.
  """

  scores: Record | Scores
  tool: ScoreFormat | None = None


def load(
  path: str | os.PathLike,
  *,
  source: str = 'auto',
  **settings: Unpack[formats.Settings],
) -> Loaded:
  """Reads scores from a workdir, an .npz, a table or a file of another tool.

  Args:
    path: the workdir of a finished run; its private/scores.npz; a table .csv, .tsv or
      .txt in UTF-8, or '-' for one on stdin, with a column for each group or one of
      scores and one of labels; an .npz with such arrays; or a file of a tool of
      `formats`. Cells are separated by tabs, commas, semicolons or blanks, as the
      names are; a column of a group may end in empty cells.
    source: a name of `formats.FORMATS`, or 'auto' to recognize the format.
    **settings: of external scores, as in `formats.Settings`. Those left out have the
      convention of the tool; without a tool, that higher scores say "took part" and
      the design is 'fixed'.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is none of these, a line of the table is not a score, or a
      setting does not fit the file.
  """
  path = find_scores(path) if source == 'auto' else pathlib.Path(path)
  dim, higher = settings.get('dim'), settings.get('higher')
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
    return Loaded(tool.read(path, **settings), tool)
  if path.suffix == '.npz':
    arrays = io.read_arrays(path)
    if 'schema' not in arrays:
      return Loaded(_read_npz(path, arrays, **settings))
    if higher is not None:
      raise ValueError(
        f'higher={higher!r} is of files of other systems, but {path} is the '
        'record of a run; leave it out.'
      )
    return Loaded(load_record(path))
  if path.suffix in ('.csv', '.tsv', '.txt') or str(path) == STDIN:
    return Loaded(_read_table(path, **settings))
  raise ValueError(f'{path} is neither .npz nor .csv nor .tsv. {CURE}')


def load_groups(
  observed: str | os.PathLike,
  unobserved: str | os.PathLike,
  **settings: Unpack[formats.Settings],
) -> Scores:
  """Reads external scores from two files, one of each group.

  Args:
    observed: scores of canaries that took part, as `read_column` takes them.
    unobserved: those of canaries that did not.
    **settings: as in `load`.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: a file is none of scores, or both are one.
  """
  if os.fspath(observed) == os.fspath(unobserved):
    raise ValueError(
      f'{observed} is given for both groups; give a file for each.'
    )
  where = f'{observed}, {unobserved}'
  groups = read_column(observed), read_column(unobserved)
  return formats.make_scores(where, *groups, **settings)


def find_format(
  path: str | os.PathLike, source: str = 'auto'
) -> ScoreFormat | None:
  """The format of another tool that a file is to be read as.

  Args:
    path: the file.
    source: a name of `formats.FORMATS`, or 'auto' to recognize the format.

  Returns:
    The format; None for files of this package, and tables.

  Raises:
    ValueError: there is no format of that name, or the file is of another kind.
  """
  if source == 'auto':
    return formats.recognize(path)
  if source not in formats.FORMATS:
    raise ValueError(
      f"source={source!r} (--from on the command line) is neither 'auto' nor one of "
      f'{", ".join(formats.FORMATS)}.'
    )
  tool = formats.FORMATS[source]
  if pathlib.Path(path).suffix != tool.suffix:
    raise ValueError(
      f'{path} is not a {tool.suffix} and so not {tool.label}, as source={source!r} '
      '(--from on the command line) says; leave it out, or give such a file.'
    )
  return tool


def find_scores(path: str | os.PathLike) -> pathlib.Path:
  """Finds the file that scores are read from.

  Args:
    path: a workdir, whose private/scores.npz it is; or the file, or '-' for stdin,
      as they are.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is a pipe.
  """
  path = pathlib.Path(path)
  if str(path) == STDIN:
    return path
  if path.is_dir():
    folder, path = path, workdirs.workdir_at(path).scores
    if not path.is_file():
      workdirs.check_ended(folder)
  if not path.is_file() and path.exists():
    raise ValueError(
      f'{path} is a pipe or device and no file; give - and the table on stdin.'
    )
  if not path.is_file():
    raise FileNotFoundError(f'{path} does not exist. {CURE}')
  return path


def read_column(path: str | os.PathLike) -> np.ndarray:
  """Reads the scores of one group: a number in each line, or an array [n] in .npy.

  Args:
    path: a file, or `STDIN`. Its first line may be a name.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is no such file.
  """
  if str(path) != STDIN and not pathlib.Path(path).is_file():
    raise FileNotFoundError(f'{path} does not exist; give a file of scores.')
  if pathlib.Path(path).suffix == '.npy':
    return np.atleast_1d(np.squeeze(io.read_array(path)))
  lines = [x for x in _read_lines(path) if not _is_comment(x)]
  if lines and not _is_number(lines[0][1]):
    line, text = lines.pop(0)
    parts = re.split(r'[,;\s]+', text.strip().replace('_', ''))
    if any(map(_is_number, parts)):
      raise ValueError(
        f'{_name(path)}, line {line}: {text!r} is not a number and no name; give one '
        'score in each line.'
      )
  if not lines:
    raise ValueError(f'{_name(path)} has no scores; give one in each line.')
  return _read_numbers(path, 'score', lines)


def _read_npz(
  path: pathlib.Path,
  arrays: dict[str, np.ndarray],
  **settings: Unpack[formats.Settings],
) -> Scores:
  def take(name: str) -> np.ndarray:
    return np.atleast_1d(np.squeeze(arrays[name]))

  return _make_scores(
    path, sorted(arrays), 'array', take, take, take, **settings
  )


def _read_table(
  path: pathlib.Path, **settings: Unpack[formats.Settings]
) -> Scores:
  where, (names, rows) = _name(path), _read_rows(path)

  def take(name: str) -> list[_Cell]:
    i = names.index(name)
    # The last columns of a row may be missing.
    return [(line, (*row, *[''] * i)[i]) for line, row in rows]

  def take_scores(name: str) -> np.ndarray:
    return _read_numbers(path, name, take(name))

  def take_group(name: str) -> np.ndarray:
    # One group may be smaller than the other.
    return _read_numbers(path, name, [cell for cell in take(name) if cell[1]])

  def take_labels(name: str) -> np.ndarray:
    words = [(x, str(_WORDS.get(text.lower(), text))) for x, text in take(name)]
    for line, text in words:
      if not (_is_number(text) and float(text) in (0, 1, -1)):
        raise ValueError(
          f'{where}, line {line}: {name}={text!r}; write 1 or 0.'
        )
    return _read_numbers(path, name, words)

  return _make_scores(
    where, names, 'column', take_scores, take_group, take_labels, **settings
  )


def _make_scores(
  path: str | os.PathLike,
  given: Sequence[str],
  what: str,
  take_scores: Callable[[str], np.ndarray],
  take_group: Callable[[str], np.ndarray],
  take_labels: Callable[[str], np.ndarray],
  **settings: Unpack[formats.Settings],
) -> Scores:
  """Scores of two of several columns or arrays, which their names choose.

  Args:
    path: the file that errors name.
    given: the names.
    what: what has the names.
    take_scores: name -> scores.
    take_group: name -> those of one group.
    take_labels: name -> labels.
    **settings: as in `load`.

  Raises:
    ValueError: no two of them, or more, are scores of one audit.
  """
  names = [re.sub(r'[-\s]+', '_', name.strip().lower()) for name in given]
  labels = [name for name in LABELS if name in names]
  scores = [name for name in SCORES if name in names]
  pairs = [pair for pair in PAIRS if set(pair) <= set(names)]

  def find(name: str) -> str:
    if names.count(name) > 1:
      raise ValueError(f'{path} has two {what}s {name!r}; leave one of them.')
    return given[names.index(name)]

  if scores and pairs:
    raise ValueError(
      f'{path} has a {what} for each group, {" and ".join(pairs[0])}, and also '
      f'one for all scores, {scores[0]}; remove the {what}s that are not meant.'
    )
  if scores and labels:
    # A table of ours may have more columns.
    label = _choose_one(path, labels, 'observed', 'may say who took part')
    score = _choose_one(path, scores, 'score', 'may be the scores')
    if score == 'loss' and 'higher' not in settings:
      raise ValueError(
        f'{path} has losses, which are lower for what was trained on. Say so with '
        '--higher=out, or say --higher=in if they are negated.'
      )
    titles = find(score), find(label)
    return formats.split_by_label(
      path,
      take_scores(titles[0]),
      take_labels(titles[1]),
      names=titles,
      **settings,
    )
  if len(pairs) == 1:
    groups = [take_group(find(name)) for name in pairs[0]]
    return formats.make_scores(path, *groups, **settings)
  if len(names) == 1:
    raise ValueError(
      f'{path} has no two of known names, but one {what}, {given[0]!r}. '
      f'{_TWO_FILES}'
    )
  some = f'of {len(pairs)} audits' if pairs else 'and no two of known names'
  raise ValueError(f'{path} has the {what}s {list(given)}, {some}. {_FORMS}')


def _choose_one(
  path: str | os.PathLike, names: list[str], usual: str, role: str
) -> str:
  if len(names) > 1 and usual not in names:
    raise ValueError(
      f'{path} has the columns {names}, and each {role}; leave one of '
      f'them, or name it {usual}.'
    )
  return usual if usual in names else names[0]


def _read_lines(path: str | os.PathLike) -> list[_Cell]:
  """The lines that are not empty, with their numbers."""
  try:
    if str(path) == STDIN:
      # In bytes, since a table of Excel begins with a mark.
      text = sys.stdin.buffer.read().decode('utf-8-sig')
    else:
      text = pathlib.Path(path).read_text(encoding='utf-8-sig')
  except UnicodeDecodeError as error:
    raise ValueError(
      f'{_name(path)} is not in UTF-8 ({error}). Save it in this encoding, as '
      'iconv -f UTF-16 -t UTF-8 does of UTF-16, and -f LATIN1 of Latin-1.'
    ) from error
  lines = enumerate(text.splitlines(), 1)
  return [(line, text) for line, text in lines if text.strip()]


def _read_rows(
  path: pathlib.Path,
) -> tuple[list[str], list[tuple[int, list[str]]]]:
  """The names of the columns of a table, and the cells of its lines.

  Comments are left out, but names may be in the last one before the first line, as
  NumPy writes them.
  """
  lines, where = _read_lines(path), _name(path)
  comments = [*itertools.takewhile(_is_comment, lines)]
  lines = lines[len(comments) :]
  if not lines:
    raise ValueError(f'{where} is empty. {_FORMS}')
  delimiter = next((x for x in '\t,;' if x in lines[0][1]), None)

  def split(line: int, text: str) -> list[str]:
    if delimiter is None:
      return text.split()
    try:
      (cells,) = csv.reader([text], delimiter=delimiter, skipinitialspace=True)
    except (csv.Error, ValueError) as error:
      raise ValueError(
        f'{where}, line {line}: not a CSV file ({error}). {_FORMS}'
      ) from error
    return [cell.strip() for cell in cells]

  names = split(*lines[0])
  if not any(map(_is_number, names)):
    del lines[0]
  elif comments:
    names = split(0, comments[-1][1].strip(' #'))
  else:
    raise ValueError(f'{where} has no names of columns. {_FORMS} {_TWO_FILES}')
  rows = [(line, split(line, text)) for line, text in lines]
  for line, row in rows:
    if any(row[len(names) :]):
      raise ValueError(
        f'{where}: line {line} has {len(row)} fields, but the header has '
        f'{len(names)}. If a comma is the decimal mark, use a point instead; '
        'otherwise correct the line or the header.'
      )
  return names, [(line, row) for line, row in rows if any(row)]


def _read_numbers(
  path: str | os.PathLike, name: str, cells: Sequence[_Cell]
) -> Float[np.ndarray, ' n']:
  for line, text in cells:
    if _is_number(text) and np.isfinite(float(text)):
      continue
    fault, cure = 'not finite', 'Remove the row, or fix what wrote it.'
    if not _is_number(text):
      fault, cure = 'not a number', 'Fix the cell, or remove the row.'
      if _is_number(text.replace(',', '.')):
        cure = 'Use a point as the decimal mark.'
    raise ValueError(
      f'{_name(path)}, line {line}: {name}={text!r} is {fault}. {cure}'
    )
  return np.array([float(text) for _, text in cells], np.float64)


def _is_number(text: str) -> bool:
  try:
    float(text)
  except ValueError:
    return False
  # As Python writes 1_000.
  return '_' not in text


def _is_comment(cell: _Cell) -> bool:
  return cell[1].lstrip().startswith('#')


def _name(path: str | os.PathLike) -> str | os.PathLike:
  return 'stdin' if str(path) == STDIN else path
