"""The cost of secure aggregation in a ring of 16 bits, compared with float32 noise.

python -m benchmarks.speed.secure_round
"""

from absl import flags

from benchmarks import harness
from benchmarks.speed import audited_round

if __name__ == '__main__':
  flags.FLAGS.set_default('families', [])
  flags.FLAGS.set_default('noises', ['secure_aggregation'])
  flags.FLAGS.set_default('peaks', False)
  harness.run(audited_round.measure, 'jax')
