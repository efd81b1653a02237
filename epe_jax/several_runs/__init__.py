"""Several runs of one config: the mean of their shifts, and a prediction for one more.

`evaluate_runs` reads records or scores; `over_runs` has the law of their shifts.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
