"""Compiles the programs of all configs for devices that are not at hand.

  python -m benchmarks.speed.compile_for --topology=v5e:2x4,v6e:2x4,v5p:2x2x2,h100:1x8

`--quick` compiles small ones. It takes libtpu (pip install 'jax[tpu]') for TPUs, JAX's
plugin (pip install 'jax[cuda13]') for GPUs, and no device. Each program is compiled in a
process of its own, in a minute for a GPU and five to fifteen for a TPU, first what departs
least from an audited round of the paper on the first topology, and is recorded at once; the
same command goes on with what is missing. A round trains as many clients at once as the
compiler finds memory for, as a run tries on the device.
"""

from collections.abc import Callable, Iterator, Sequence
import datetime
import importlib.util
import itertools
import os
import pathlib
import re
import subprocess
import time
from typing import Any, NamedTuple

# Before JAX is imported. This machine is no part of a TPU, and computes nothing on a GPU.
os.environ |= {
  'JAX_PLATFORMS': 'cpu',
  'TPU_SKIP_MDS_QUERY': '1',
  'TPU_WORKER_HOSTNAMES': 'localhost',
  'TPU_ACCELERATOR_TYPE': 'v5litepod-4',
  # Several processes compile, as none of them has a TPU.
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}

from absl import flags
import jax
from jax.experimental import topologies

from benchmarks import harness
from benchmarks.speed import abstract_programs, compiled_costs
from epe_jax import io
from epe_jax.experiment import chunk_size
from epe_jax.experiment.setup import config as config_lib

TOPOLOGIES = {
  'v5e:2x2': 4,
  'v5e:2x4': 4,
  'v6e:2x2': 4,
  'v6e:2x4': 4,
  'v5p:2x2x1': 4,
  'v5p:2x2x2': 4,
  'h100:1x8': 8,
}
"""Topology -> the devices of a process."""

_NAMES = flags.DEFINE_list(
  'topology', ['v5e:2x4', 'v6e:2x4', 'v5p:2x2x2', 'h100:1x8'], 'Which.'
)
_MINUTES = flags.DEFINE_float('minutes', 600.0, 'For one program, at most.')

JOBS = (
  'emnist',
  'stackoverflow',
  'emnist:5x34',
  'stackoverflow:medium',
  'digits',
)
GAMES = tuple(abstract_programs.GAME + x for x in ('convnet', 'wide_resnet'))
_FIXED = {'clipping.kind': 'fixed'}
VARIANTS: dict[str, dict[str, Any]] = {
  'sphere': {'canaries.family': 'sphere'},
  'hadamard': {'canaries.family': 'hadamard'},
  'hadamard2': {'canaries.family': 'hadamard2'},
  'exact noise': {'simulation': False},
  'secure aggregation': {'secure_aggregation.bits': 16, **_FIXED},
  **{
    x: {'noise.correlation': x, **_FIXED}
    for x in ('tree', 'banded', 'bisr', 'blt')
  },
  'bfloat16': {'precision': 'bfloat16'},
  'maxima': {'audit.trace': False},
  'without canaries': {'canaries.observed': 0, 'canaries.unobserved': 0},
}
"""What a run departs by from its config -> fields."""

PROGRAMS = ('round', 'init', 'flush', 'score', 'score_rounds', 'evaluate')
# Those that differ in more ways are not compiled.
_DEPARTURES = 2
_PACKAGES, _COMPILERS = ('jax', 'jaxlib'), ('libtpu', 'jax_cuda13_plugin')
_CALLED = 'benchmarks.speed.compile_for:compile_program'
_FULL = 'RESOURCE_EXHAUSTED'
_USED = re.compile(r'Used ([\d.]+)([KMG]) of ([\d.]+)([KMG]) hbm')
# Of a device, in bytes: those of TPUs as libtpu names them where an array is larger, that
# of the GPU as h100.txtpb has it.
_LIMITS = {
  'v5e': 17_179_869_184,
  'v6e': 33_822_867_456,
  'v5p': 103_079_215_104,
  'h100': 84_942_979_072,
}
_UNITS = {'K': 2.0**10, 'M': 2.0**20, 'G': 2.0**30}


class Program(NamedTuple):
  """A program for devices.

  Attributes:
    topology: a key of `TOPOLOGIES`.
    devices: the first so many, that share the work.
    job: a config, or a game.
    variant: a key of `VARIANTS`.
    program: one of `PROGRAMS`, or 'step' of a game.
    quick: whether it is of a small model.
  """

  topology: str
  devices: int
  job: str
  variant: str = 'sphere'
  program: str = 'round'
  quick: bool = False

  @property
  def name(self) -> str:
    chip, _, _ = self.topology.partition(':')
    return (
      f'{chip} x {self.devices}, {self.job}, {self.variant}, {self.program}'
    )

  def count_departures(self, first: str) -> int:
    """In how many ways it differs from a round of the paper on one chip of a topology."""
    return (
      (self.topology != first)
      + (self.devices > 1)
      + (self.variant not in ('sphere', '-'))
      + (self.job not in JOBS[:2])
      + (self.program not in ('round', 'step'))
    )


