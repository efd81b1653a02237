"""What Flower's strategies claim: clip norms and noise of their wrappers."""

from epe_jax import extras
from epe_jax.auditor.adapters.settings import Settings

with extras.explain_missing():
  from flwr.serverapp import strategy as strategies


_FIXED = (
  strategies.DifferentialPrivacyServerSideFixedClipping,
  strategies.DifferentialPrivacyClientSideFixedClipping,
)
_WRAPPERS = (
  *_FIXED,
  strategies.DifferentialPrivacyServerSideAdaptiveClipping,
  strategies.DifferentialPrivacyClientSideAdaptiveClipping,
)
_OPTIMIZERS = (
  strategies.FedAdagrad,
  strategies.FedAdam,
  strategies.FedAvgM,
  strategies.FedYogi,
)


def find_inner(strategy: strategies.Strategy) -> strategies.Strategy:
  """The strategy within all wrappers for differential privacy."""
  while isinstance(strategy, _WRAPPERS):
    strategy = strategy.strategy
  return strategy


def is_mean(strategy: strategies.Strategy) -> bool:
  """Whether what a strategy aggregates is certain to be a mean of models."""
  own = type(find_inner(strategy)).aggregate_train
  return own is strategies.FedAvg.aggregate_train


def check_strategy(strategy: strategies.Strategy, *, view: str) -> None:
  """Checks that a strategy can be audited.

  Args:
    strategy: with its wrappers.
    view: what attackers see, as in `AuditConfig`.

  Raises:
    TypeError: the strategy has a loop of its own.
    ValueError: it releases no mean of updates, and one is to be seen.
  """
  if type(strategy).start is not strategies.Strategy.start:
    raise TypeError(
      f'{type(strategy).__name__} has a `start` of its own, which the audit would '
      'not be part of; override that of what `audit` returns instead.'
    )
  inner = find_inner(strategy)
  if view == 'aggregate' and isinstance(inner, _OPTIMIZERS):
    raise ValueError(
      f"view='aggregate', but {type(inner).__name__} is a server optimizer, which "
      "releases no mean; set view='server_update'."
    )


def read_claim(strategy: strategies.Strategy, settings: Settings) -> None:
  """Reads clip norm and noise multiplier of a wrapper for differential privacy.

  Raises:
    ValueError: one is another than was given.
  """
  if isinstance(strategy, _WRAPPERS):
    clip_norm = float(strategy.clipping_norm)
    if not isinstance(strategy, _FIXED):
      # It adapts, so a resumed auditor has that of the first round.
      clip_norm = settings.find('clip_norm', clip_norm)
    settings.read(
      'strategy',
      clip_norm=clip_norm,
      noise_multiplier=float(strategy.noise_multiplier),
    )


def find_clip_norm(strategy: strategies.Strategy, settings: Settings) -> float:
  """Returns the norm that a strategy clips to next, or that of the audit.

  Raises:
    ValueError: the noise multiplier, or a clip norm that is fixed, has changed.
  """
  if not isinstance(strategy, _WRAPPERS):
    return settings.find('clip_norm')
  read_claim(strategy, settings)
  return float(strategy.clipping_norm)
