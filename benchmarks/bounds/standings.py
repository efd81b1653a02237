"""The results of estimators on the frozen sets of scores, and their ranking."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from benchmarks import study
from benchmarks.bounds.entries import SIGNIFICANCE, Entry
from benchmarks.bounds.score_sets import RUNS, ScoreSet

# Groups in which what an entry assumes holds.
_GAUSSIAN_CURVE = {'Gaussian', RUNS}
_CHANCE = 1e-3


class Share(NamedTuple):
  """A share of sets.

  Attributes:
    count: of them that exceed the truth.
    num: of all.
  """

  count: int
  num: int


class Standing(NamedTuple):
  """The results of an estimator.

  Attributes:
    entry: the estimator.
    exceeded: group -> sets in which it is above the true ε.
    medians: group -> median of its ε over the true one, for sets whose true ε is
      not 0.
    seconds: median time of a set.
    broken: group -> sets, if it exceeds the truth more often than stated although
      its assumptions hold.
  """

  entry: Entry
  exceeded: Mapping[str, Share]
  medians: Mapping[str, float]
  seconds: float
  broken: Mapping[str, Share]

  @property
  def score(self) -> float | None:
    """Of a bound: the mean over groups of the median share of the truth.

    A group in which it exceeds the truth too often counts as 0, whatever it
    assumes: in practice the law of scores is unknown.
    """
    if not self.entry.is_bound:
      return None
    return float(
      np.mean(
        [
          0.0 if exceeds_too_often(self.exceeded[group]) else median
          for group, median in self.medians.items()
        ]
      )
    )


def exceeds_too_often(share: Share) -> bool:
  """Whether a valid bound would do so in fewer than 1 of 1,000 groups."""
  return study.fails_too_often(share.count, share.num, SIGNIFICANCE, _CHANCE)


def summarize(
  entry: Entry,
  sets: Sequence[ScoreSet],
  results: Sequence[float],
  seconds: Sequence[float],
) -> Standing:
  """Summarizes the results of an estimator."""
  exceeded, medians = {}, {}
  for group in dict.fromkeys(one.group for one in sets):
    pairs = [
      (result, one.epsilon)
      for result, one in zip(results, sets)
      if one.group == group
    ]
    # Scores in the file are float32; rounding does not count.
    count = sum(result > truth * (1 + 1e-6) + 1e-6 for result, truth in pairs)
    exceeded[group] = Share(count, len(pairs))
    shares = [result / truth for result, truth in pairs if truth > 0]
    if shares:
      medians[group] = float(np.median(shares))
  broken = {
    group: share
    for group, share in exceeded.items()
    if entry.is_bound and _holds(entry, group) and exceeds_too_often(share)
  }
  return Standing(entry, exceeded, medians, float(np.median(seconds)), broken)


def make_table(found: Sequence[Standing]) -> pd.DataFrame:
  """A row for each estimator: valid bounds, other bounds, estimates."""
  groups = list(dict.fromkeys(group for one in found for group in one.medians))
  ranked = sorted(
    found,
    key=lambda one: (
      not one.entry.is_bound,
      bool(one.broken),
      -(one.score or 0),
    ),
  )
  return pd.DataFrame(
    {
      'estimator': one.entry.name,
      'of': one.entry.origin,
      'assumes': one.entry.assumes,
      'kind': 'bound' if one.entry.is_bound else '',
      'exceeds': _format_exceeded(one),
      **{group: _format_median(one, group) for group in groups},
      'score': '' if one.score is None else f'{one.score:.2f}',
      'ms': f'{1000 * one.seconds:.2g}'
      if one.seconds < 0.1
      else f'{1000 * one.seconds:.0f}',
    }
    for one in ranked
  )


def _format_exceeded(one: Standing) -> str:
  counts = one.exceeded.values()
  share = sum(x.count for x in counts) / sum(x.num for x in counts)
  return f'{100 * share:.0f} %{" **broken**" if one.broken else ""}'


def _format_median(one: Standing, group: str) -> str:
  if group not in one.medians:
    return ''
  exceeded = one.exceeded[group]
  text = (
    f'{one.medians[group]:.2f} ({100 * exceeded.count / exceeded.num:.0f} %)'
  )
  return f'**{text}**' if group in one.broken else text


def _holds(entry: Entry, group: str) -> bool:
  """Whether the assumptions of an entry hold in a group."""
  if 'a shape' in entry.assumes and group not in _GAUSSIAN_CURVE:
    return False
  return 'independence' not in entry.assumes or group != 'coupled'
