"""Lets `pip install .` work; what it installs is declared in pyproject.toml.

All but one thing: the folder configs/ of a checkout is the package epe_jax.configs of
an installation, where `epe-jax run NAME` finds its files.
"""

import setuptools

setuptools.setup(
  packages=[
    *setuptools.find_packages(include=['epe_jax', 'epe_jax.*']),
    'epe_jax.configs',
  ],
  package_dir={'epe_jax.configs': 'configs'},
)
