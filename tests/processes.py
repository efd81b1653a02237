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

from epe_jax.experiment import checkpoint
from epe_jax.experiment.setup import workloads
from epe_jax.report import report
from epe_jax.types import Task
from tests import helpers

ROOT = pathlib.Path(__file__).parents[1]
SETTINGS = {
  'data.num_clients': 20,
  'clients_per_round': 5,
  'canaries.observed': 6,
  'canaries.unobserved': 5,
  'audit.buffer': 4,
  'evaluate_every': 1,
  'simulation': False,
}


def softmax_task() -> Task:
  """One layer of 650 parameters, which start at zero."""
  zeros = {'w': jnp.zeros((64, 10)), 'b': jnp.zeros(10)}
  return helpers.softmax_regression()._replace(init=lambda key: zeros)


def patched(patch, stop: int, end) -> None:
  """Puts the model in, and has `end` called behind the checkpoint of a round."""
  load, save = workloads.load_workload, checkpoint.Checkpoints.save

  def save_and_end(saved, rounds, state):
    save(saved, rounds, state)
    if rounds == stop:
      saved.find_saved(waits=True)
      end()

  patch(
    workloads,
    'load_workload',
    lambda config: load(config)._replace(task=softmax_task()),
  )
  patch(checkpoint.Checkpoints, 'save', save_and_end)
  patch(report, 'write_report', lambda workdir: workdir)


if __name__ == '__main__':
  patched(setattr, int(sys.argv.pop(1)), lambda: os._exit(0))
  runpy.run_path(str(ROOT / 'scripts' / 'train.py'), run_name='__main__')
