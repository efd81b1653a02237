"""Clients of a weighted mean that weigh more than canaries, and leak more."""

import warnings

from epe_jax.auditor.auditor import Auditor
from epe_jax.epsilon import tradeoff
from epe_jax.fact import Fact
from epe_jax.report import checks

_ROUNDING = 1.01


def note_larger(
  auditor: Auditor,
  *,
  largest: float,
  canary: float,
  weighted_by: str,
  option: str = '',
  share: float | None = None,
) -> None:
  """Notes the ε of the largest client of a round, if it weighs more than a canary.

  The report of the auditor has the largest one of all rounds; the first one is also
  a warning. Nothing is noted if no noise is claimed.

  Args:
    auditor: of the round.
    largest: the largest weight of a client.
    canary: the weight of a canary.
    weighted_by: what clients are weighted by.
    option: of the adapter, for the weight of canaries; '' if it has none.
    share: influence of the largest client on the mean, in units of S/n, for which the
      noise is; None if the noise is for the weight of a canary.

  References:
    docs/findings.md: a weighted mean moves by the largest share of the weights.
  """
  z, delta = auditor.config.noise_multiplier, auditor.config.delta
  if not z or largest <= _ROUNDING * canary:
    return
  influence = largest / canary if share is None else share
  epsilon = float(tradeoff.epsilon_gdp(influence / z, delta))
  note = Fact(
    'larger_clients',
    {
      'weighted_by': weighted_by,
      'largest': float(largest),
      'canary': float(canary),
      'epsilon': epsilon,
      'claimed': float(tradeoff.epsilon_gdp(1 / z, delta)),
      'delta': delta,
      'option': option,
    },
  )
  earlier = [x for x in auditor.notes if x.key == note.key]
  if not earlier:
    warnings.warn(f'{checks.describe_check(note)}.', stacklevel=3)
  if all(float(str(x.values['epsilon'])) < epsilon for x in earlier):
    auditor.add_note(note)
