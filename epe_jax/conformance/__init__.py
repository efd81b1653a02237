"""Runs a user's DP aggregation under adversarial inputs; names the broken rule.

It needs NumPy and SciPy alone. Each name is loaded when it is first used, so that
the pytest plugin costs nothing where no test asks for it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
