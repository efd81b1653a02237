"""The command line `epe-jax`: a module for each command, with its flags.

Modules of commands import what they need when they are called, so that help is shown
at once and each needs no more than its own extras.
"""

from epe_jax.cli.program import main

__all__ = ['main']
