"""Names of estimators as people read them."""

from epe_jax.epsilon import (
  registry,
)
from epe_jax.epsilon.types import Estimate


def describe_method(estimate: Estimate) -> str:
  """The estimator in a few words."""
  entry = registry.find(estimate.method)
  if entry is None:
    return estimate.method.replace('_', ' ')
  return entry.labels[estimate.method]
