"""Tests a claimed ε while a run goes on."""

from collections.abc import Callable

from absl import logging

from epe_jax.audit import audited_algorithm, release
from epe_jax.experiment import programs
from epe_jax.experiment.setup import build
from epe_jax.experiment.setup.config_files import Config
from epe_jax.parallel import hosts
from epe_jax.watch import sequential

Watch = Callable[[audited_algorithm.AuditState, int], str | None]
"""(flushed state, rounds so far) -> how the claim stands; None if it is too early."""


def make_watch(
  config: Config,
  setup: build.Setup,
  jitted: programs.Programs,
  draws: build.RunKeys,
) -> Watch:
  """Makes the function that tests the claim of a run by its rounds so far.

  It reads what observers scored round by round, and projects nothing, so it costs
  next to nothing. It warns once, when the claim is rejected. All processes must
  call it.
  """

  is_rejected = False

  def watch(state, rounds):
    nonlocal is_rejected
    cosines = hosts.copy_to_host(jitted.score_rounds(draws, state))
    scalars = hosts.copy_to_host(state.rounds)
    record = build.make_run_record(config, setup, cosines, scalars)
    if not config.simulation:
      record = release.redact_record(record)
    claim = sequential.judge_claim(record, config.audit.claim, rounds=rounds)
    if claim is None:
      return None
    if claim.rejected_after is not None and not is_rejected:
      is_rejected = True
      if hosts.is_primary():
        logging.warning('%s', _describe_alarm(claim))
    return f'≥{claim.epsilon_gdp:.3g} (claimed {claim.epsilon:g})'

  return watch


def _describe_alarm(claim: sequential.ClaimTest) -> str:
  """Describes a rejected claim, with the evidence."""
  return (
    f'The claimed ε = {claim.epsilon:g} is rejected after round '
    f'{claim.rejected_after}: of Gaussian mechanisms with this ε at most '
    f'{100 * claim.significance:g} % of runs ever are. {claim.num_canaries:,} '
    f'canaries show ε ≥ {claim.epsilon_gdp:.3g}.'
  )
