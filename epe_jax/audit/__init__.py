"""From what attackers see of a run to estimates of ε.

Observers and `audited` need JAX; records, threat models and estimates do not, so
each is loaded when it is first used.

What is the same in every function, and explained here alone:

- `record`: what attackers saw of a run, or of a part of it.
- `threat_model`: the attacker; `view`, `is_expected`, `notes` and `contradictions` are
  as in `AttackScores`.
- `canaries`: all canaries of a run, observed and unobserved.
- `participation`, `included`: 0/1, row t holds the canaries of round t.
- `observers`: by name; `state` is one of `audited` with these observers.
- `trace`: cosines of canaries with the aggregate of each round; `expected`, their mean
  for a canary of that round.
- `shift`: by how much taking part shifts the score of each canary, > 0, up to one
  factor; None if that is not known, and then no estimate is calibrated.
- `scores`: of canaries, one audit without leading axes.
- `estimate`, `analytic`: of one attacker, at one δ; None if there is none.
- `dim`, `delta`: d, and δ in (0, 1).
"""

import lazy_loader

from epe_jax import extras

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = extras.explain_missing()(__getattr__)
