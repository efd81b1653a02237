"""The type checker that the tests put into the package."""

import beartype
import jaxtyping

# An int is a number too, wherever a float is.
_check = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))


def checked(function):
  """The function with its types checked, but for what is made while none are."""
  if jaxtyping.config.jaxtyping_disable and '<locals>' in function.__qualname__:
    return function
  return _check(function)
