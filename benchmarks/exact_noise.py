"""What noise that holds to the last bit costs a round, beside float32 noise.

python benchmarks/exact_noise.py
"""

from absl import app, flags
import audited_round
import record

if __name__ == '__main__':
  flags.FLAGS.set_default('families', [])
  flags.FLAGS.set_default('peaks', False)
  flags.FLAGS.set_default('out', str(record.FOLDER / 'exact_noise.json'))
  app.run(audited_round.main)
