"""Splits of sources as stores, which are imported once.

A run imports them into a cache when it first needs them. `prepare.prepare` imports them
in advance, into a folder with a file SPLIT.arrow for each split.
"""

from collections.abc import Callable, Mapping, Sequence
import hashlib
import os
import pathlib
import reprlib
from typing import Any, TypeGuard

from epe_jax import io, progress
from epe_jax.data import decoding, federated, sources, store


def compute_fingerprint(path: str | os.PathLike) -> str:
  """Computes 16 digits that change if a file, or one in a folder, is replaced.

  They depend on sizes and times, not on contents, which may be 100 GB.

  Raises:
    FileNotFoundError: if there is nothing.
  """
  path = pathlib.Path(path)
  if not path.exists():
    raise FileNotFoundError(f'{path} does not exist. Give a file or a folder.')
  files = sorted(p for p in path.rglob('*') if p.is_file())
  stats = {file.relative_to(path): file.stat() for file in files or [path]}
  key = [(str(f), s.st_size, s.st_mtime_ns) for f, s in stats.items()]
  return hash_key(key)


def hash_key(key: object) -> str:
  """Computes 16 digits that differ between objects of different `repr`."""
  return hashlib.sha256(repr(key).encode()).hexdigest()[:16]


def choose_cache_path(
  origin: str | os.PathLike | sources.Source,
  part: str,
  *,
  key: object,
  suffix: str = store.SUFFIX,
  cache: str | os.PathLike | None = None,
) -> pathlib.Path:
  """Chooses the cache path of an import.

  Args:
    origin: what is imported. The path depends on the path, size and time of a file
      or folder, and on the name of a generated source, which should contain all of
      its parameters.
    part: part of the origin, e.g. a split.
    key: everything else that makes a difference, as an object whose `repr` is
      complete: what is imported, and a version of the importing code.
    suffix: of the file.
    cache: directory of the imports; `io.user_cache` if None.

  Returns:
    Path of a file, which need not exist.
  """
  cache = io.user_cache() if cache is None else cache
  if isinstance(origin, sources.Source):
    name, contents = origin.name.split()[0], (origin.name,)
  else:
    path = pathlib.Path(origin).resolve()
    name, contents = (
      path.name.split('.')[0],
      (
        str(path),
        compute_fingerprint(path),
      ),
    )
  digits = hash_key((*contents, part, key, store.VERSION))
  return pathlib.Path(cache, f'{name}-{part}-{digits}{suffix}')


def load_splits(
  origin: str | os.PathLike | sources.Source,
  splits: Sequence[str],
  make_recipes: Callable[[sources.Source], Callable[[str], decoding.Recipe]],
  *,
  key: object,
  cache: str | os.PathLike | None = None,
) -> list[federated.FederatedData]:
  """Loads splits from the cache, into which those that are missing are imported.

  Args:
    origin: what `sources.open_source` understands.
    splits: which ones.
    make_recipes: (open source) -> (split -> recipe), called if a split is missing.
    key: as for `choose_cache_path`, and so is the cache.
    cache: directory of the imports.

  Raises:
    FileNotFoundError, ValueError: as `sources.open_source` and `import_split`.
  """
  if not isinstance(origin, sources.Source):
    origin = sources.check_exists(origin)
  paths = {
    split: choose_cache_path(origin, split, key=key, cache=cache)
    for split in splits
  }
  if not all(path.exists() for path in paths.values()):
    with sources.open_source(origin) as source:
      choose_recipe = make_recipes(source)
      for split, path in paths.items():
        import_split(path, source, split, choose_recipe(split))
  return [store.load(path) for path in paths.values()]


def import_split(
  path: pathlib.Path,
  source: sources.Source,
  split: str,
  recipe: decoding.Recipe,
  *,
  meta: Mapping[str, Any] | None = None,
  workers: int = 0,
) -> federated.FederatedData:
  """Writes a split into a store, with a progress bar, unless the store exists.

  Args:
    path: of the store.
    source: where to read.
    split: one of its splits.
    recipe: features and columns; its meta is kept in the header of the store.
    meta: more to keep there.
    workers: as for `decoding.decode_clients`.

  Raises:
    ValueError: as `decoding.decode_clients` and `store.write`, or if the
      store was begun from something else.
  """
  numbers = source.splits.get(split, sources.Split(None, None))
  with progress.bar(
    total=numbers.examples,
    desc=f'importing {split}',
    unit=' examples',
  ) as bar:
    return store.write(
      path,
      source.read(split),
      source=f'{source.name}, split {split!r}',
      meta={**recipe.meta, **(meta or {})},
      exist_ok=True,
      decode=lambda clients: decoding.decode_clients(
        clients, source, split, recipe, workers=workers
      ),
      report_progress=bar.update,
    )


def is_prepared(
  path: str | os.PathLike | sources.Source,
) -> TypeGuard[str | os.PathLike]:
  """Whether a path is a folder of stores."""
  return not isinstance(path, sources.Source) and any(
    pathlib.Path(path).glob(f'*{store.SUFFIX}')
  )


def load_prepared(
  folder: str | os.PathLike, split: str, expected: Mapping[str, Any]
) -> federated.FederatedData:
  """Opens a split of a folder that `prepare.prepare` made.

  Args:
    folder: of stores.
    split: which one.
    expected: items that the meta in its header should have.

  Raises:
    ValueError: the split is missing, or was made with other settings.
  """
  path = locate_split(folder, split)
  try:
    meta = store.read_header(path).meta
  except FileNotFoundError as error:
    splits = sorted(p.stem for p in path.parent.glob(f'*{store.SUFFIX}'))
    raise ValueError(
      f'{folder} has no split {split!r}, only {splits}. Make it with '
      '`epe-jax data`, or choose another.'
    ) from error
  for name, value in expected.items():
    if meta.get(name) != value:
      raise ValueError(
        f'{path} was prepared with {name}={reprlib.repr(meta.get(name))}, not '
        f'{reprlib.repr(value)}. Ask for that, or prepare the data again in another '
        'folder with `epe-jax data`.'
      )
  return store.load(path)


def read_meta(path: pathlib.Path) -> Mapping[str, Any]:
  """Reads the meta that `import_split` keeps in the header of a store."""
  return store.read_header(path).meta


def locate_split(folder: str | os.PathLike, split: str) -> pathlib.Path:
  """Gives the path of a split in a folder made by `prepare.prepare`."""
  return pathlib.Path(folder, f'{split}{store.SUFFIX}')
