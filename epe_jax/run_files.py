"""What attackers have of a finished run who are shown a part of it."""

import os

import numpy as np

from epe_jax import model_releases, readings, releases, results, workdirs


def check_audited(path: str | os.PathLike) -> None:
  """Raises a ValueError if this is the workdir of a run without canaries."""
  file = workdirs.of(path).result
  if file.is_file() and results.read_result(file)['num_observed'] == 0:
    raise ValueError(
      f'{path} was not audited: no canaries took part, so there are no scores '
      'to estimate from. Train with canaries.observed of 2 or more.'
    )


def shown(
  recorded: results.Recorded,
  *,
  every: int | None = None,
  last: int | None = None,
  models: bool = False,
) -> results.Recorded:
  """A run of which some rounds are published.

  Args:
    recorded: what its scores.npz holds.
    every: only rounds n, 2n, ...
    last: only the last n rounds; with every, those of them.
    models: the models after these rounds are published and not their
      aggregates; the initial model is known.

  Raises:
    ValueError: a number is out of range, or `releases` or `model_releases`
      refuses.
  """
  rounds = len(recorded.trace)
  mask = np.ones(rounds, bool)
  if every is not None:
    mask &= readings.every_nth(rounds, every)
  if last is not None:
    mask &= readings.last_n(rounds, last)
  if models:
    return model_releases.models(recorded, mask)
  return recorded if mask.all() else releases.aggregates(recorded, mask)
