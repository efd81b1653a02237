"""Compiled programs, kept on the disk for the next run.

Compiling takes longer than anything else in a small run. A program depends on
shapes, settings, libraries and the machine, but on no seed: keys and the rounds of
canaries are its arguments.
"""

import contextlib
import pathlib

import jax

from epe_jax import io

_MAX_BYTES = 2**30
# Below this, reading takes as long as compiling.
_MIN_SECONDS = 0.05


def keep_programs() -> None:
  """Keeps compiled programs in programs/ of `io.user_cache`, for later ones.

  At most 1 GiB is kept: what was used last. A folder set by
  JAX_COMPILATION_CACHE_DIR has precedence, and JAX_ENABLE_COMPILATION_CACHE=0 keeps
  nothing. Call it before anything is compiled. A folder that is not writable is no
  error.
  """
  if jax.config.values['jax_compilation_cache_dir'] is not None:
    return
  folder = io.user_cache() / 'programs'
  # Another process may remove the same, and the next run tries again.
  with contextlib.suppress(OSError):
    remove_oldest(folder, _MAX_BYTES)
  jax.config.update('jax_compilation_cache_dir', str(folder))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', _MIN_SECONDS)


def remove_oldest(folder: pathlib.Path, max_bytes: int) -> None:
  """Removes the files that were used least recently, until the rest is small enough.

  Args:
    folder: its files; it need not exist.
    max_bytes: the largest size of the rest.
  """
  stats = {path: path.stat() for path in folder.glob('*')}
  size = sum(s.st_size for s in stats.values())
  for path in sorted(
    stats, key=lambda path: max(stats[path].st_atime, stats[path].st_mtime)
  ):
    if size <= max_bytes:
      return
    path.unlink()
    size -= stats[path].st_size
