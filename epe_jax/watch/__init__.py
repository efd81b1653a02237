"""ε while a run trains and of what it publishes: after each round, at all rounds at once.

`evaluate_by_round` cuts a run off after some rounds, `bound_sequentially` holds at all
of them at once, and `restrict_record` is for attackers who see some rounds or models.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
