"""What plans of the package are based on, from the result files of benchmarks."""

from collections.abc import Iterator, Mapping
from typing import Any

import layout
from peers import works
import targets

from epe_jax.planning import devices

Records = Mapping[str, Mapping[str, Any]]

# The paper's LSTM, for which costs of audits are planned.
_DIM = targets.LSTM_DIM
_CANARIES = (100, 2_000, 100_000)
# Family -> vectors that are projected at once.
_VECTORS = {
  'hadamard': (1,),
  'hadamard2': (1,),
  'sphere': (1, 50),
}
_TASKS = {'cnn': 'emnist', 'lstm': 'stackoverflow'}
# Parts of benchmarks/gpu.py with rounds, and their forms.
_GPU_ROUNDS = {
  'gpu_emnist_round': ('emnist', {'audited': 'float32'}),
  'gpu_next_word_round': (
    'stackoverflow',
    {x: x for x in ('float32', 'tensorfloat32', 'bfloat16')},
  ),
}


def collect(records: Records) -> dict[str, Any]:
  """The contents of epe_jax/planning/measured.json, of `Measurements`.

  Args:
    records: result files by their stem; those of a GPU may be missing.
  """
  return {
    'cpu': _describe_cpu(records),
    'projections': _collect_projections(records['canary_kernels']),
    'rounds': [*_collect_rounds(records['rounds']), *_collect_gpu(records)],
  }


def _describe_cpu(records: Records) -> dict[str, Any]:
  """The CPU by its largest speeds, in all sessions."""
  speed, rounds = records['growth']['speed'], records['rounds']
  gflops = rounds['matmul_gflop_per_second']
  flops = max(
    speed['matmul_flops_per_second'], *(1e9 * x for x in gflops.values())
  )
  return {
    'name': _name_cpu(rounds),
    **dict.fromkeys(('float32', 'tf32', 'bfloat16'), flops),
    'bandwidth': speed['read_bytes_per_second'],
  }


def _collect_projections(kernels: Mapping[str, Any]) -> dict[str, Any]:
  def find(num: int, vectors: int, form: str) -> float:
    size = f'sizes[dim={_DIM},canaries={num},vectors={vectors}]'
    return layout.find(kernels, f'{size}/project/{form}/best')

  return {
    'dim': _DIM,
    'norm': find(2_000, 1, '|x|^2'),
    'canaries': _CANARIES,
    'seconds': {
      family: {
        str(vectors): [find(num, vectors, family) for num in _CANARIES]
        for vectors in together
      }
      for family, together in _VECTORS.items()
    },
  }


def _collect_rounds(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
  models = {x.parameters: x.model for x in works.works(quick=False).values()}
  for work in record['works'].values():
    yield {
      'device': 'cpu',
      'machine': _name_cpu(record),
      **_date(record, 'rounds'),
      'task': _TASKS[models[work['parameters']]],
      'dim': work['parameters'],
      'batch_size': works.BATCH,
      'precision': 'float32',
      'examples': work['examples'] / work['clients'],
      'seconds_per_example': (
        work['seconds']['epe_jax']['median'] / work['examples']
      ),
    }


def _collect_gpu(records: Records) -> Iterator[dict[str, Any]]:
  """Audited rounds on a GPU, as `gpu_parts.timings` writes them."""
  for file, (task, forms) in _GPU_ROUNDS.items():
    record = records.get(file, {'quick': True})
    for form, precision in forms.items():
      figures = record.get(form, {})
      machine = record.get('machine', {}).get('device', '')
      device = [x for x in devices.SHEETS if x.upper() in machine.upper()]
      if record['quick'] or not device or 'seconds_in_a_row' not in figures:
        continue
      yield {
        'device': device[0],
        'machine': machine.partition(' x ')[2],
        **_date(record, file),
        'task': task,
        'dim': figures['dim'],
        'batch_size': works.BATCH,
        'precision': precision,
        'examples': figures['examples'] / figures['clients'],
        'seconds_per_example': (
          figures['seconds_in_a_row'] / figures['examples']
        ),
      }


def _date(record: Mapping[str, Any], file: str) -> dict[str, str]:
  return {'file': f'{file}.json', 'date': record['date'][:10]}


def _name_cpu(record: Mapping[str, Any]) -> str:
  machine = record['machine']
  return f'{machine["cpu"]}, {machine["cores"]} cores'
