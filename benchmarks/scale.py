"""Internet scale on paper: unit costs, and predictions from them.

docs/scale.md shows a part of the tables, docs/data/internet_scale.json has all of them.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import layout
from studies import costs

from epe_jax.epsilon.points import gaussian
from epe_jax.planning import devices
from epe_jax.text import tables

_NOT_YET = 'Not measured yet: `python benchmarks/growth.py`.'
# Of whom those that train are some.
_PEOPLE = 10**9
_DELTA = _PEOPLE**-1.1
_HOST = 8  # Devices.
_BUFFER = 25  # Of the configs.
# Rows of the plan that the page shows.
_SHOWN = (
  'training',
  'devices per copy of the model',
  'noise and server',
  'a projection, Hadamard',
  'a projection, sphere',
  'audit, memory per device, Hadamard',
  'share of the audit, Hadamard',
  'share of the audit, sphere',
)


class Case(NamedTuple):
  """A job, the devices it is planned for, and what it is called."""

  name: str
  job: costs.Job
  devices: int


def _job(clients: int, dim: int) -> costs.Job:
  # At most 256 sentences of 20 words, as for the StackOverflow model.
  return costs.Job(clients, dim, canaries=2000, rounds=2048, positions=256 * 20)


CASES = (
  Case('the paper, d = 4.1M', _job(167, 4_050_748), 1),
  Case('m = 10^4, d = 10^8', _job(10**4, 10**8), 64),
  Case('m = 10^6, d = 10^10', _job(10**6, 10**10), 1024),
)


def make_tables(
  records: Mapping[str, Mapping[str, Any]],
) -> dict[str, tables.Table]:
  """All tables by name; those that need growth only if it is there.

  Args:
    records: result files by their stem; growth may be missing.
  """
  made = {'plan': _plan(), 'noise': _noise()}
  if 'growth' in records:
    made['units'] = _units(records)
    made['measured'] = _here(measured(records['growth']))
  return made


def blocks(records: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
  """What stands between the markers of the page, by their name.

  Args:
    records: result files by their stem; growth may be missing.
  """
  made = make_tables(records)
  growth = records.get('growth')
  plan = made['plan']
  shown = [row for row in plan.body if row[0] in _SHOWN]
  return {
    'plan': tables.format_markdown(plan._replace(body=shown)),
    'measured': tables.format_markdown(made['measured'])
    if 'measured' in made
    else _NOT_YET,
    'projections': _projections(None if growth is None else measured(growth)),
  }


def measured(growth: Mapping[str, Any]) -> costs.Device:
  """The machine that growth.json was measured on."""
  unit = growth['unit_costs']
  machine = growth['machine']
  return costs.Device(
    f'{machine["cpu"]}, {machine["cores"]} cores',
    flops=unit['training_flops_per_second_large'],
    server_seconds=unit['server_seconds_per_parameter'],
    fold_seconds=unit['hadamard_seconds_per_parameter'],
    normals=1 / unit['sphere_seconds_per_canary_parameter'],
  )


def _units(records: Mapping[str, Mapping[str, Any]]) -> tables.Table:
  growth = records['growth']
  unit, speed = growth['unit_costs'], growth['speed']
  read = 1 / speed['read_bytes_per_second']
  best = costs.best_device(devices.H200)
  entry = unit['sphere_seconds_per_canary_parameter']
  body = [
    _unit(
      'a flop of training',
      1 / unit['training_flops_per_second_large'],
      1 / speed['matmul_flops_per_second'],
      1 / best.flops,
    ),
    _unit(
      'noise and server, per parameter',
      unit['server_seconds_per_parameter'],
      20 * read,
      best.server_seconds,
    ),
    [
      'of this, the noise',
      *_unit('', unit['noise_seconds_per_parameter'], 4 * read)[1:],
      '',
    ],
    _unit(
      'Hadamard projection, per parameter',
      unit['hadamard_seconds_per_parameter'],
      4 * read,
      best.fold_seconds,
    ),
    _unit(
      f'sphere projection of {unit["vectors_of_a_projection"]} rounds, per canary '
      'and parameter',
      entry,
      2 * unit['vectors_of_a_projection'] / speed['matmul_flops_per_second'],
      1 / best.normals,
    ),
  ]
  kernels = _kernels(records.get('canary_kernels'))
  return tables.Table(
    '',
    ['unit', 'measured', 'floor', f'{best.name}, at best'],
    [*body, *kernels],
    (
      f'Measured on {measured(growth).name}, with '
      f'{layout.number(unit["dim"])} parameters and '
      f'{layout.number(unit["canaries"])} canaries, by `benchmarks/growth.py`.',
      'The floors assume the speed of a large matrix product for flops and of one '
      'pass over a vector for bytes. The floor of a sphere projection is its '
      'product alone, without generating the normals.',
      f'{best.name}: its data sheet, with training in bfloat16 and 40 integer '
      'operations per normal. No program reaches this.',
    ),
  )


def _unit(what: str, *seconds: float) -> list[str]:
  return [what, *(f'{x * 1e9:.3g} ns' for x in seconds)]


def _kernels(record: Mapping[str, Any] | None) -> list[list[str]]:
  """The same costs by the benchmark of kernels, at its largest model."""
  if record is None:
    return []
  ones = [row for row in record['sizes'] if row['vectors'] == 1]
  # The most parameters, and of these the fewest canaries: one group.
  row = max(ones, key=lambda row: (row['dim'], -row['canaries']))
  d = row['dim']
  floor = row['project']['|x|^2']['best'] / d
  entry = row['project']['sphere']['best'] / d / row['canaries']
  named = f'by `canary_kernels.py`, d = {layout.number(d)}'
  return [
    [
      f'Hadamard projection, per parameter, {named}',
      *_unit('', row['project']['hadamard']['best'] / d, floor)[1:],
      '',
    ],
    [
      f'sphere projection of one round, per canary and parameter, {named}',
      *_unit('', entry)[1:],
      '',
      '',
    ],
  ]


def _here(device: costs.Device) -> tables.Table:
  """A round on one machine as measured."""
  body = []
  for case in CASES:
    found = costs.plan_round(case.job, device, 1)
    body.append(
      [
        case.name,
        layout.seconds(found.training),
        layout.seconds(found.serving),
        layout.seconds(found.scoring['hadamard']),
        layout.seconds(found.scoring['sphere']),
      ]
    )
  head = [
    'a round of',
    'training',
    'noise, server',
    'Hadamard projection',
    'sphere',
  ]
  return tables.Table(
    '', head, body, (f'On one machine: {device.name}, ignoring memory limits.',)
  )


def _plan() -> tables.Table:
  """Quantities by case, on devices that reach their data sheet."""
  device = costs.best_device(devices.H200)
  plans = [costs.plan_round(case.job, device, case.devices) for case in CASES]
  time, size = layout.seconds, layout.nbytes
  rows: list[tuple[str, Callable[[costs.Plan], str]]] = [
    ('training, flops', lambda p: f'{p.flops:.3g}'),
    ('training', lambda p: time(p.training)),
    ('devices per copy of the model', lambda p: str(p.model_devices)),
    ('vectors, memory per device', lambda p: size(p.vector_bytes)),
    ('summing updates, sent per device', lambda p: size(p.reduced_bytes)),
    ('summing updates', lambda p: time(p.reducing)),
    ('noise and server', lambda p: time(p.serving)),
    ('a projection, Hadamard', lambda p: time(p.scoring['hadamard'])),
    ('a projection, sphere', lambda p: time(p.scoring['sphere'])),
    ('inserting canaries, Hadamard', lambda p: time(p.inserting['hadamard'])),
    ('inserting canaries, sphere', lambda p: time(p.inserting['sphere'])),
    ('a projection, sent per device, Hadamard', lambda p: size(p.score_bytes['hadamard'])),
    ('audit, memory per device, Hadamard', lambda p: size(p.audit_bytes['hadamard'])),
    ('audit, memory per device, sphere', lambda p: size(p.audit_bytes['sphere'])),
    ('share of the audit, Hadamard', lambda p: _share(p, 'hadamard')),
    ('share of the audit, sphere', lambda p: _share(p, 'sphere')),
    ('all rounds', lambda p: time(2048 * p.seconds)),
    ('examples read', lambda p: size(p.read_bytes)),
    ('updates, if clients send them', lambda p: size(p.uploaded_bytes)),
    ('checkpoint', lambda p: size(p.checkpoint_bytes)),
  ]  # fmt: skip
  body = [[name, *map(shown, plans)] for name, shown in rows]
  attack_scores = [
    layout.nbytes(p.read_bytes / p.seconds / -(-case.devices // _HOST))
    for p, case in zip(plans, CASES)
  ]
  buffered = [
    costs.plan_round(case.job._replace(buffer=_BUFFER), device, case.devices)
    for case in CASES
  ]
  body[16:16] = [
    [
      f'the same, {_BUFFER} rounds scored together',
      *(_share(p, 'sphere') for p in buffered),
    ],
    ['memory for it', *(size(p.audit_bytes['sphere']) for p in buffered)],
  ]
  body.insert(-2, ['examples read per second, by a host of 8', *attack_scores])
  head = ['per round', *(f'{c.name}, {_devices(c.devices)}' for c in CASES)]
  job = CASES[-1].job
  return tables.Table(
    '',
    head,
    body,
    (
      f'k = {job.canaries:,} canaries, T = {job.rounds:,} rounds, '
      f'{job.positions:,} words per client. The memory of an audit includes the '
      'trace of all rounds.',
      f'For {device.name} at the peaks of its data sheet, and a network of '
      f'{layout.nbytes(device.link)} per second and device: a floor, not a '
      'forecast. A program that trains at 40 % of the peak takes 2.5 times as '
      'long, and the share of the audit falls.',
    ),
  )


def _devices(count: int) -> str:
  return f'{count:,} device{"s" if count > 1 else ""}'


def _share(found: costs.Plan, family: str) -> str:
  audit = found.scoring[family] + found.inserting[family]
  others = found.training + found.reducing + found.serving
  return f'{100 * audit / (audit + others):.2g} %'


def _projections(device: costs.Device | None) -> str:
  """What a projection onto sphere canaries takes at the largest case, in words."""
  case = CASES[-1]
  best = costs.best_device(devices.H200)._replace(memory=float('inf'))
  times = {f'one {best.name} at best': costs.plan_round(case.job, best, 1)}
  times[f'{case.devices:,} of them'] = costs.plan_round(
    case.job, best, case.devices
  )
  if device is not None:
    times[f'{device.name}, as measured'] = costs.plan_round(case.job, device, 1)
  normals = case.job.canaries * case.job.dim
  said = '; '.join(
    f'{layout.seconds(p.scoring["sphere"])} on {name} '
    f'(Hadamard: {layout.seconds(p.scoring["hadamard"])})'
    for name, p in times.items()
  )
  return (
    f'One projection onto {case.job.canaries:,} sphere canaries at {case.job.dim:.0e} '
    f'parameters generates {normals:.0e} normals: {said}.'
  )


def _noise() -> tables.Table:
  """What an attacker of a canary's round meets, by noise and alignment."""
  job = CASES[-1].job
  error = (job.canaries / 2) ** -0.5
  body = []
  for z in (0.2, 1.0, 4.0):
    for alignment in (0.0, 1e-4, 1e-2):
      sigma = costs.effective_noise(
        z, clients=job.clients, dim=job.dim, alignment=alignment
      )
      ends = [_epsilon(1 / sigma + sign * error) for sign in (-1, 1)]
      body.append(
        [
          f'{z:g}',
          f'{alignment:g}',
          f'{sigma:.3g}',
          f'{1 / sigma / job.dim**0.5:.2g}',
          f'{_epsilon(1 / z):.3g}',
          f'{_epsilon(1 / sigma):.3g} ({ends[0]:.3g} to {ends[1]:.3g})',
          f'{9 * z**2 * job.rounds:,.0f}',
        ]
      )
  head = [
    'z',
    'a',
    'σ',
    'cosine',
    'analytic ε',
    'ε, own round',
    'k, final model',
  ]
  return tables.Table(
    '',
    head,
    body,
    (
      f'm = {job.clients:,}, d = {job.dim:.0e}, δ = {_DELTA:.1e} '
      f'({_PEOPLE:.0e} people to the power of -1.1). Every update has the full '
      f'clip norm. In brackets: one standard error with {job.canaries // 2:,} '
      'canaries.',
      f'The standard deviation of a cosine without a leak is '
      f'{job.dim**-0.5:.0e}.',
      'k, final model: the number of canaries whose mean cosine with the final '
      f'model is three standard errors, if the noise of {job.rounds:,} rounds is '
      'the only other contribution: 9 z² T.',
    ),
  )


def _epsilon(shift: float) -> float:
  return float(gaussian.epsilon_two_gaussians(0, 1, max(shift, 0), 1, _DELTA))
