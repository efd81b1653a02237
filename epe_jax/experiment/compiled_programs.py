"""Compiled programs, kept on the disk for the next run.

Compiling takes longer than anything else that a small run does. What is kept depends
on shapes, settings, libraries and the machine, and on no seed: keys and the rounds
of canaries are arguments of the programs.
"""

import os
import pathlib

import jax

# Below this, reading takes as long as compiling.
_MIN_SECONDS = 0.05


def keep_programs() -> None:
  """Keeps compiled programs in $XDG_CACHE_HOME/epe_jax/programs, for later ones.

  The folder is in ~/.cache if there is no such variable. A folder that JAX was told
  to use, by JAX_COMPILATION_CACHE_DIR, has precedence; with
  JAX_ENABLE_COMPILATION_CACHE=0 nothing is kept. Call it before anything is
  compiled. A folder that cannot be written to is no error.
  """
  if jax.config.values['jax_compilation_cache_dir'] is not None:
    return
  home = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  folder = pathlib.Path(home, 'epe_jax', 'programs')
  jax.config.update('jax_compilation_cache_dir', str(folder))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', _MIN_SECONDS)
