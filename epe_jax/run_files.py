"""What attackers have of a finished run who are shown a part of it.

Differences of models are derived from metrics.jsonl and the config of the run,
so these need the whole workdir and not scores.npz alone.
"""

import os
import pathlib
from typing import Any

import numpy as np

from epe_jax import (
  leakage,
  metrics,
  model_releases,
  readings,
  releases,
  results,
)


def check_audited(path: str | os.PathLike) -> None:
  """Raises a ValueError if this is the workdir of a run without canaries."""
  file = pathlib.Path(path) / 'result.json'
  if file.is_file() and results.read_json(file)['num_observed'] == 0:
    raise ValueError(
      f'{path} was not audited: no canaries took part, so there are no scores '
      'to estimate from. Train with canaries.observed of 2 or more.'
    )


def shown(
  path: str | os.PathLike,
  recorded: results.Recorded,
  *,
  every: int | None = None,
  last: int | None = None,
  models: bool = False,
) -> results.Recorded:
  """A run of which some rounds are published.

  Args:
    path: the workdir; only looked into for models.
    recorded: what its scores.npz holds.
    every: only rounds n, 2n, ...
    last: only the last n rounds; with every, those of them.
    models: the models after these rounds are published and not their
      aggregates; the initial model is known.

  Raises:
    ValueError: a number is out of range, or `releases` or `model_releases`
      refuses.
    FileNotFoundError: models, and the workdir lacks a file.
  """
  rounds = len(recorded.trace)
  mask = np.ones(rounds, bool)
  if every is not None:
    mask &= readings.every_nth(rounds, every)
  if last is not None:
    mask &= readings.last_n(rounds, last)
  if models:
    history, momentum = training(path)
    return model_releases.models(
      recorded, mask, history=history, momentum=momentum
    )
  return recorded if mask.all() else releases.aggregates(recorded, mask)


def by_round(
  path: str | os.PathLike,
  recorded: results.Recorded,
  *,
  delta: float | None = None,
) -> list[dict[str, Any]]:
  """`leakage.by_round` of a run, with the models of rounds if they are known.

  Args:
    path: the workdir.
    recorded: what its scores.npz holds.
    delta: in (0, 1); None for the run's own.
  """
  history, momentum = training(path)
  reason = model_releases.why_not_models(
    recorded, history=history, momentum=momentum
  )
  return leakage.by_round(
    recorded,
    history=None if reason else history,
    momentum=momentum,
    delta=delta,
  )


def training(
  path: str | os.PathLike,
) -> tuple[model_releases.History, float]:
  """The lines of metrics.jsonl, and the momentum of the server.

  Raises:
    FileNotFoundError: path is not the workdir of a finished run.
  """
  folder = pathlib.Path(path)
  for name in ('metrics.jsonl', 'config.json'):
    if not (folder / name).is_file():
      raise FileNotFoundError(
        f'{folder / name} does not exist. Give the workdir of a finished run.'
      )
  config = results.read_json(folder / 'config.json')
  return metrics.read(folder / 'metrics.jsonl'), config['server']['momentum']
