"""Crafting canaries of CANIFE, compared with its loop in PyTorch.

  PEERS=torch bash benchmarks/peers/install.sh
  python benchmarks/canife.py --torch=benchmarks/peers/env/torch/bin/python

The network, pool, minibatch and optimizer are those of the comparison on Fashion-MNIST,
with generated images. Recorded is the time of a step of a canary: in PyTorch one canary
at a time, as the released code crafts; here a jitted scan over steps, of a batch of
canaries, each against a model and a pool of its own. Both programs must give the same
loss for the same canary. One form here also computes whole gradients, so that what
factors save can be told from what compiling saves.
"""

from collections.abc import Callable
import functools
import json
import pathlib
import subprocess
import tempfile
from typing import Any

from absl import flags
import harness
import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np
import optax

from papers.canife import crafting, training, two_layer

_TORCH = flags.DEFINE_string(
  'torch',
  f'{harness.HERE}/peers/env/torch/bin/python',
  'Python with PyTorch.',
)
_BATCHES = (1, 4, 16)
_SETTINGS = dict(learning_rate=1.0, clip_norm=1.0, norm_target=1.0)
_REPETITIONS = 3


def measure(quick: bool) -> dict:
  width, pool, minibatch = (8, 32, 8) if quick else (128, 512, 128)
  steps, torch_steps = (10, 4) if quick else (250, 50)
  data = training.load_images(None, num_train=1, num_test=pool)
  task = two_layer.make_task(784, width=width, classes=training.CLASSES)
  params = task.init(jax.random.key(0))
  x = jnp.asarray(data.test_x)
  y = jax.nn.one_hot(data.test_y, training.CLASSES, dtype=jnp.float32)
  begin = crafting.draw_canaries(
    jax.random.key(1), max(_BATCHES), inputs=784, classes=training.CLASSES
  )
  updates = two_layer.clip(two_layer.factor_gradients(params, x, y), 1.0)
  peer = _run_torch(params, x, y, begin, steps=torch_steps, minibatch=minibatch)
  _check_loss(peer, params, begin, updates)
  ours = []
  for batch in _BATCHES:
    repeat = lambda leaf, n=batch: jnp.stack([leaf] * n)
    canaries = jax.tree.map(lambda leaf, n=batch: leaf[:n], begin)
    args = (
      jax.random.key(2),
      jax.tree.map(repeat, params),
      canaries,
      jax.tree.map(repeat, updates),
    )
    craft = jax.jit(
      functools.partial(
        crafting.craft, steps=steps, minibatch=minibatch, **_SETTINGS
      )
    )
    ours.append((batch, _time(craft, *args) / steps / batch))
  whole = _time(
    _craft_whole(params, x, y, minibatch=minibatch, steps=torch_steps),
    jax.tree.map(lambda leaf: leaf[0], begin),
  )
  whole /= torch_steps
  forms = [
    ('PyTorch, whole gradients', 1, peer['whole']['seconds']),
    ('PyTorch, factors', 1, peer['factored']['seconds']),
    ('compiled, whole gradients', 1, whole),
    *(('compiled, factors', *timed) for timed in ours),
  ]
  slowest, best = forms[0][-1], min(seconds for _, seconds in ours)
  # The weights forward and backward and the rows of the minibatch, read once each.
  moved = 4 * (2 * 784 * width + 2 * minibatch * (784 + 2 * width))
  return {
    'dim': harness.count_parameters(params),
    'pool': pool,
    'minibatch': minibatch,
    'torch_threads': harness.count_cores(),
    'torch': peer['torch'],
    'forms': [
      {
        'form': form,
        'canaries': canaries,
        'seconds': seconds,
        'times_as_fast': slowest / seconds,
      }
      for form, canaries, seconds in forms
    ],
    'floor_seconds': moved / harness.read_bytes_per_second(),
    'ratio': {
      'best': slowest / best,
      'one canary': slowest / ours[0][-1],
      'both factored': peer['factored']['seconds'] / best,
    },
  }


def _time(function: Callable, *args: Any) -> float:
  return harness.time_call(lambda: function(*args), _REPETITIONS).best


def _run_torch(
  params: Any,
  x: jax.Array,
  y: jax.Array,
  begin: crafting.Canary,
  *,
  steps: int,
  minibatch: int,
) -> dict[str, Any]:
  """Seconds of a step by PyTorch, and its loss before the first one."""
  program = harness.HERE / 'peers' / 'craft_torch.py'
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, 'problem.npz')
    arrays = {
      **params,
      'x': x,
      'y': y,
      'pixels': begin.pixels[0],
      'label_logits': begin.label_logits[0],
    }
    host: Any = {name: np.array(value) for name, value in arrays.items()}
    np.savez(path, **host)
    sizes = {
      'steps': steps,
      'repetitions': _REPETITIONS,
      'threads': harness.count_cores(),
      'minibatch': minibatch,
    }
    done = subprocess.run(
      [
        _TORCH.value,
        str(program),
        str(path),
        *(f'--{name}={value}' for name, value in sizes.items()),
      ],
      stdout=subprocess.PIPE,
      text=True,
      check=True,
    )
  return json.loads(done.stdout)


def _check_loss(
  peer: dict[str, Any],
  params: Any,
  begin: crafting.Canary,
  updates: two_layer.Factors,
) -> None:
  """Checks that all programs solve the same problem."""
  stacked = lambda tree: jax.tree.map(lambda leaf: leaf[None], tree)
  _, losses = crafting.craft(
    jax.random.key(0),
    stacked(params),
    jax.tree.map(lambda leaf: leaf[:1], begin),
    stacked(updates),
    steps=1,
    minibatch=len(updates.inputs),
    **_SETTINGS,
  )
  for name in ('whole', 'factored'):
    theirs, own = peer[name]['first_loss'], float(losses[0, 0])
    if not np.isclose(theirs, own, rtol=1e-3):
      raise RuntimeError(f'{name}: the loss is {theirs} there and {own} here.')


def _craft_whole(
  params: Any, x: jax.Array, y: jax.Array, *, minibatch: int, steps: int
) -> Callable:
  """The same crafting of one canary, jitted, with whole gradients."""

  def gradient(x, y):
    loss = lambda params: optax.softmax_cross_entropy(
      jax.nn.relu(x @ params['w1'] + params['b1']) @ params['w2']
      + params['b2'],
      y,
    )
    return ravel_pytree(jax.grad(loss)(params))[0]

  updates = jax.jit(jax.vmap(gradient))(x, y)
  norms = jnp.linalg.norm(updates, axis=1, keepdims=True)
  updates = updates * jnp.minimum(1, 1 / norms)
  optimizer = optax.adam(_SETTINGS['learning_rate'])

  def loss(canary, rows):
    g = gradient(canary.pixels, jax.nn.softmax(canary.label_logits))
    norm = jnp.linalg.norm(g)
    shortage = jnp.maximum(_SETTINGS['norm_target'] - norm, 0)
    return g.size * (shortage**2 + jnp.mean((updates[rows] @ (g / norm)) ** 2))

  def step(carry, t):
    canary, state = carry
    key = jax.random.fold_in(jax.random.key(3), t)
    rows = jax.random.permutation(key, len(x))[:minibatch]
    slopes = jax.grad(loss)(canary, rows)
    moves, state = optimizer.update(slopes, state)
    return (optax.apply_updates(canary, moves), state), None

  return jax.jit(
    lambda canary: jax.lax.scan(
      step, (canary, optimizer.init(canary)), jnp.arange(steps)
    )[0][0]
  )


if __name__ == '__main__':
  harness.run(measure, 'jax', 'jaxlib', 'numpy')
