"""The cost of noise that is exact to the last bit, compared with float32 noise.

python -m benchmarks.speed.exact_noise
"""

from absl import flags

from benchmarks import harness
from benchmarks.speed import audited_round

if __name__ == '__main__':
  flags.FLAGS.set_default('families', [])
  flags.FLAGS.set_default('peaks', False)
  harness.run(audited_round.measure, 'jax')
