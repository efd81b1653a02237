"""Estimates of ε from canary scores, on the host and in float64.

This package needs NumPy and SciPy and no JAX: it can be installed on a laptop
and pointed at a file of scores, whatever system trained the model. An estimator
is a pure function `(scores, *, delta, ...) -> Estimate` that works on the last
axis of the scores and broadcasts over the others. Each name is loaded when it is
first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
