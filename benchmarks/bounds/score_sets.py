"""Frozen sets of scores of mechanisms whose ε is known, for the leaderboard.

Each has 1,000 canaries, included independently with probability 1/2, so that bounds for
fixed numbers of canaries and for random inclusion use the same scores.
"""

import os
import pathlib
from typing import NamedTuple

from jaxtyping import Bool, Float
import numpy as np
from scipy import stats

from benchmarks.bounds import laws
from epe_jax import io
from epe_jax.audit import attackers, upper_bounds
from epe_jax.configs import digits  # pyright: ignore[reportMissingImports]
from epe_jax.epsilon.types import Scores
from epe_jax.experiment.sweeps import seeds

PATH = pathlib.Path(__file__).with_name('score_sets.npz')
DELTA = 1e-5
CANARIES = 1000
RUNS = 'runs'


class ScoreSet(NamedTuple):
  """The scores of one audit.

  Attributes:
    group: of sets, as 'Gaussian'.
    epsilon: the true ε at `DELTA`.
    scores: with the design 'coin_flip'.
  """

  group: str
  epsilon: float
  scores: Scores


def make(path: str | os.PathLike, seed: int = 0) -> None:
  """Draws the sets of known laws, makes small runs, and writes all of them."""
  sets = [*_draw(np.random.default_rng(seed)), *_make_runs(seed)]
  arrays = {
    'group': np.array([group for group, *_ in sets]),
    'epsilon': np.array([epsilon for _, epsilon, *_ in sets]),
    'took_part': np.array([taken for *_, taken, _ in sets]),
    'scores': np.array([scores for *_, scores in sets], np.float32),
  }
  io.write_atomically(path, lambda file: np.savez_compressed(file, **arrays))


def load(path: str | os.PathLike = PATH) -> list[ScoreSet]:
  """The sets of a file that `make` wrote."""
  with np.load(path) as file:
    return [
      ScoreSet(
        str(group),
        float(epsilon),
        Scores(scores[taken], scores[~taken], design='coin_flip'),
      )
      for group, epsilon, taken, scores in zip(
        file['group'], file['epsilon'], file['took_part'], file['scores']
      )
    ]


_Drawn = tuple[str, float, Bool[np.ndarray, ' k'], Float[np.ndarray, ' k']]


def _draw(rng: np.random.Generator) -> list[_Drawn]:
  groups = {
    'Gaussian': [laws.gaussian(e, DELTA) for e in (0.0, 1.0, 3.0, 10.0)],
    'subsampled': [laws.subsampled(shift, 0.1) for shift in (1.0, 2.0, 4.0)],
    'heavy tails': [
      laws.shifted('t', stats.t(3), 2.0),
      laws.shifted('Laplace', stats.laplace(), 2.0),
      laws.log_losses(1.0),
    ],
    'discrete': [
      laws.randomised_response(1.0),
      laws.randomised_response(3.0),
      laws.rounded(2.0),
    ],
    'coupled': [laws.coupled(e, DELTA) for e in (1.0, 3.0, 6.0)],
  }
  sets = []
  for group, several in groups.items():
    for law in several:
      num = 14 if group == 'coupled' else 10
      taken = rng.random((num, CANARIES)) < 0.5
      scores = laws.draw_scores(law, rng, taken)
      epsilon = law.epsilon(DELTA)
      sets += [(group, epsilon, t, s) for t, s in zip(taken, scores)]
  return sets


def _make_runs(seed: int) -> list[_Drawn]:
  """Runs on digits whose attacker removes the updates of all others."""
  sets = []
  for noise in (0.6, 1.0, 2.0, 4.0):
    config = digits.get_config('smoke')
    config.noise_multiplier, config.rounds = noise, 25
    config.client.epochs, config.model.width = 1, 4
    config.canaries.observed = config.canaries.unobserved = CANARIES // 2
    config.canaries.schedule = 'coin_flip'
    config.audit.delta = DELTA
    for outcome in seeds.run_seeds(config, range(seed, seed + 7)):
      assert outcome.record is not None, 'canaries took part'
      analytic = upper_bounds.bound_known_rounds(outcome.record, DELTA)
      read = attackers.RESIDUAL.score(outcome.record)
      assert analytic is not None, 'the noise of a run is known'
      assert read is not None, 'canaries took part'
      observed, unobserved = read.scores.observed, read.scores.unobserved
      taken = np.arange(CANARIES) < observed.size
      scores = np.concatenate([observed, unobserved])
      sets.append((RUNS, analytic.epsilon, taken, scores))
  return sets
