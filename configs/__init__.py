"""What can be run: a module for each job, with `get_config(mode)`.

The package has them as `epe_jax.configs`, so that an installed one needs no
checkout; a file of a checkout is given to scripts by its path.
"""

from epe_jax import extras

with extras.explain_missing():
  from epe_jax.configs import common as common  # pyright: ignore[reportMissingImports]
