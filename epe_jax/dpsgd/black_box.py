"""Black-box audit of DP-SGD: Algorithm 1 of Tight Auditing.

Models are trained with and without a canary example, and whoever sees the final
model alone scores the canary by its log-odds. Models are trained a chunk at a
time, and what has been scored is on the disk.
"""

from collections.abc import Callable, Mapping
import json
import os
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int
import numpy as np

from epe_jax import io, progress
from epe_jax.epsilon import types as epsilon_types
from epe_jax.types import Array, Key

SCHEMA = 1
"""Version of the file of scores."""

_GROUPS = ('excluded', 'included')


class ModelKeys(NamedTuple):
  """The randomness of the training of models; arrays [m] of keys for m models.

  Attributes:
    init: of the first parameters.
    batches: of who takes part in which step.
    training: of dropout, augmentation and the like.
    noise: of the privacy noise.
  """

  init: Key
  batches: Key
  training: Key
  noise: Key


ScoreModels = Callable[[ModelKeys, bool], Float[Array, ' m']]
"""(keys [m], whether the canary is in the data set) -> scores of m models [m].

A higher score means "the canary was in it". Models must depend on their keys
alone, so that they are independent.
"""


def run_black_box(
  score_models: ScoreModels,
  *,
  num_models: int,
  key: Key,
  chunk: int,
  path: str | os.PathLike | None = None,
  settings: Mapping[str, Any] | None = None,
) -> epsilon_types.Scores:
  """Trains T models with the canary and T without it, and scores all of them.

  Every model has randomness of its own, which depends on the key, its number
  and whether the canary is in, but not on the chunk.

  Args:
    score_models: trains and scores models, such as
      `black_box_training.make_trainer` makes it.
    num_models: T >= 1, of each kind.
    key: of all randomness.
    chunk: models that are trained by one call, >= 1.
    path: an .npz file that is written, whole or not at all, after each chunk,
      and from which a later call goes on; None keeps nothing.
    settings: what decides about the scores besides, as JSON-like values. A file
      of other settings, another key or another T is not gone on with.

  Returns:
    The scores: observed with the canary, unobserved without it, float64 [T].

  Raises:
    ValueError: a number is out of range, the file is of another audit, or a
      score is not finite.

  Reference: Tight Auditing of Differentially Private Machine Learning, Algorithm
  1 and section 6.4.
  """
  for name, value in (('num_models', num_models), ('chunk', chunk)):
    if value < 1:
      raise ValueError(f'{name}={value}; give 1 or more.')
  header = {
    'schema': SCHEMA,
    'num_models': num_models,
    'key': np.asarray(jax.random.key_data(key)).tolist(),
    'settings': dict(settings or {}),
  }
  scores = {name: np.full(num_models, np.nan) for name in _GROUPS}
  if path is not None and pathlib.Path(path).exists():
    scores = _read(path, header)
  with progress.bar(
    total=2 * num_models,
    initial=sum(int(np.isfinite(x).sum()) for x in scores.values()),
    desc='training models',
    unit=' models',
  ) as bar:
    for start in range(0, num_models, chunk):
      for included, name in enumerate(_GROUPS):
        rows = np.arange(start, min(start + chunk, num_models))
        rows = rows[np.isnan(scores[name][rows])]
        if not rows.size:
          continue
        keys = make_model_keys(key, jnp.asarray(rows), included=bool(included))
        found = np.asarray(score_models(keys, bool(included)), np.float64)
        _check_scores(found, rows, name)
        scores[name][rows] = found
        if path is not None:
          pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
          io.write_arrays(path, {**scores, 'header': json.dumps(header)})
        bar.update(rows.size)
  return epsilon_types.Scores(scores['included'], scores['excluded'])


def make_model_keys(
  key: Key, rows: Int[Array, ' m'], *, included: bool
) -> ModelKeys:
  """Makes the keys of the models of these numbers, arrays [m] of keys."""
  group = jax.random.fold_in(key, int(included))

  def split(row: Int[Array, '']) -> ModelKeys:
    return ModelKeys(*jax.random.split(jax.random.fold_in(group, row), 4))

  return jax.vmap(split)(rows)


def _check_scores(scores: np.ndarray, rows: np.ndarray, name: str) -> None:
  if scores.shape != rows.shape:
    raise ValueError(
      f'score_models gave shape {scores.shape} for {rows.size} models. Return '
      'one score for each.'
    )
  if not np.isfinite(scores).all():
    bad = rows[~np.isfinite(scores)]
    raise ValueError(
      f'models {bad.tolist()} with the canary {name} have scores that are not '
      'finite. Either training diverged, and needs a smaller learning rate, or '
      'a batch had no room: use another key.'
    )


def _read(
  path: str | os.PathLike, header: Mapping[str, Any] | None
) -> dict[str, np.ndarray]:
  """The scores of a file, NaN where they are missing."""
  arrays = io.read_arrays(path)
  try:
    found = io.parse_json(str(arrays['header']))
    scores = {name: arrays[name] for name in _GROUPS}
    io.check_schema(path, found['schema'], reads=SCHEMA)
    num = found['num_models']
  except (KeyError, TypeError, ValueError) as error:
    raise ValueError(
      f'{path} has no scores of a black-box audit ({error}). Give another path.'
    ) from error
  if header is not None and found != (expected := _as_json(header)):
    differ = [k for k in expected if found.get(k) != expected[k]]
    raise ValueError(
      f'{path} is of another audit: {differ} differ. Give another path, or the '
      'settings and the key of that audit.'
    )
  if any(x.shape != (num,) or x.dtype != np.float64 for x in scores.values()):
    raise ValueError(f'{path} has not {num} scores of each kind. Delete it.')
  return scores


def _as_json(value: Any) -> Any:
  """What comes back when it is written and read."""
  return json.loads(json.dumps(value))
