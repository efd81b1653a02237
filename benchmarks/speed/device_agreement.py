"""Whether a device computes what the processor of the same machine computes.

  python -m benchmarks.speed.device_agreement --device=cuda

The digits run on both, each in a process of its own: which canaries are in which rounds,
by how much cosines differ, in standard deviations of an unobserved canary, and ε.
"""

import tempfile
from typing import Any

import numpy as np

from benchmarks import harness
from epe_jax.audit.record_file import load_record


def make_run(workdir: str, mode: str) -> dict[str, float]:
  """Makes a run, and returns the ε of its attackers."""
  from epe_jax.experiment import audited_run
  from epe_jax.experiment.setup import config as config_lib

  config = config_lib.load_config(f'digits:{mode}')
  result = audited_run.run(config, workdir)
  assert result is not None
  return {
    attack.threat_model.key: float(attack.first.epsilon)
    for attack in result.audit.attacks
  }


def measure(quick: bool) -> dict[str, Any]:
  mode = 'smoke' if quick else 'full'
  with tempfile.TemporaryDirectory() as folder:
    epsilons, records = [], []
    # The first has the device of this process.
    for name, environment in (
      ('device', {}),
      ('cpu', {'JAX_PLATFORMS': 'cpu'}),
    ):
      workdir = f'{folder}/{name}'
      epsilons.append(
        harness.call_in_process(
          'benchmarks.speed.device_agreement:make_run',
          workdir,
          mode,
          environment=environment,
        )
      )
      records.append(load_record(f'{workdir}/private/scores.npz'))
  ours, theirs = records
  assert ours.trace is not None
  assert theirs.trace is not None
  moved = np.sqrt(ours.dim) * np.abs(ours.trace - theirs.trace)
  return {
    'rounds': ours.num_rounds,
    'same_canaries_in_rounds': bool(
      np.array_equal(ours.included, theirs.included)
      and np.array_equal(ours.assigned, theirs.assigned)
    ),
    'cosines_moved_in_std': {
      'first_round': float(moved[0].max()),
      'median': float(np.median(moved)),
      'largest': float(moved.max()),
    },
    'epsilon': dict(zip(('device', 'cpu'), epsilons)),
    'largest_epsilon_difference': max(
      # Both may be infinite.
      0.0 if value == epsilons[1][key] else abs(value - epsilons[1][key])
      for key, value in epsilons[0].items()
    ),
  }


if __name__ == '__main__':
  harness.run(measure, 'jax', 'jaxlib', 'numpy')
