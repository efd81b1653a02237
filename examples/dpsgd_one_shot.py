"""A one-shot audit of DP-SGD: examples/dpsgd_one_shot.py

A small network trains on real 8 x 8 digits. Hundreds of canary gradients join its batches as
examples do, by Poisson sampling, in the one training there is; as many others join
none. Who sees all steps, or the final model alone, has an ε for each.
"""

from absl import app, flags
import jax
import numpy as np
import optax

from epe_jax import accounting, audit, canaries
from epe_jax.data import digits as digits_data
from epe_jax.dpsgd import dp_sgd, poisson_batches
from epe_jax.report import report
from epe_jax.tasks import digits
from epe_jax.types import weighted

_STEPS = flags.DEFINE_integer('steps', 60, 'Steps of training.')
_CANARIES = flags.DEFINE_integer('canaries', 200, 'That join, and as many not.')
_WIDTH = flags.DEFINE_integer('width', 200, 'Units of each hidden layer.')
_NOISE = flags.DEFINE_float('noise', 2.0, 'Noise multiplier z.')
_SEED = flags.DEFINE_integer('seed', 0, 'Of a simulation: of all randomness.')
_BATCH, _CLIP_NORM, _DELTA = 64.0, 1.0, 1e-5
_LEARNING_RATE = 0.5


def train_and_audit(
  *, steps: int, num: int, width: int, noise: float, seed: int
):
  """The audit of one training, and the accuracy of its model."""
  data, test = digits_data.load(seed, num_clients=1, concentration=1.0)
  examples, size = jax.device_put(dict(data.columns)), data.num_examples
  task = digits.task(width)
  root = jax.random.key(seed)
  model, canary, training, privacy = jax.random.split(root, 4)
  params = task.init(model)
  dim = sum(x.size for x in jax.tree.leaves(params))
  canary_set = canaries.hadamard(canary, 2 * num, dim)
  # Examples and canaries join by coins of one rate, each by its own.
  rate = _BATCH / size
  coins = np.random.default_rng((seed, 1))
  participation = np.zeros((steps, 2 * num), bool)
  participation[:, :num] = coins.random((steps, num)) < rate
  attackers = {
    'final': audit.final_model(canary_set),
    'rounds': audit.all_iterates(
      canary_set, rounds=steps, views=('aggregate', 'residual')
    ),
  }
  algorithm = audit.audited(
    dp_sgd.dpsgd(
      task,
      optimizer=optax.sgd(_LEARNING_RATE),
      clip_norm=_CLIP_NORM,
      noise_multiplier=noise,
      expected_batch=_BATCH + rate * num,
    ),
    canary_set,
    participation,
    attackers,
  )
  batches = poisson_batches.draw_poisson_batches(
    seed, 'batches', num_examples=size, expected_batch=_BATCH, steps=steps
  )

  @jax.jit
  def advance(state, indices, t):
    batch = dp_sgd.gather_batch(examples, indices)
    keys = [jax.random.fold_in(key, t) for key in (training, privacy)]
    return algorithm.step(state, batch, *keys)[0]

  state = algorithm.init(params)
  for t in range(steps):
    state = advance(state, batches[t], t)
  metrics = task.metrics(
    state.algorithm.params, jax.device_put(dict(test.columns))
  )
  hits = weighted(metrics['accuracy'])
  seen = audit.make_record(
    audit.score_observers(state, attackers),
    state.rounds,
    included=participation,
    dim=dim,
    delta=_DELTA,
    momentum=0.0,
    noise_multiplier=noise,
  )
  return audit.evaluate(seen), float(hits.total.mean())


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  steps, noise = _STEPS.value, _NOISE.value
  found, accuracy = train_and_audit(
    steps=steps,
    num=_CANARIES.value,
    width=_WIDTH.value,
    noise=noise,
    seed=_SEED.value,
  )
  train, _ = digits_data.load(_SEED.value, num_clients=1, concentration=1.0)
  claim = accounting.epsilon_of_poisson(
    noise,
    delta=_DELTA,
    probability=_BATCH / train.num_examples,
    rounds=steps,
  )
  print(report.format_estimates(found))
  print(f'\nAccuracy {accuracy:.3f} on held-out digits.')
  print(
    f'Whose coins are secret has ε <= {claim.epsilon:.3g} at δ = {_DELTA:g}, by '
    'the accountant of Poisson sampling. The analytic ε above is of attackers who '
    'know the steps of a canary; it is that of the canary in most of them.'
  )


if __name__ == '__main__':
  app.run(main)
