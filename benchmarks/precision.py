"""What clients that compute in fewer bits do to accuracy and to ε.

  python benchmarks/precision.py

The digits run with the same seed, canaries and noise in each precision that
this machine can compute in: clients train in it, and all that follows, clipping,
noise and scores canaries, is in float32. So ε should not move by more than
what other updates do to the cosines.
"""

import json
import os
import tempfile

from absl import app, flags
from ml_collections import config_flags
import record

from epe_jax.experiment import run_result, sweep
from epe_jax.training import local_training

_CONFIG = config_flags.DEFINE_config_file(
  'config',
  str(record.FOLDER.parents[1] / 'configs' / 'digits.py'),
  'Of the runs.',
)
_QUICK = flags.DEFINE_bool('quick', False, 'Two rounds: does it run?')
_OUT = flags.DEFINE_string(
  'out', str(record.FOLDER / 'precision.json'), 'File of the result.'
)


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is no flag; see --help.')
  load, config = os.getloadavg()[0], _CONFIG.value
  if _QUICK.value:
    config.rounds = 2
  # Processors do not round to tensorfloat32: it would be float32 once more.
  some = [name for name in local_training.PRECISIONS if name != 'tensorfloat32']
  rows = []
  with tempfile.TemporaryDirectory() as folder:
    points = sweep.make_grid(config, [('precision', some)])
    outcome = sweep.run_sweep(points, folder)
    if outcome.failed:
      raise SystemExit(f'error: {outcome.failed}')
    for name, point in zip(some, points, strict=True):
      found = run_result.load_result(f'{folder}/{point.name}/result.json')
      rows.append(
        {
          'precision': name,
          'accuracy': found.accuracy,
          'epsilon': {
            attack.threat_model.statistic: float(estimate.epsilon)
            for attack in found.audit.attacks
            if (estimate := attack.find('location_mixture')) is not None
          },
          'analytic_epsilon': found.analytic_epsilon,
          'seconds_per_round': found.seconds_per_round,
        }
      )
      print(json.dumps(rows[-1]), flush=True)
  result = {'rows': rows, 'quick': _QUICK.value, 'load_before': load}
  record.write(_OUT.value, result, 'jax', 'flax')


if __name__ == '__main__':
  app.run(main)
