"""Files of scores: of a run of this package, or of any other system."""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import datetime
import math
import os
import pathlib
import re
from typing import Any, NamedTuple, TypeAlias, Unpack

from jaxtyping import Float
import numpy as np

from epe_jax import columns, io
from epe_jax.audit.record import Record
from epe_jax.audit.record_file import load_record
from epe_jax.columns import Cell, Columns
from epe_jax.epsilon.types import Scores
from epe_jax.experiment import workdirs
from epe_jax.fact import Fact
from epe_jax.scores import baseline, counts, formats
from epe_jax.scores.counts import FIELDS, Counts
from epe_jax.scores.formats import ScoreFormat

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
  'attack_score',
  'attack_scores',
  'membership_score',
  'mia_score',
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

GUESSES = ['prediction', 'predicted', 'predictions', 'guess', 'y_pred']
"""Names of a column with a guess for each canary, 1 or 0: what is left of scores at one
threshold."""

BLIND = ['blind', 'baseline', 'reference']
"""Names of columns that have not seen the model."""

BLIND_WORDS = {'id', 'idx', 'index', 'source', 'domain', 'language', 'lang'}
BLIND_WORDS |= {
  'year',
  'month',
  'day',
  'date',
  'timestamp',
  'created',
  'published',
}
BLIND_WORDS |= {'length', 'len', 'tokens', 'words', 'chars'}
"""Words in names of columns that no model has to see."""

ONE_POPULATION = 'none'
"""The baseline of those who know that both groups are drawn from one population."""

NUMBERS = 'num_in', 'num_out'
"""What a ROC lacks: how many canaries took part, and how many did not."""

_WORDS = {
  **dict.fromkeys(
    ('true', 'in', 'yes', 'y', 'member', 'train', 'training'), 1.0
  ),
  **dict.fromkeys(('false', 'out', 'no', 'n', 'nonmember', 'test'), 0.0),
  **dict.fromkeys(('holdout', 'heldout', 'validation', 'val', 'unseen'), 0.0),
  'seen': 1.0,
}
# Dates as people write them, '' of ISO 8601; the first form that fits all counts.
_DATES = ['']
_DATES += [
  f'{day}{time}'
  for day in ('%d/%m/%Y', '%m/%d/%Y', '%d.%m.%Y', '%Y/%m/%d', '%d-%m-%Y')
  for time in ('', ' %H:%M', ' %H:%M:%S')
]
_DATES += ['%b %d, %Y', '%B %d, %Y', '%d %b %Y', '%d %B %Y']
_NAME_THEM = (
  'Name them by score=NAME, or score=A-B for the difference of two, and label=NAME (1: '
  'took part, 0 or -1: did not), or by in_scores=NAME and out_scores=NAME.'
)
_NO_NAMES = (
  'Give names, such as in and out, or score and label: in the first line of a table, as '
  'keys of JSON. With a file for each group, give --in_scores=FILE and '
  '--out_scores=FILE; with labels in a file of their own, --labels=FILE.'
)
# Of the names of a file in an error.
_SHOWN = 20
CURE = (
  'Give the workdir of a finished run, its private/scores.npz, an .npz with '
  'arrays in and out, or a table (.csv, .tsv, .json, .jsonl, .parquet) with columns in '
  'and out, or score and label (1 or 0). epe-jax estimate --help has examples, and '
  'names the other tools whose files are read.'
)
"""The cure that ends every error about a file that is none of these."""


class Roles(NamedTuple):
  """What the user says of a file that its names do not.

  Attributes:
    score: the column or array of all scores; A-B is the difference of two.
    label: that of who took part.
    in_scores: that of canaries that took part, each the whole group.
    out_scores: that of the others.
    labels: a file of labels, if the scores' file has none.
    baseline: the column or array of the scores of a baseline that has never seen the
      model, or a file of them; A-B is the difference of two; `ONE_POPULATION` if
      columns that differ between the groups are known to say nothing.
    num_in: of the canaries of a ROC, how many took part.
    num_out: how many did not.
  """

  score: str | None = None
  label: str | None = None
  in_scores: str | None = None
  out_scores: str | None = None
  labels: str | None = None
  baseline: str | None = None
  num_in: int | None = None
  num_out: int | None = None


