"""DP-FedAvg and DP-SGD: training, clipping, and the round, without auditing.

Each name is loaded when it is first used: DP-SGD needs the extra 'dpsgd'.
"""

import lazy_loader

from epe_jax import extras

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = extras.explain_missing()(__getattr__)
