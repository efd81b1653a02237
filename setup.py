"""Lets `pip install .` work; everything is declared in pyproject.toml."""

import setuptools

setuptools.setup()