_NO_ROLES = Roles()


class Loaded(NamedTuple):
  """What was read from a file.

  Attributes:
    scores: the record of a run, external scores, or counts of guesses.
    tool: the format of another tool that the file has; None of all other files.
    baseline: scores of a baseline, if one is named.
    doubt: that a column which is not asked for differs between the groups; else None.
  """

  scores: Record | Scores | Counts
  tool: ScoreFormat | None = None
  baseline: Scores | None = None
  doubt: Fact | None = None


def load(
  path: str | os.PathLike,
  *,
  source: str = 'auto',
  roles: Roles = _NO_ROLES,
  **settings: Unpack[formats.Settings],
) -> Loaded:
  """Reads scores from a workdir, an .npz, a table or a file of another tool.

  Args:
    path: the workdir of a finished run; its private/scores.npz; a file that
      `columns.read` takes, or an .npz, with a column for each group, one of scores and
      one of labels, one of guesses and one of labels, a ROC (fpr and tpr), or the counts
      TP, FP, TN and FN; an .npy of scores, with a file of labels; or a file of a tool
      of `formats`. A column of a group may end in empty cells.
    source: a name of `formats.FORMATS`, or 'auto' to recognize the format.
    roles: what its names do not say.
    **settings: of external scores, as in `formats.Settings`. Those left out have the
      convention of the tool; without a tool, that higher scores say "took part" and
      the design is 'fixed'.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is none of these, a line of the table is not a score, or a
      setting does not fit the file.
  """
  path = find_scores(path) if source == 'auto' else pathlib.Path(path)
  given = {k: x for k, x in (*settings.items(), *roles._asdict().items()) if x}
  arrays = io.read_arrays(path) if path.suffix == '.npz' else {}
  if tool := formats.find(path, arrays, source):
    _refuse(given, path, tool.label, ('dim', *Roles._fields))
    return Loaded(formats.read(path, arrays, tool, **settings), tool)
  if 'schema' in arrays:
    if 'config' in arrays:
      raise ValueError(
        f'{path} is of an auditor; epe_jax.auditor.Auditor.load({os.fspath(path)!r})'
        '.report() is its audit.'
      )
    _refuse(given, path, 'the record of a run', ('higher', *Roles._fields))
    return Loaded(load_record(path))
  if roles.labels is not None:
    return _read_with_labels(path, roles, settings)
  if path.suffix == '.npy':
    raise ValueError(
      f'{path} has scores and nobody says who took part: give labels=FILE, 1 or 0 '
      'for each, or a file for each group by --in_scores=FILE and --out_scores=FILE.'
    )
  if arrays:
    return _choose(_Arrays(os.fspath(path), arrays), roles, settings)
  if path.suffix.lower() in columns.SUFFIXES or str(path) == columns.STDIN:
    table = _Table(columns.read(path, cure=_NO_NAMES))
    return _choose(table, roles, settings)
  raise ValueError(f'{path} is neither .npz nor a table. {CURE}')


def _refuse(
  given: Mapping[str, Any],
  path: str | os.PathLike,
  what: str,
  names: Sequence[str],
) -> None:
  for name in names:
    if name in given:
      raise ValueError(
        f'{name}={given[name]!r} is of scores of other systems, but {path} is {what}, '
        'which says so itself; leave it out.'
      )


