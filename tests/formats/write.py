"""Writes one small file of each format, and the numbers that it must give for ever.

  python -m tests.formats.write

They are of this version, in the folder of its name. With each version that is released
its folder is committed, and is not written again; tests/test_promises.py reads all.
"""

import pathlib

import numpy as np

from epe_jax import __version__, conformance, io
from epe_jax.audit.record_file import load_record, write_record
from epe_jax.auditor import auditor_file
from epe_jax.conformance.example import NoNoiseOnBiases
from epe_jax.experiment import model_file, run_result, workdirs
from epe_jax.experiment.setup import config as config_lib
from tests import file_formats, recorded_runs

FOLDER = pathlib.Path(__file__).parent


def sums(arrays):
  """Of each array: its shape and a number that no other order of it has."""
  return {
    name: [*x.shape, float(np.arange(1, x.size + 1) @ x.ravel().astype(float))]
    for name, x in sorted(arrays.items())
  }


def write_small_record(path):
  write_record(path, recorded_runs.by_law(observed=12, unobserved=12, rounds=6))


def of_record(path):
  record = load_record(path)
  return {
    'dim': record.dim,
    'delta': record.delta,
    'design': record.design,
    'observed': int(record.observed.sum()),
    **sums(record.cosines),
    **sums(record.rounds._asdict()),
    **sums({'included': record.included, 'assigned': record.assigned}),
  }


def of_auditor(path):
  state = auditor_file.read_state(path)
  return {
    'dim': state.config.dim,
    'clip_norm': state.config.clip_norm,
    'noise_multiplier': state.config.noise_multiplier,
    'key': state.key.tolist(),
    **sums({'planned': state.planned, 'included': state.included}),
    **sums(state.cosines),
  }


def of_audit(audit):
  return {
    'headline': [audit.headline.bound.epsilon, audit.headline.bound.confidence],
    'epsilons': {
      attack.threat_model.key: {e.method: e.epsilon for e in attack.estimates}
      for attack in audit.attacks
    },
  }


def of_result(path):
  result = run_result.load_result(path)
  names = 'rounds', 'dim', 'delta', 'noise_multiplier', 'accuracy', 'loss'
  names += 'analytic_epsilon', 'clients_analytic_epsilon', 'num_observed'
  return {name: getattr(result, name) for name in names} | of_audit(
    result.audit
  )


def write_report(path):
  claim = conformance.Claim(
    shapes=((20, 30), (30,)),
    clip_norm=1.0,
    noise_multiplier=1.0,
    num_clients=10,
  )
  report = conformance.check(NoNoiseOnBiases, claim)
  io.write_json(path, report.to_json())


def of_report(path):
  report = io.read_json(path)
  return {
    'epsilon': report['epsilon'],
    'claimed_epsilon': report['claimed_epsilon'],
    'rounds': report['rounds'],
    'results': {r['rule']: r['status'] for r in report['results']},
  }


def write_config(path):
  config = config_lib.load_config('digits:smoke')
  io.write_json(path, config.to_dict())


def of_config(path):
  """Its fields, of a config that would go on with the run."""
  config = config_lib.load_config('digits')
  fields = io.flatten(io.read_fields(path))
  with config.ignore_type():
    config.update_from_flattened_dict(fields)
  assert workdirs.is_run_of(workdirs.workdir_at(path.parent), config)
  return fields


def write_model(path):
  rng = np.random.default_rng(0)
  kernel, bias = rng.normal(size=(4, 3)), np.zeros(3)
  params = {'params': {'Dense_0': {'kernel': kernel, 'bias': bias}}}
  model_file.write_params(path, params)


# Of each file: what writes it, and the numbers that are read from it.
FORMATS = {
  'result.json': (
    lambda p: run_result.write_result(p, file_formats.make_result()),
    of_result,
  ),
  'config.json': (write_config, of_config),
  'model.npz': (
    write_model,
    lambda p: sums(model_file.load_params(p.parent)),
  ),
  'scores.npz': (write_small_record, of_record),
  'auditor.npz': (
    lambda p: file_formats.make_auditor().save(p),
    of_auditor,
  ),
  'report.json': (write_report, of_report),
}


def main():
  folder = FOLDER / __version__.rpartition('.')[0]
  folder.mkdir()
  for name, (write, _) in FORMATS.items():
    write(folder / name)
  numbers = {name: of(folder / name) for name, (_, of) in FORMATS.items()}
  io.write_json(folder / 'numbers.json', numbers)


if __name__ == '__main__':
  main()
