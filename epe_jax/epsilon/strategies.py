"""How a lower bound pays for having looked at many thresholds.

A limit that fails at one threshold with 5 % fails somewhere much more often.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from epe_jax.epsilon.types import Scores


@dataclasses.dataclass(frozen=True)
class Uncorrected:
  """The best realisable threshold, nothing paid for the choice: no bound."""


@dataclasses.dataclass(frozen=True)
class Band:
  """The best threshold, paid for by a calibration over all of them at once.

  Costs least where nothing is known of the best threshold. If the null law is
  known, the FNR has limits that hold at every threshold (`band.upper_limit`);
  otherwise one test of both rates decides (`rank_test`).
  """


@dataclasses.dataclass(frozen=True)
class Bonferroni:
  """The best of a few thresholds, each at its share of the significance.

  The thresholds are the scores at fixed ranks among the unobserved canaries (if
  the null law is known: among the observed ones), geometrically spaced. Ranks
  are fixed before any score is seen, so the FPR at one is a beta variable, and
  given the unobserved scores the false negatives are binomial: both limits are
  exact. Quantiles of the pooled scores would depend on both counts at once.

  To divide by the number of all realisable thresholds, as many do, is wasteful:
  neighbours see nearly the same scores, and 1000 of them cost what 30
  independent ones do. Dividing by the number on the convex hull of the ROC is
  no remedy, as that number is itself read off the scores.

  Attributes:
    num_thresholds: how many thresholds, >= 1. Equal ranks are merged.
  """

  num_thresholds: int = 10


@dataclasses.dataclass(frozen=True)
class Explicit:
  """The best of given thresholds, each at its share of the significance.

  Attributes:
    thresholds: chosen without looking at these scores; at least one.
  """

  thresholds: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Split:
  """The threshold is chosen on some canaries, the bound is from the others.

  Attributes:
    seed: of the random split. To try several and keep the best is cheating.
    fraction: share of the canaries, of both kinds, that choose the threshold.
  """

  seed: int
  fraction: float = 0.5


@dataclasses.dataclass(frozen=True)
class MultiSplit:
  """The median of the bounds of many splits, each at half the significance.

  If the median exceeds ε, at least half of the splits do. Each does so with
  probability significance/2, so by Markov's inequality half of them do with at
  most twice that. The result hardly depends on the seed.

  Attributes:
    seed: of the random splits.
    num_splits: how many, >= 1.
    fraction: share of the canaries that choose the threshold.

  Source: Meinshausen, Meier and Bühlmann (2009), theorem 3.1.
  """

  seed: int
  num_splits: int = 20
  fraction: float = 0.5


Multiplicity = Uncorrected | Band | Bonferroni | Explicit | Split | MultiSplit


def splits(several: MultiSplit) -> list[Split]:
  """The splits that a `MultiSplit` stands for.

  Raises:
    ValueError: num_splits is out of range.
  """
  if several.num_splits < 1:
    raise ValueError(f'num_splits={several.num_splits} must be at least 1.')
  rng = np.random.default_rng(several.seed)
  seeds = rng.integers(np.iinfo(np.int64).max, size=several.num_splits)
  return [Split(int(seed), several.fraction) for seed in seeds]


def partition(scores: Scores, split: Split) -> tuple[Scores, Scores]:
  """The scores that choose a threshold, and those that are then counted.

  Raises:
    ValueError: fraction is out of range, or a part would be empty.
  """
  if not 0 < split.fraction < 1:
    raise ValueError(
      f'fraction={split.fraction} must lie strictly between 0 and 1.'
    )
  rng = np.random.default_rng(split.seed)
  parts = {}
  for name in ('observed', 'unobserved'):
    values = getattr(scores, name)
    size = values.shape[-1]
    first = int(size * split.fraction)
    if size and not 0 < first < size:
      raise ValueError(
        f'fraction={split.fraction} of {size} {name} scores leaves one part '
        'empty; use more canaries or multiplicity=Band().'
      )
    order = rng.permutation(size)
    parts[name] = values[..., order[:first]], values[..., order[first:]]
  choose, count = (
    dataclasses.replace(scores, **{name: parts[name][i] for name in parts})
    for i in (0, 1)
  )
  return choose, count
