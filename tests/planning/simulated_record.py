"""Records of planned runs: what laws of scores are compared with."""

import numpy as np

from epe_jax.audit.record import Record
from epe_jax.epsilon import noise_floor
from epe_jax.epsilon.types import Sphere
from epe_jax.planning import planned_scores
from epe_jax.planning.geometry import Geometry


def simulate_record(rng: np.random.Generator, geometry: Geometry) -> Record:
  """Draws the record of a run: all that its attackers see."""
  run, sphere = geometry.run, Sphere(geometry.run.dim)
  size = run.rounds, run.num_canaries
  shared = rng.standard_normal((1, run.num_canaries))
  trace = noise_floor.draw_null(rng, size, null=sphere)
  if run.is_orthogonal:
    trace *= np.sqrt(1 - geometry.shares)[:, None]
  trace = planned_scores._mix(
    trace, shared / np.sqrt(run.dim), geometry.correlation
  )
  own = planned_scores._draw_own_rounds(
    rng, 1, geometry, shared[:, : run.num_inside]
  )
  trace[geometry.own, np.arange(run.num_inside)] = own[0]
  cosines = {
    'aggregate': trace,
    'residual': noise_floor.draw_null(rng, size, null=sphere),
  }
  squares = {'change': geometry.change_square, 'final': geometry.final_square}
  for name, square in squares.items():
    if square is not None:
      groups = planned_scores._draw_model(rng, 1, geometry, square)
      cosines[name] = np.concatenate(groups, axis=1)[0]
  return geometry.make_record(cosines)
