"""Audits a loop of your own: decorates the function that adds its noise.

@loop.audit(rounds=60, clip_norm=1.0, noise_multiplier=0.5, delta=1e-5)
def privatize(total, count): ...

print(privatize.auditor.report())
"""

from collections.abc import Callable
import functools
from typing import Any, cast
import warnings

import numpy as np

from epe_jax.auditor.adapters import base
from epe_jax.auditor.auditor import Auditor
from epe_jax.auditor.host_canaries import structures
from epe_jax.epsilon.checks import check_number
from epe_jax.fact import Fact
from epe_jax.report import checks


def audit(
  function: None = None,
  /,
  *,
  divisor: float | None = None,
  auditor: Auditor | None = None,
  seed: int | None = None,
  **settings: Any,
) -> Callable[[Callable[[Any, float], Any]], 'AuditedFunction']:
  """Decorates the function of a loop that makes a release from a sum of updates.

  The function is called once in each round, as function(total, count): with the sum
  of the clipped updates, in arrays of any structure, and the number of clients. It
  adds noise, divides, and returns what the round releases in the same structure.
  The canaries of the round are added to both arguments, and all canaries are scored
  by what it returns. The sum is that of the real clients, so the strongest attacker,
  who knows it, is audited too.

  A round whose function fails is not observed, and its canaries are used again. Rounds
  beyond those of the settings are made without canaries, which a warning says.

  Args:
    function: nothing; settings are given in parentheses.
    divisor: by which the function divides; None for its count, 1 for a sum.
    **settings: rounds, clip_norm, noise_multiplier, delta, and others; dim is
      read from the first sum.

  >>> rng = np.random.default_rng(0)
  >>> @audit(rounds=20, clip_norm=1.0, noise_multiplier=0.5, delta=1e-5)
  ... def privatize(total, count):
  ...   return (total + 0.5 * rng.normal(size=total.shape)) / count
  >>> for _ in range(20):
  ...   release = privatize(np.zeros(10_000), 10)
  >>> privatize.auditor.record().trace.shape
  (20, 2000)
  """
  if function is not None:
    raise TypeError(
      '@loop.audit has no settings; write @loop.audit(rounds=..., clip_norm=..., '
      'noise_multiplier=..., delta=...).'
    )
  if divisor is not None:
    check_number('divisor', divisor, '(0, inf)')
  known = base.Settings(settings, auditor=auditor, seed=seed)
  known.require('dim')
  return lambda function: AuditedFunction(function, known, divisor)


class AuditedFunction(base.Audited):
  """A function that makes a release, with canaries; made by `audit`."""

  def __init__(
    self,
    function: Callable[[Any, float], Any],
    settings: base.Settings,
    divisor: float | None,
  ):
    functools.update_wrapper(self, function)
    self._function, self._settings = function, settings
    self._divisor = divisor

  def __call__(self, total: Any, count: float) -> Any:
    """Calls the function with the canaries of the next round, and scores them all.

    Args:
      total: the sum of clipped updates; it is not changed.
      count: the number of clients in it; 0 only with a divisor.

    Warns:
      UserWarning: all rounds were made, so that this one is not audited.

    Raises:
      ValueError: an array has another size or numbers that are not finite, or count
        is not a number of clients.
    """
    check_number(
      'count', count, '(0, inf)' if self._divisor is None else '[0, inf)'
    )
    arrays = structures.flatten(total, 'total')
    self._settings.read_dim('sum', {n: x.size for n, x in arrays.items()})
    auditor = self._settings.make()
    if (t := auditor.num_rounds_observed) == auditor.config.rounds:
      self._note_round_beyond(auditor)
      return self._function(total, count)
    injection = auditor.injection(t, like=total)
    count = count + injection.count
    release = self._function(structures.add(total, injection.update), count)
    divisor = count if self._divisor is None else self._divisor
    others, config = None, auditor.config
    if config.view == 'aggregate' and config.noise_multiplier is not None:
      others = np.concatenate([x.ravel() for x in arrays.values()]) / divisor
    auditor.observe(t, release, divisor=divisor, others=others)
    return release

  def _note_round_beyond(self, auditor: Auditor) -> None:
    """Counts a round beyond those of the audit, and warns of the first."""
    notes = [x for x in auditor.notes if x.key == 'rounds_not_audited']
    before = sum(cast(int, x.values['num']) for x in notes)
    values = {'num': before + 1, 'rounds': auditor.config.rounds}
    auditor.add_note(note := Fact('rounds_not_audited', values))
    if not before:
      warnings.warn(f'{checks.describe_check(note)}.', stacklevel=3)
