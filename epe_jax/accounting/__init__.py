"""The analytic ε of mechanisms, each with what it assumes.

Each is loaded when it is first used: what an ε assumes is read without an accountant.
Arguments that many functions share:

  noise_multiplier: z >= 0, the standard deviation of the noise in clip norms.
  delta: δ in (0, 1).
  probability: q in (0, 1], of taking part in a round.
  rounds: T >= 1.

A ValueError is raised where one is out of range.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
