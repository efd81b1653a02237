"""The analytic ε of mechanisms, each with what it assumes.

Each is loaded when it is first used: what an ε assumes is read without an accountant.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