def list_programs(
  names: Sequence[str], *, quick: bool = False
) -> list[Program]:
  """All programs for some topologies, the most important first.

  Raises:
    ValueError: there is no such topology.
  """
  for name in names:
    if name not in TOPOLOGIES:
      raise ValueError(
        f'topology={name!r}; give one of {", ".join(TOPOLOGIES)}.'
      )
  made = [program for name in names for program in _list_of(name, quick)]

  def rank(program: Program) -> tuple[int, bool, bool]:
    departures = program.count_departures(names[0])
    is_plain = program.variant == 'sphere' and program.program == 'round'
    return departures, not is_plain, program.topology == names[0]

  return sorted(
    (x for x in made if quick or rank(x)[0] <= _DEPARTURES), key=rank
  )


def _list_of(topology: str, quick: bool) -> Iterator[Program]:
  count = _count_devices(topology)
  meshes = sorted({1, TOPOLOGIES[topology], count})
  if quick:
    for devices in (1, count):
      yield Program(topology, devices, 'digits', quick=True)
    yield Program(topology, 1, 'digits', program='score', quick=True)
    yield Program(topology, 1, GAMES[0], '-', 'step', quick=True)
    return
  for fields in itertools.product(meshes, JOBS, VARIANTS, PROGRAMS):
    program = Program(topology, *fields)
    # What else a run computes hardly depends on how it departs.
    if program.program == 'round' or program.variant == 'sphere':
      yield program
  for game in GAMES:
    yield Program(topology, 1, game, '-', 'step')


def _count_devices(topology: str) -> int:
  count = 1
  for n in topology.partition(':')[2].split('x'):
    count *= int(n)
  return count


def explain_missing(topology: str) -> str | None:
  """Says what has to be installed to compile for a topology; None if all is."""
  is_gpu = topology.startswith('h100')
  package, extra = _COMPILERS[is_gpu], ('tpu', 'cuda13')[is_gpu]
  if importlib.util.find_spec(package):
    return None
  return f"{package} compiles for {topology}, and is missing: pip install 'jax[{extra}]'"


def find_devices(topology: str) -> Sequence[Any]:
  """The devices of a topology, for which programs can be compiled."""
  chip, _, shape = topology.partition(':')
  if chip != 'h100':
    return topologies.get_topology_desc(topology, 'tpu').devices
  target = pathlib.Path(__file__).with_name('h100.txtpb').read_text()
  # Slices, processes of each, and devices of each.
  return topologies.get_topology_desc(
    chip, 'cuda', topology=f'1x{shape}', target_config=target
  ).devices


def compile_program(*fields: Any) -> dict[str, Any]:
  """Compiles a program in this process, and returns its row.

  Args:
    *fields: of `Program`.
  """
  program = Program(*fields)
  devices = find_devices(program.topology)[: program.devices]
  row: dict[str, Any] = {
    **program._asdict(),
    'processes': len({x.process_index for x in devices}),
    'limit_bytes': _LIMITS[program.topology.partition(':')[0]],
    'tried': {},
  }
  begun = time.perf_counter()
  try:
    row |= _compile(program, devices, row['tried'])
  except Exception as error:
    row['status'] = 'does not fit' if _FULL in str(error) else 'fails'
    row['error'] = str(error)[:300]
  row['seconds'] = time.perf_counter() - begun
  return row


def _compile(
  program: Program, devices: Sequence[Any], tried: dict[str, float | None]
) -> dict[str, Any]:
  if program.job.startswith(abstract_programs.GAME):
    game = abstract_programs.lower_game(
      program.job, devices[0], quick=program.quick
    )
    return _describe(game)
  config = config_lib.load_config(program.job + ':smoke' * program.quick)
  with config.unlocked():
    config.update_from_flattened_dict(VARIANTS[program.variant])
  config = config_lib.check_config(config)
  run = abstract_programs.Run(config, devices)
  if program.program != 'round':
    return _describe(run.lower(program.program))
  made: dict[str, Any] = {}
  limit = _LIMITS[program.topology.partition(':')[0]]

  def advance(setup: Any) -> None:
    try:
      row = _describe(run.lower_round(setup))
    except jax.errors.JaxRuntimeError as error:
      tried[str(setup.plan.chunk)] = _parse_used(str(error))
      raise
    needed = row['memory_bytes'] + chunk_size.AHEAD * row['cohort_bytes']
    if needed > limit:
      tried[str(setup.plan.chunk)] = needed
      raise jax.errors.JaxRuntimeError(f'{_FULL}: {needed} bytes of {limit}.')
    made.update(row)

  chunk_size.halve_until_it_fits(
    config,
    run.setup,
    advance,
    mesh=run.mesh,
    make_cohorts=lambda config, setup, mesh: setup,
  )
  return made


