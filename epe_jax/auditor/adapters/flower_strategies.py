"""What Flower's strategies claim: clip norms and noise of their wrappers."""

import math

from epe_jax.auditor.adapters import versions
from epe_jax.auditor.audit_config import AuditConfig

# Ahead of the imports, as modules of flwr move between versions.
versions.check_version('flwr', first='1.41', last='1.42')

from flwr.serverapp import strategy as strategies  # noqa: E402

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


def check_strategy(strategy: strategies.Strategy, config: AuditConfig) -> None:
  """Checks that an audit is one of this strategy.

  Raises:
    TypeError: the strategy has a loop of its own.
    ValueError: the audit is of another claim.
  """
  if type(strategy).start is not strategies.Strategy.start:
    raise TypeError(
      f'{type(strategy).__name__} has a `start` of its own, which the audit would '
      'not be part of; override that of AuditedStrategy instead.'
    )
  inner = find_inner(strategy)
  if config.sees == 'aggregate' and isinstance(inner, _OPTIMIZERS):
    raise ValueError(
      f"sees='aggregate', but {type(inner).__name__} is a server optimizer, which "
      "releases no mean; set sees='delta'."
    )
  find_clip_norm(strategy, config)


def find_clip_norm(strategy: strategies.Strategy, config: AuditConfig) -> float:
  """The norm that a strategy clips to next; that of the audit if it does not clip.

  Raises:
    ValueError: the strategy has another noise multiplier than the audit, or is one
      of another clip norm that is fixed.
  """
  if not isinstance(strategy, _WRAPPERS):
    return config.clip_norm
  claimed, actual = config.noise_multiplier, strategy.noise_multiplier
  if claimed is not None and not math.isclose(claimed, actual):
    raise ValueError(
      f'noise_multiplier={claimed}, but that of the strategy is {actual:g}; set '
      f'noise_multiplier={actual!r}, or None if nothing is claimed.'
    )
  clip_norm = strategy.clipping_norm
  is_fixed = isinstance(strategy, _FIXED)
  if is_fixed and not math.isclose(config.clip_norm, clip_norm):
    raise ValueError(
      f'clip_norm={config.clip_norm}, but that of the strategy is {clip_norm}; set '
      f'clip_norm={clip_norm}.'
    )
  return clip_norm
