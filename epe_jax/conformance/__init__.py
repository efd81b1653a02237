"""Runs a DP aggregation on adversarial inputs and names the rules that it breaks.

Needs NumPy and SciPy only. Names are loaded lazily, so that the pytest plugin costs
nothing in projects whose tests do not use it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
