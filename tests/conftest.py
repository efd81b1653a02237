"""Shapes and dtypes in signatures are checked while the tests run.

What several tests compile is compiled once: all processes of a test run share
one cache of programs, which is made for the run and removed behind it.
"""

import os
import shutil
import tempfile

_CACHE = 'JAX_COMPILATION_CACHE_DIR'
_MADE_HERE = _CACHE not in os.environ
if _MADE_HERE:
  # Before JAX is imported. Workers, and scripts that tests start, inherit it.
  os.environ[_CACHE] = tempfile.mkdtemp(prefix='epe_jax_compiled_')
  os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0.3'

import jaxtyping  # noqa: E402

from tests import typecheck  # noqa: E402

jaxtyping.install_import_hook('epe_jax', f'{typecheck.__name__}.checked')


def pytest_unconfigure():
  if _MADE_HERE:
    shutil.rmtree(os.environ[_CACHE], ignore_errors=True)
