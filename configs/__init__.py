"""The configs of all jobs: a module for each job, with `get_config(mode)`.

The package has them as `epe_jax.configs`, so that an installed package needs no
checkout. The scripts of a checkout take the path of a file.
"""

from epe_jax import extras

with extras.explain_missing():
  from epe_jax.configs import common as common  # pyright: ignore[reportMissingImports]