def load_groups(
  observed: str | os.PathLike,
  unobserved: str | os.PathLike,
  **settings: Unpack[formats.Settings],
) -> Scores:
  """Reads external scores from two files, one of each group.

  Args:
    observed: a file with the scores of canaries that took part, or `columns.STDIN`: a
      number in each line, after a name or none, or an array [n] in .npy.
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
  groups = (
    _read_values(x, SCORES, None, settings) for x in (observed, unobserved)
  )
  return formats.make_scores(where, *groups, **settings)


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
  if str(path) == columns.STDIN:
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


def _read_with_labels(
  path: str | os.PathLike, roles: Roles, settings: formats.Settings
) -> Loaded:
  """Scores of one file with the labels of another."""
  assert roles.labels is not None
  for name in ('label', 'in_scores', 'out_scores', *NUMBERS):
    if getattr(roles, name) is not None:
      raise ValueError(
        f'{name}={getattr(roles, name)} and labels={roles.labels} both say who took '
        'part; leave one of them out.'
      )
  labels = _read_values(roles.labels, LABELS)

  def split(file: str | os.PathLike, name: str | None) -> Scores:
    names = os.fspath(file), os.fspath(roles.labels or '')
    values = _read_values(file, SCORES, name, settings)
    return formats.split_by_label(file, values, labels, names=names, **settings)

  blind = None
  if roles.baseline is not None:
    is_file = pathlib.Path(roles.baseline).is_file()
    where = (roles.baseline, None) if is_file else (path, roles.baseline)
    blind = split(*where)
  return Loaded(split(path, roles.score), baseline=blind)


def _read_values(
  path: str | os.PathLike,
  known: Sequence[str],
  name: str | None = None,
  settings: formats.Settings | None = None,
) -> np.ndarray:
  """Scores or labels from a file that has one column, or one of known names.

  Args:
    path: of the file.
    known: `SCORES` or `LABELS`.
    name: of the column; None where it is the only one, or of a known name.
    settings: of scores, which may be losses; None if their sign is of no account.
  """
  where = columns.name_file(path)
  if where != 'stdin' and not pathlib.Path(path).is_file():
    raise FileNotFoundError(f'{path} does not exist; give a file of scores.')
  if pathlib.Path(path).suffix == '.npy':
    if name is not None:
      raise ValueError(
        f'{where} has no columns, and so not {name!r}; give a table.'
      )
    array = _Arrays(where, {'array': io.read_array(path)})
    return array.labels('array') if known is LABELS else array.scores('array')
  source = _open(path)
  if name is None:
    names = source.names
    if len(names) > 1:
      names = [x for x in names if columns.normalize(x) in known]
    if len(names) != 1:
      raise ValueError(
        f'{where} has the {source.what}s {_list(source.names)}, and nothing says which '
        f'is meant; name that of scores by score=NAME, or leave one {source.what} alone.'
      )
    name = names[0]
  if known is LABELS:
    return source.labels(name)
  if settings is not None:
    _refuse_unsigned(where, name, settings)
  return _take_scores(source, name)[1]


def _open(path: str | os.PathLike) -> '_Source':
  """The columns of a file, which may be one without a name."""
  where, suffix = columns.name_file(path), pathlib.Path(path).suffix.lower()
  if suffix == '.npz':
    return _Arrays(where, io.read_arrays(path))
  if suffix in ('.json', '.jsonl', '.ndjson', '.parquet'):
    return _Table(columns.read(path, cure=_NO_NAMES))
  lines = columns.split_lines(columns.read_text(path))
  lines = [x for x in lines if not columns.is_comment(x)]
  name = 'score'
  if lines and _is_name(lines[0][1], lines[1:]):
    line, text = lines[0]
    parts = re.split(r'[,;|\s]+', text.strip().replace('_', ''))
    if any(map(columns.is_number, parts)):
      raise ValueError(
        f'{where}, line {line}: {text!r} is not a number and no name; give one '
        'score in each line.'
      )
    if re.search(r'[,;|\t]', text.strip()) and where != 'stdin':
      return _Table(columns.read(path, cure=_NO_NAMES))
    name = text.strip()
    del lines[0]
  if not lines:
    raise ValueError(f'{where} has no scores; give one in each line.')
  values = [[text.strip() for _, text in lines]]
  numbers = [number for number, _ in lines]
  return _Table(Columns(where, [name], [*values], numbers))


def _is_name(first: str, others: Sequence[Cell]) -> bool:
  """Whether the first line is a name, which may be a word that labels have too."""
  if columns.is_number(first) or _spell(first) not in _WORDS:
    return not columns.is_number(first)
  return bool(others) and all(columns.is_number(text) for _, text in others)


class _Table(NamedTuple):
  """Columns of text."""

  table: Columns
  what = 'column'

  @property
  def names(self) -> list[str]:
    return self.table.names

  @property
  def where(self) -> str:
    return self.table.where

  def cells(self, name: str) -> list[Cell]:
    return self.table.take(name)

  def scores(self, name: str) -> np.ndarray:
    return _to_numbers(self.table, name, self.table.take(name))

  def group(self, name: str) -> np.ndarray:
    # One group may be smaller than the other.
    cells = self.table.take(name)
    while cells and not cells[-1][1]:
      cells.pop()
    return _to_numbers(self.table, name, cells)

  def labels(self, name: str) -> np.ndarray:
    describe = self.table.describe_place
    return _to_labels(describe, name, self.table.take(name))

  def has_guesses(self, name: str) -> bool:
    return all(_is_label(text) for _, text in self.table.take(name))


class _Arrays(NamedTuple):
  """Arrays of an .npz."""

  where: str
  arrays: Mapping[str, np.ndarray]
  what = 'array'

  @property
  def names(self) -> list[str]:
    return sorted(self.arrays)

  def cells(self, name: str) -> list[Cell]:
    return [*enumerate(map(str, self.scores(name).tolist()), 1)]

  def scores(self, name: str) -> np.ndarray:
    return np.atleast_1d(np.squeeze(self.arrays[name]))

  group = scores

  def labels(self, name: str) -> np.ndarray:
    labels = self.scores(name)
    if labels.dtype.kind not in 'US':
      return labels
    describe = lambda number: f'{self.where}, entry {number}'
    return _to_labels(describe, name, [*enumerate(map(str, labels), 1)])

  def has_guesses(self, name: str) -> bool:
    return bool(np.all(np.isin(self.scores(name), (0, 1, -1))))


_Source: TypeAlias = _Table | _Arrays


def _choose(
  source: _Source, roles: Roles, settings: formats.Settings
) -> Loaded:
  """What is in a file, by the names of its columns and what the user says of them.

  Raises:
    ValueError: that is not one audit.
  """
  names = {columns.normalize(name) for name in source.names}
  if roles.in_scores is not None or roles.out_scores is not None:
    _refuse_baseline(source, roles)
    return Loaded(_pair_named(source, roles, settings))
  is_free = roles.score is None and roles.label is None
  if is_free and {'fpr', 'tpr'} <= names:
    _refuse_baseline(source, roles)
    return Loaded(_read_roc(source, roles, settings))
  for name in NUMBERS:
    if getattr(roles, name) is not None:
      raise ValueError(
        f'{name}={getattr(roles, name)} is of a ROC, but {source.where} has no '
        f'{source.what}s fpr and tpr; leave it out.'
      )
  if is_free and {*map(str.lower, FIELDS)} <= names:
    _refuse_baseline(source, roles)
    cells = {x: source.cells(_find(source, x)) for x in FIELDS}
    return Loaded(counts.from_cells(source.where, cells))
  pairs = [pair for pair in PAIRS if {*pair} <= names] if is_free else []
  scores = [x for x in SCORES if x in names] or [
    x for x in GUESSES if x in names
  ]
  labels = [x for x in LABELS if x in names]
  # A table of ours may have more columns.
  score = roles.score or _choose_one(scores, 'score')
  label = roles.label or _choose_one(labels, 'observed')
  if score and label and not pairs:
    return _split(source, score, label, roles.baseline, settings)
  if len(pairs) == 1 and not scores:
    _refuse_baseline(source, roles)
    groups = [source.group(_find(source, name)) for name in pairs[0]]
    return Loaded(formats.make_scores(source.where, *groups, **settings))
  if pairs:
    others = [f'{" and ".join(pair)} are groups' for pair in pairs]
    known = [*others, *(f'{x} has scores of both' for x in scores)]
  else:
    known = [
      _describe_choice(score, scores, 'the scores'),
      _describe_choice(label, labels, 'who took part'),
    ]
  cure = _NAME_THEM if len(source.names) > 1 else _NO_NAMES
  raise ValueError(
    f'{source.where} has the {source.what}s {_list(source.names)}: '
    f'{", ".join(known)}. {cure}'
  )


def _choose_one(names: Sequence[str], usual: str) -> str | None:
  if usual in names:
    return usual
  return names[0] if len(names) == 1 else None


def _describe_choice(one: str | None, names: Sequence[str], role: str) -> str:
  if one is not None:
    return f'{one} tells {role}'
  return f'{" or ".join(names) or "no known name"} tells {role}'


def _list(names: Sequence[str]) -> str:
  shown = ', '.join(
    repr(x) if x else 'one without a name' for x in names[:_SHOWN]
  )
  return (
    shown if len(names) <= _SHOWN else f'{shown} and {len(names) - _SHOWN} more'
  )


def _pair_named(
  source: _Source, roles: Roles, settings: formats.Settings
) -> Scores:
  """The two groups whose columns the user names."""
  groups = []
  for name in ('in_scores', 'out_scores'):
    if (given := getattr(roles, name)) is None:
      raise ValueError(
        f'{name}=NAME is missing: an audit compares two groups. Name its {source.what} '
        f'among {_list(source.names)}.'
      )
    _refuse_unsigned(source.where, given, settings)
    groups.append(source.group(_find(source, given)))
  for name in ('score', 'label', *NUMBERS):
    if getattr(roles, name) is not None:
      raise ValueError(
        f'{name}={getattr(roles, name)}, but in_scores and out_scores are all scores '
        'there are; leave it out.'
      )
  return formats.make_scores(source.where, *groups, **settings)


def _find(source: _Source, name: str) -> str:
  """A column or array as the file names it."""
  table = Columns(source.where, source.names, [])
  if (found := table.find(name)) is None:
    raise ValueError(
      f'{source.where} has no {source.what} {name!r}, but {_list(source.names)}. {_NAME_THEM}'
    )
  return found


def _take_scores(source: _Source, name: str) -> tuple[str, np.ndarray]:
  """A column of scores, or the difference of two."""
  table = Columns(source.where, source.names, [])
  if (found := table.find(name)) is not None:
    return found, source.scores(found)
  for cut in (i for i, letter in enumerate(name) if letter == '-'):
    first, second = table.find(name[:cut]), table.find(name[cut + 1 :])
    if first is not None and second is not None:
      ones, others = map(source.scores, (first, second))
      _check_sizes(source.where, (first, second), (ones, others))
      with np.errstate(invalid='ignore'):
        return f'{first} - {second}', np.subtract(
          ones, others, dtype=np.float64
        )
  return _find(source, name), np.empty(0)


def _refuse_baseline(source: _Source, roles: Roles) -> None:
  if roles.baseline is not None:
    raise ValueError(
      f'baseline={roles.baseline}, but {source.where} has no row for each example; give '
      'a file with a score, a label and a baseline in each.'
    )


def _split(
  source: _Source,
  score: str,
  label: str,
  blind: str | None,
  settings: formats.Settings,
) -> Loaded:
  """Scores, or guesses, with a label each."""
  label = _find(source, label)
  labels, usual = source.labels(label), columns.normalize(score)
  if usual in GUESSES and source.has_guesses(_find(source, score)):
    if blind is not None:
      raise ValueError(
        f'baseline={blind} is of scores, but {score!r} of {source.where} has guesses; '
        'leave it out.'
      )
    guesses = source.labels(_find(source, score))
    _check_sizes(source.where, (score, label), (guesses, labels))
    return Loaded(counts.count_guesses(source.where, guesses, labels))
  score, values = _take_scores(source, score)
  _refuse_unsigned(source.where, score, settings)

  def split(name: str, values: np.ndarray) -> Scores:
    return formats.split_by_label(
      source.where, values, labels, names=(name, label), **settings
    )

  scores = split(score, values)
  if blind == ONE_POPULATION:
    return Loaded(scores)
  if blind is not None:
    name = columns.Columns(source.where, source.names, []).find(blind)
    column = (
      (name, _order(source, name)) if name else _take_scores(source, blind)
    )
    return Loaded(scores, baseline=split(*column))
  others = {}
  for name in source.names:
    spelled = columns.normalize(name)
    is_blind = spelled in BLIND or BLIND_WORDS & {*spelled.split('_')}
    if is_blind and name not in (score, label):
      with contextlib.suppress(ValueError):
        others[name] = _order(source, name)
  return Loaded(scores, doubt=baseline.suspect(others, labels))


def _refuse_unsigned(where: str, name: str, settings: formats.Settings) -> None:
  """Refuses losses of which nobody says whether they were negated."""
  if 'loss' in columns.normalize(name) and 'higher' not in settings:
    raise ValueError(
      f'{where} has losses, {name!r}, which are lower for what was trained on. Say so '
      'with --higher=out, or say --higher=in if they are negated.'
    )


def _order(source: _Source, name: str) -> np.ndarray:
  """The numbers of a column, the seconds of its dates or the ranks of its words.

  Raises:
    ValueError: it has numbers and other cells.
  """
  texts = [text for _, text in source.cells(name)]
  for form in _DATES:
    with contextlib.suppress(ValueError):
      dates = [_parse_date(text, form) for text in texts]
      # Zones are of no account where none is named.
      zoned = [x.replace(tzinfo=x.tzinfo or datetime.UTC) for x in dates]
      return np.array([x.timestamp() for x in zoned])
  if any(map(columns.is_number, texts)):
    return source.scores(name)
  return np.unique(texts, return_inverse=True)[1].astype(np.float64)


def _parse_date(text: str, form: str) -> datetime.datetime:
  date = datetime.datetime
  return date.strptime(text, form) if form else date.fromisoformat(text)


def _check_sizes(where, names, arrays):
  first, second = map(np.size, arrays)
  if first != second:
    raise ValueError(
      f'{where}: {names[0]} has {first:,} entries and {names[1]} {second:,}; give one '
      'of each for a canary.'
    )


def _read_roc(
  source: _Source, roles: Roles, settings: formats.Settings
) -> Scores:
  """The order of scores, from the rates at each threshold."""
  numbers: list[float] = []
  for name in NUMBERS:
    number = getattr(roles, name)
    if number is None and name in source.names:
      number = source.scores(name)[0]
    if number is None:
      raise ValueError(
        f'{source.where} has a ROC, fpr and tpr. Say of how many canaries: num_in=N '
        'took part, num_out=N did not.'
      )
    numbers.append(float(number))
  fpr, tpr = (source.scores(_find(source, name)) for name in ('fpr', 'tpr'))
  order = counts.order_by_roc(source.where, fpr, tpr, *numbers)
  scores = formats.make_scores(source.where, *order, **settings)
  return dataclasses.replace(scores, is_ordinal=True)


def _spell(text: str) -> str:
  return re.sub(r'[-_\s]', '', text.lower())


def _is_label(text: str) -> bool:
  word = str(_WORDS.get(_spell(text), text))
  return columns.is_number(word) and float(word) in (0, 1, -1)


def _to_labels(
  describe_place: Callable[[int], str], name: str, cells: Sequence[Cell]
) -> np.ndarray:
  # There are few words, and many cells.
  words = {text: _is_label(text) for text in {text for _, text in cells}}
  for number, text in cells:
    if not words[text]:
      raise ValueError(
        f'{describe_place(number)}, column {name}: {text!r} does not say who took '
        'part; write 1 or 0.'
      )
  labels = {text: float(_WORDS.get(_spell(text), text)) for text in words}
  return np.array([labels[text] for _, text in cells])


def _to_numbers(
  table: Columns, name: str, cells: Sequence[Cell]
) -> Float[np.ndarray, ' n']:
  for number, text in cells:
    if columns.is_number(text):
      value = float(text)
      is_spelled = math.isinf(value) and 'inf' in text.lower()
      if math.isfinite(value) or is_spelled:
        continue
    fault = 'not finite' if text else 'missing'
    cure = (
      'Remove such rows if they do not depend on who took part, or fix them.'
    )
    if text and not columns.is_number(text):
      fault, cure = 'not a number', 'Fix the cell.'
      if columns.is_number(text.replace(',', '.')):
        cure = 'Use a point as the decimal mark.'
    raise ValueError(
      f'{table.describe_place(number)}, column {name}: {text!r} is {fault}. {cure}'
    )
  return np.array([float(text) for _, text in cells], np.float64)
