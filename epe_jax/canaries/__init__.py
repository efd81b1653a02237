"""Canary sets: k unit vectors in R^d, held as the linear map C they form.

Arguments that many functions share:

  key: the canary key; never the key of the privacy noise.
  num: k >= 1.
  dim: d >= 2.
  block: canaries that a device holds at once, >= 1.
  mesh: the devices.

A ValueError is raised where one is out of range.
"""

import lazy_loader

from epe_jax import extras

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = extras.explain_missing()(__getattr__)
