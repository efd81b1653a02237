"""The cost of secure aggregation in a ring of 16 bits, compared with float32 noise.

python benchmarks/secure_round.py
"""

from absl import flags
import audited_round
import harness

if __name__ == '__main__':
  flags.FLAGS.set_default('families', [])
  flags.FLAGS.set_default('noises', ['secure_aggregation'])
  flags.FLAGS.set_default('peaks', False)
  harness.run(audited_round.measure, 'jax')
