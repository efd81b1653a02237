"""The command line `epe-jax`: a module for each command, with its flags.

A command imports what it needs when it is called, so that help is shown at once and
each needs only its own extras. Throughout, `values` are its flags, and `argv` is the
name of the program and the arguments.
"""

from epe_jax.cli.program import main

__all__ = ['main']
