"""The families of canaries that are available on the host, by name."""

from epe_jax.auditor.host_canaries.hadamard import make_hadamard
from epe_jax.auditor.host_canaries.sphere import make_sphere

FAMILIES = {'hadamard': make_hadamard, 'sphere': make_sphere}
"""Name -> (key, num, dim) -> the canaries that `canaries.family(name)` makes."""
