"""The environment of a process that leaves the memory of the device to others."""

SHARES_DEVICE = {'XLA_PYTHON_CLIENT_PREALLOCATE': 'false'}
"""For a part that starts benchmarks, of which each takes what it needs."""
