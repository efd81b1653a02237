"""One process of an audited run of a model that compiles in no time.

  python -m tests.processes STOP --config=... (the flags of scripts/train.py)

Run by a test as a process of its own. It ends by itself when the checkpoint of
round STOP is on the disk.
"""

import os
import pathlib
import runpy
import sys

import jax.numpy as jnp
import optax

from epe_jax.experiment import audited_run, checkpoint, workloads
from epe_jax.report import report
from epe_jax.types import Task

ROOT = pathlib.Path(__file__).parents[1]
SETTINGS = {
  'data.num_clients': 20,
  'clients_per_round': 5,
  'canaries.observed': 6,
  'canaries.unobserved': 5,
  'audit.buffer': 4,
  'simulation': False,
}


def softmax_task() -> Task:
  """One layer, 650 parameters."""

  def init(key):
    del key
    return {'w': jnp.zeros((64, 10)), 'b': jnp.zeros(10)}

  def loss(params, batch, key):
    del key
    x = batch['pixels'].reshape(-1, 64)
    return optax.softmax_cross_entropy_with_integer_labels(
      x @ params['w'] + params['b'], batch['label']
    )

  def metrics(params, batch):
    x = batch['pixels'].reshape(-1, 64)
    right = (x @ params['w'] + params['b']).argmax(1) == batch['label']
    return {
      'loss': loss(params, batch, None),
      'accuracy': right.astype(jnp.float32),
    }

  return Task(init, loss, metrics)


def patched(patch, stop: int, end) -> None:
  """Puts the model in, and has `end` called behind the checkpoint of a round."""
  load, make = workloads.load_workload, checkpoint.checkpoints

  def checkpoints(folder):
    saved = make(folder)

    def save(rounds, state):
      saved.save(rounds, state)
      if rounds == stop:
        saved.close()
        end()

    return saved._replace(save=save)

  patch(
    workloads,
    'load_workload',
    lambda config: (softmax_task(), *load(config)[1:]),
  )
  patch(audited_run.checkpoint, 'checkpoints', checkpoints)
  patch(report, 'write_report', lambda workdir: workdir)


if __name__ == '__main__':
  patched(setattr, int(sys.argv.pop(1)), lambda: os._exit(0))
  runpy.run_path(str(ROOT / 'scripts' / 'train.py'), run_name='__main__')
