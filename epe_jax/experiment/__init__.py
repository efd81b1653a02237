"""Runs from configs: built, trained, checkpointed, written.

Throughout, `config` is the config of a run with every field set, as the files in
configs/ give it; `setup` is what `build` made of it; and `mesh` is the devices that
share the work, None for one.
"""

import lazy_loader

from epe_jax import extras

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = extras.explain_missing()(__getattr__)