def _describe(lowered: abstract_programs.Lowered) -> dict[str, Any]:
  """Compiles, and returns figures."""
  compiled = lowered.program.compile()
  memory, text = compiled.memory_analysis(), compiled.as_text()
  sizes = {
    f'{name}_bytes': getattr(memory, f'{name}_size_in_bytes')
    for name in ('argument', 'output', 'alias', 'temp', 'generated_code')
  }
  least, most = (
    compiled_costs.count_costs(text, steps=lowered.steps, most=x)
    for x in (False, True)
  )
  return {
    'status': 'compiled',
    **lowered.figures,
    **sizes,
    # What is donated is reused.
    'memory_bytes': sum(sizes.values()) - 2 * sizes['alias_bytes'],
    'flops': least.flops,
    'flops_most': most.flops,
    'bytes_accessed': least.bytes_accessed,
    'bytes_sent': sum(x[1] for x in least.collectives.values()),
    'collectives': least.collectives,
  }


def _parse_used(error: str) -> float | None:
  found = _USED.search(error)
  return float(found[1]) * _UNITS[found[2]] if found else None


def compile_missing(
  made: Sequence[Program],
  path: pathlib.Path,
  *,
  call: Callable[..., dict[str, Any]] = harness.call_in_process,
  timeout: float | None = None,
) -> dict[str, Any]:
  """Compiles what a record lacks, and returns the rows of all that it has.

  Args:
    made: the programs, in order.
    path: of the record, which is written after each program.
    call: calls a function, by its name, in a process of its own.
    timeout: seconds for a program.
  """
  rows: dict[str, Any] = {}
  if path.exists():
    kept = io.read_json(path)['programs']
    rows = {name: _derive(row) for name, row in kept.items()}
  for program in made:
    if is_done(rows.get(program.name, {})):
      continue
    print(program.name, flush=True)
    try:
      row = call(_CALLED, *program, timeout=timeout)
    except subprocess.SubprocessError as error:
      # The compiler ended the process, or took too long.
      row = {**program._asdict(), 'status': 'fails', 'error': str(error)[-300:]}
    rows[program.name] = _derive(row)
    path.parent.mkdir(parents=True, exist_ok=True)
    # As `harness.run` writes it, so that a recording that is cut is one, too.
    io.write_json(path, {**_summarize(made, rows), **_describe_here()})
  return rows


def is_done(row: dict[str, Any]) -> bool:
  """Whether a row need not be recorded again: it has all figures, and fits a run."""
  if row.get('status') == 'does not fit':
    return True
  has_room = row.get('needed_bytes', 0) <= row.get('limit_bytes', 0)
  return has_room and row.get('flops') is not None


def _derive(row: dict[str, Any]) -> dict[str, Any]:
  """A row with the figures that follow from its others."""
  if 'cohort_bytes' in row:
    ahead = chunk_size.AHEAD * row['cohort_bytes']
    row = {**row, 'needed_bytes': row['memory_bytes'] + ahead}
  if row.get('paper_flops') and row['flops'] is not None:
    row = {**row, 'over_paper': row['flops'] / row['paper_flops']}
  return row


def _summarize(made: Sequence[Program], rows: dict[str, Any]) -> dict[str, Any]:
  return {
    'programs': rows,
    'compiled': sum(x['status'] == 'compiled' for x in rows.values()),
    'of': len({x.name for x in made} | rows.keys()),
  }


def _describe_here() -> dict[str, Any]:
  now = datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')
  compilers = [x for x in _COMPILERS if importlib.util.find_spec(x)]
  machine = harness.describe_machine(*_PACKAGES, *compilers)
  return {'date': now, 'machine': machine}


def measure(quick: bool) -> dict[str, Any]:
  missing = {x: explain_missing(x) for x in _NAMES.value}
  print(*filter(None, missing.values()), sep='\n', flush=True)
  asked = list_programs(_NAMES.value, quick=quick)
  made = [x for x in asked if missing[x.topology] is None]
  path = pathlib.Path(flags.FLAGS.out)
  rows = compile_missing(made, path, timeout=60 * _MINUTES.value)
  return {**_summarize(asked, rows), 'machine': _describe_here()['machine']}


if __name__ == '__main__':
  harness.run(measure, *_PACKAGES)
