"""Imports: the splits of a source as stores in a folder, each written once.

`epe-jax data` names the folder, which is then the `data.path` of configs. A run that is
given another source imports it into a folder of its cache.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import hashlib
import itertools
import os
import pathlib
import re
import reprlib
import time
from typing import Any, NamedTuple, TypeGuard

from epe_jax import io, progress, python_path
from epe_jax.data import (
  data_sets,
  decoding,
  federated,
  sources,
  store,
  vocabulary,
)

# Raise it when what is imported changes, so that old folders of caches are not used.
_VERSION = 2


class Written(NamedTuple):
  """A split that was written into a store.

  Attributes:
    split: its name.
    clients: number of clients.
    examples: number of examples of all clients.
    bytes: size of its file.
    seconds: duration of the import; 0 if the store existed.
  """

  split: str
  clients: int
  examples: int
  bytes: int
  seconds: float


def import_(
  origin: str | os.PathLike | sources.Source,
  folder: str | os.PathLike,
  *,
  splits: Sequence[str] | None = None,
  text: vocabulary.Text = vocabulary.PAPER,
  make_recipes: Callable[..., decoding.ChooseRecipe] | None = None,
  public: str | None = None,
  workers: int = 0,
) -> Iterator[Written]:
  """Writes splits into stores, folder/SPLIT.arrow; existing ones are left unchanged.

  An interrupted call is resumed by the next one.

  Args:
    origin: what `sources.open_source` understands.
    folder: where to write.
    splits: which ones; None: all.
    text: how sentences are written.
    make_recipes: as in `data_sets.Federated`. None: that of the data set that has the
      features of the examples; if there is none, arrays are written unchanged.
    public: name in `data_sets.list_downloads` of the file that this should be; None:
      any file.
    workers: processes that decode, as for `decoding.decode_clients`.

  Yields:
    Each split, once it is written.

  Raises:
    FileNotFoundError, ValueError: if the source is missing, of no known form
      or damaged, has no such split, or folder/SPLIT.arrow was made of something else.
  """
  folder, opening = pathlib.Path(folder), sources.open_source(origin)
  identity = {'fingerprint': compute_fingerprint(origin)}
  with io.name_disk_errors(folder), opening as source:
    if public:
      data_sets.check_counts(public, source.splits)
    splits = [*source.splits] if splits is None else splits
    for split in splits:
      _check_split(source, split)
    make_recipes = make_recipes or _find_recipes(source, splits[0])
    digits = _hash((*identity.values(), text.vocabulary_size))
    counts = folder / f'.train-{digits}.word_count'
    choose_recipe = make_recipes(source, text, counts, workers)
    for split in splits:
      recipe, start = choose_recipe(split), time.monotonic()
      path, meta = locate_split(folder, split), {**recipe.meta, **identity}
      if exists := path.exists():
        _check_same(path, meta)
      else:
        _write_split(path, source, split, recipe, meta, workers)
      seconds = 0.0 if exists else time.monotonic() - start
      header = store.read_header(path)
      yield Written(
        split,
        header.num_clients,
        header.num_examples,
        path.stat().st_size,
        seconds,
      )


def locate(
  origin: str | os.PathLike | sources.Source,
  splits: Sequence[str],
  make_recipes: Callable[..., decoding.ChooseRecipe],
  *,
  text: vocabulary.Text = vocabulary.PAPER,
  cache: str | os.PathLike | None = None,
) -> pathlib.Path:
  """Gives the folder of the stores of a source, into which it is imported if need be.

  Args:
    origin: a folder of stores, or what `sources.open_source` understands.
    splits: those that are needed.
    make_recipes: as for `import_`, and so is `text`.
    cache: directory of the folders of sources; `io.user_cache` if None. The name of a
      folder depends on the path, size and time of a file or folder, or on the name of
      a generated source, which should contain all of its parameters.

  Raises:
    FileNotFoundError, ValueError: as `import_`.
  """
  if is_prepared(origin):
    return pathlib.Path(origin)
  key = [compute_fingerprint(origin), text, _VERSION, store.VERSION]
  if text.word_count is not None:
    key.append(compute_fingerprint(text.word_count))
  if isinstance(origin, sources.Source):
    name = origin.name.split()[0]
  else:
    path = pathlib.Path(origin).resolve()
    name = path.name.split('.')[0]
    key.append(str(path))
  cache = io.user_cache() if cache is None else cache
  folder = pathlib.Path(cache, f'{name}-{_hash(key)}')
  if not all(locate_split(folder, split).exists() for split in splits):
    list(
      import_(
        origin, folder, splits=splits, text=text, make_recipes=make_recipes
      )
    )
  return folder


def load_split(
  folder: str | os.PathLike, split: str, expected: Mapping[str, Any]
) -> federated.FederatedData:
  """Opens a split of a folder of stores.

  Args:
    folder: of stores.
    split: which one.
    expected: items that the meta in its header should have.

  Raises:
    ValueError: the split is missing, or was made with other settings.
  """
  try:
    meta = read_meta(folder, split)
  except FileNotFoundError as error:
    splits = sorted(p.stem for p in pathlib.Path(folder).glob(_STORES))
    raise ValueError(
      f'{folder} has no split {split!r}, only {splits}. Make it with '
      '`epe-jax data`, or choose another.'
    ) from error
  path = locate_split(folder, split)
  for name, value in expected.items():
    if meta.get(name) != value:
      raise ValueError(
        f'{path} was prepared with {name}={reprlib.repr(meta.get(name))}, not '
        f'{reprlib.repr(value)}. Ask for that, or prepare the data again in another '
        'folder with `epe-jax data`.'
      )
  return store.load(path)


_STORES = f'*{store.SUFFIX}'


def is_prepared(
  path: str | os.PathLike | sources.Source,
) -> TypeGuard[str | os.PathLike]:
  """Whether a path is a folder of stores."""
  return not isinstance(path, sources.Source) and any(
    pathlib.Path(path).glob(_STORES)
  )


def read_meta(folder: str | os.PathLike, split: str) -> Mapping[str, Any]:
  """Reads what the header of a split says of its recipe and its source."""
  return store.read_header(locate_split(folder, split)).meta


def locate_split(folder: str | os.PathLike, split: str) -> pathlib.Path:
  """Gives the path of a split in a folder of stores."""
  return pathlib.Path(folder, f'{split}{store.SUFFIX}')


def compute_fingerprint(origin: str | os.PathLike | sources.Source) -> str:
  """Computes 16 digits that change if a file, or one in a folder, is replaced.

  They depend on sizes and times, not on contents, which may be 100 GB. Those of a
  function are of its file.
  """
  if isinstance(origin, sources.Source):
    return _hash(origin.name)
  if python_path.is_function(origin):
    module = python_path.import_module(str(origin).partition(':')[0])
    origin = str(module.__file__)
  path = sources.check_exists(origin)
  files = sorted(p for p in path.rglob('*') if p.is_file())
  stats = {file.relative_to(path): file.stat() for file in files or [path]}
  return _hash([(str(f), s.st_size, s.st_mtime_ns) for f, s in stats.items()])


def _write_split(
  path: pathlib.Path,
  source: sources.Source,
  split: str,
  recipe: decoding.Recipe,
  meta: Mapping[str, Any],
  workers: int,
) -> None:
  with progress.bar(
    total=source.splits[split].examples,
    desc=f'importing {split}',
    unit=' examples',
  ) as bar:
    store.write(
      path,
      source.read(split),
      source=f'{source.name}, split {split!r}',
      meta=meta,
      decode=lambda clients: decoding.decode_clients(
        clients, source, split, recipe, workers=workers
      ),
      report_progress=bar.update,
    )


def _hash(key: object) -> str:
  """16 digits that differ between objects of different `repr`."""
  return hashlib.sha256(repr(key).encode()).hexdigest()[:16]


def _check_split(source: sources.Source, split: str) -> None:
  sources.find_split(source.splits, split, source.name)
  # It becomes the name of a file.
  if not re.fullmatch(r'\w[\w.-]*', split):
    raise ValueError(
      f'{source.name}: the split {split!r} cannot be the name of a file. '
      "Rename it to letters, digits, '_', '-' and '.'."
    )


def _check_same(path: pathlib.Path, meta: Mapping[str, Any]) -> None:
  before = store.read_header(path).meta
  for name in sorted(meta.keys() | before.keys()):
    if before.get(name) != meta.get(name):
      what = 'the file' if name == 'fingerprint' else name
      raise ValueError(
        f'{path} exists, but {what} was another when it was made. Delete it '
        'to make it again, or choose another folder.'
      )


def _find_recipes(
  source: sources.Source, split: str
) -> Callable[..., decoding.ChooseRecipe]:
  """The recipes of the data set that has the features of the source."""
  for declared in map(data_sets.find_federated, data_sets.list_federated()):
    features = declared.features
    make = declared.make_recipes
    if make and features and _has_features(source, split, features):
      return make
  features = source.features
  if features is None:
    raise ValueError(
      f'{source.name} has neither tokens nor pixels and label. Give its rows by '
      'a function, package.module:function.'
    )
  meta = {'recipe': 'arrays', 'features': sorted(features)}
  recipe = decoding.Recipe(features, dict, meta)
  return lambda *_: lambda split: recipe


def _has_features(
  source: sources.Source, split: str, features: sources.Features
) -> bool:
  if source.features is not None:
    return features.keys() <= source.features.keys()
  try:
    for _, raw in itertools.islice(source.read(split), 1):
      source.decode(raw, features)
  except ValueError:
    return False
  return True
