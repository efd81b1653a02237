"""How the precision of clients' computations affects accuracy and ε.

  python benchmarks/precision.py

The digits run with the same seed, canaries and noise in each precision that this
machine can compute in: clients train in it, and all that follows (clipping, noise and
scores) is in float32. So ε should change no more than other updates change cosines.
"""

import json
import tempfile

import harness
import jax
from ml_collections import config_flags
import numpy as np

from epe_jax.audit.record import load_record
from epe_jax.experiment import run_result, sweep, sweep_points
from epe_jax.training import local_training

_CONFIG = config_flags.DEFINE_config_file(
  'config',
  f'{harness.HERE.parent}/configs/digits.py',
  'Of the runs.',
)


def measure(quick: bool) -> dict:
  config = _CONFIG.value
  if quick:
    config.rounds = 2
  some = list(local_training.PRECISIONS)
  if jax.default_backend() == 'cpu':
    # A CPU does not round to tensorfloat32, so it would be float32 again.
    some.remove('tensorfloat32')
  rows, traces = [], []
  with tempfile.TemporaryDirectory() as folder:
    points = sweep_points.make_grid(config, [('precision', some)])
    outcome = sweep.run_sweep(points, folder)
    if outcome.failed:
      raise SystemExit(f'error: {outcome.failed}')
    for name, point in zip(some, points, strict=True):
      found = run_result.load_result(f'{folder}/{point.name}/result.json')
      scores = load_record(f'{folder}/{point.name}/private/scores.npz')
      assert scores.trace is not None
      # In standard deviations of the cosine of an unobserved canary.
      traces.append(np.sqrt(scores.dim) * scores.trace)
      moved = traces[-1] - traces[0]
      rows.append(
        {
          'precision': name,
          'accuracy': found.accuracy,
          'epsilon': {
            attack.threat_model.statistic: float(estimate.epsilon)
            for attack in found.audit.attacks
            if (estimate := attack.find('location_mixture')) is not None
          },
          'cosines_moved_in_std': {
            'first_round': float(np.abs(moved[0]).max()),
            'root_mean_square': float(np.sqrt(np.mean(moved**2))),
            'largest': float(np.abs(moved).max()),
          },
          'analytic_epsilon': found.analytic_epsilon,
          'seconds_per_round': found.seconds_per_round,
        }
      )
      print(json.dumps(rows[-1]), flush=True)
  return {'rows': rows}


if __name__ == '__main__':
  harness.run(measure, 'jax', 'flax')
