"""The cost of noise that is exact to the last bit, compared with float32 noise.

python benchmarks/exact_noise.py
"""

from absl import flags
import audited_round
import harness

if __name__ == '__main__':
  flags.FLAGS.set_default('families', [])
  flags.FLAGS.set_default('peaks', False)
  harness.run(audited_round.measure, 'jax')
