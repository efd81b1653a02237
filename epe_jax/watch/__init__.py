"""ε while a run trains and of what it publishes: after each round, at all rounds at once.

`evaluate_by_round` cuts a run off after some rounds, `bound_sequentially` holds at all
of them at once, and `restrict_record` is for attackers who see some rounds or models.

What is the same in every function, and explained here alone:

- `record`: what attackers saw of the run.
- `delta`: δ, in (0, 1); None for the run's own.
- `significance`, in (0, 1): the chance that any bound of those that hold together
  exceeds the truth.
- An argument out of range is a ValueError.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
