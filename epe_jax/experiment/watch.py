"""A claimed ε, tested while a run goes on."""

from collections.abc import Callable
import functools

import jax
import numpy as np

from epe_jax.audit import audited_algorithm, release, sequential
from epe_jax.audit.observers import Trace
from epe_jax.experiment import build
from epe_jax.parallel import sharding

Watch = Callable[
  [audited_algorithm.AuditState, int], sequential.SequentialBounds | None
]
"""(flushed state, rounds so far) -> what can be told; None if nothing can."""


def make_watch(
  config: build.Config, setup: build.Setup, state: audited_algorithm.AuditState
) -> Watch:
  """Makes the function that tests the claim of a run by its rounds so far.

  It reads what observers scored round by round and makes no score anew, so that it
  costs next to nothing once no vector of a round waits to be scored. All processes
  must call it.

  Args:
    config: of the run, with its `audit.claim`.
    setup: what was built of it.
    state: of the run, at any round.
  """
  of_rounds = {
    name: observer
    for name, observer in setup.observers.items()
    if isinstance(state.observers[name], Trace)
  }
  score = jax.jit(
    functools.partial(audited_algorithm.score_observers, observers=of_rounds)
  )

  def watch(state, rounds):
    cosines = sharding.copy_to_host(score(state))
    scalars = sharding.copy_to_host(state.rounds)
    if np.count_nonzero(setup.participants.canaries[:rounds].any(axis=0)) < 2:
      return None
    record = build.make_run_record(config, setup, cosines, scalars)
    record = release.truncate_after(record, rounds)
    if not config.simulation:
      record = release.redact_record(record)
    return sequential.bound_sequentially(record, claim=config.audit.claim)

  return watch


def describe_alarm(claim: sequential.ClaimTest) -> str:
  """What to tell a person whose claim is rejected, with the evidence."""
  return (
    f'The claimed ε = {claim.epsilon:g} is rejected after round '
    f'{claim.rejected_after}: of Gaussian mechanisms with this ε at most '
    f'{100 * claim.significance:g} % of runs ever are. {claim.num_canaries:,} '
    f'canaries show ε ≥ {claim.epsilon_gdp:.3g}.'
  )
