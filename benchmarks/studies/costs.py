"""Predicts the cost of an audited run by arithmetic.

A round trains its clients, sums their updates, adds noise, steps, and scores the result
with all canaries. The operations or bytes of each step are known in advance, and so is
the speed of a device: as measured, or the peak of its data sheet.
"""

import math
from typing import NamedTuple

from epe_jax.planning.devices import Sheet

_FLOAT = 4  # Bytes.
# Forward 2, backward 4, for each parameter and position.
_FLOPS = 6
# The model, a client's copy, its gradient, the sum of updates, the momentum.
_VECTORS = 5
# The sum, model and momentum are read, model and momentum written.
_SERVER_BYTES = 20
# Rows of a group of Hadamard canaries.
_ORDER = 4096
# Threefry-2x32 is 75 operations on words for two normals; and a few more.
_OPERATIONS_PER_NORMAL = 40


class Device(NamedTuple):
  """The speed of one device.

  Attributes:
    name: for people.
    flops: of training, per second.
    server_seconds: of noise and the server's step, for each parameter.
    fold_seconds: of scoring with up to 4,096 Hadamard canaries, for each
      parameter.
    normals: entries of sphere canaries generated per second.
    memory: bytes; inf if it does not matter.
    link: bytes per second to other devices, each way.
  """

  name: str
  flops: float
  server_seconds: float
  fold_seconds: float
  normals: float
  memory: float = math.inf
  link: float = math.inf


class Job(NamedTuple):
  """An audited run.

  Attributes:
    clients: m of a round, >= 1.
    dim: d, >= 1.
    canaries: k, observed and unobserved, >= 1.
    rounds: T >= 1.
    positions: > 0, on which a client trains in a round, such as the words of its
      sentences; each parameter is used once per position.
    buffer: R >= 1, rounds that sphere canaries score together.
  """

  clients: int
  dim: int
  canaries: int
  rounds: int
  positions: float
  buffer: int = 1


class Plan(NamedTuple):
  """The cost of a round of a job.

  Attributes:
    flops: of training.
    training: seconds of it.
    model_devices: that share one copy of all vectors.
    reduced_bytes: that a device sends to sum the updates of all copies.
    reducing: seconds of it.
    serving: seconds of noise and the server's step.
    scoring: seconds of scoring, by family.
    inserting: seconds to insert the canaries of a round, by family.
    seconds: of the round, with Hadamard canaries.
    audit_bytes: of memory on each device, by family, including the trace.
    score_bytes: that a device sends to sum scores, by family.
    vector_bytes: of memory on each device for training, without activations.
    read_bytes: of examples, two for each position.
    uploaded_bytes: of all updates, if clients have to send them.
    checkpoint_bytes: the model, the momentum and the trace.
  """

  flops: float
  training: float
  model_devices: int
  reduced_bytes: float
  reducing: float
  serving: float
  scoring: dict[str, float]
  inserting: dict[str, float]
  seconds: float
  audit_bytes: dict[str, float]
  score_bytes: dict[str, float]
  vector_bytes: float
  read_bytes: float
  uploaded_bytes: float
  checkpoint_bytes: float


def best_device(sheet: Sheet) -> Device:
  """A device at the peaks of its data sheet, in bfloat16, reading vectors once.

  Operations on words go at a quarter of the float32 flops: half as many lanes,
  and one operation where a multiplication with an addition is two.
  """
  return Device(
    sheet.name,
    flops=sheet.bfloat16,
    server_seconds=_SERVER_BYTES / sheet.bandwidth,
    fold_seconds=_FLOAT / sheet.bandwidth,
    normals=sheet.float32 / 4 / _OPERATIONS_PER_NORMAL,
    memory=sheet.memory,
    link=sheet.link,
  )


def plan_round(job: Job, device: Device, devices: int) -> Plan:
  """The costs of a round, with sharded vectors and clients spread over copies.

  A copy of the model occupies the fewest devices, a power of two, that hold its
  vectors in half of their memory. Different copies train different clients; their
  sums are added once, in a ring; server and audit then work on d / devices
  coordinates each. Communication within a copy during training depends on the model
  and is not counted.

  Args:
    job: the run.
    device: measured, or `best_device`.
    devices: number of these devices, >= 1.

  Raises:
    ValueError: a number is out of range, or the model does not fit.
  """
  smallest = min(*job, devices)
  if smallest <= 0:
    raise ValueError(f'{job}, devices={devices}; give positive numbers.')
  each = job.dim / devices
  share = _devices_of_a_copy(job, device, devices)
  copies = devices // share
  flops = _FLOPS * float(job.dim) * job.positions * job.clients
  reduced = 2 * (copies - 1) / copies * _FLOAT * job.dim / share
  groups = -(-job.canaries // _ORDER)
  per_round = max(1.0, job.canaries / 2 / job.rounds)
  trace = _FLOAT * job.canaries * job.rounds
  training = flops / (devices * device.flops)
  reducing, serving = reduced / device.link, each * device.server_seconds
  scoring = {
    'hadamard': groups * each * device.fold_seconds,
    'sphere': job.canaries * each / device.normals / job.buffer,
  }
  inserting = {
    # Signs are generated as for scoring; those of a group at most once.
    'hadamard': min(per_round, groups) * each * device.fold_seconds,
    'sphere': per_round * each / device.normals,
  }
  sums = {'hadamard': groups * _ORDER, 'sphere': job.canaries}
  kept = {'hadamard': groups * _ORDER, 'sphere': job.buffer * each}
  return Plan(
    flops=flops,
    training=training,
    model_devices=share,
    reduced_bytes=reduced,
    reducing=reducing,
    serving=serving,
    scoring=scoring,
    inserting=inserting,
    seconds=training
    + reducing
    + serving
    + scoring['hadamard']
    + inserting['hadamard'],
    audit_bytes={name: _FLOAT * n + trace for name, n in kept.items()},
    score_bytes={
      name: 2 * (devices - 1) / devices * _FLOAT * n for name, n in sums.items()
    },
    vector_bytes=_VECTORS * _FLOAT * job.dim / share,
    read_bytes=2 * job.positions * job.clients,
    uploaded_bytes=_FLOAT * float(job.dim) * job.clients,
    checkpoint_bytes=2 * _FLOAT * job.dim + trace,
  )


def effective_noise(
  noise_multiplier: float, *, clients: int, dim: int, alignment: float
) -> float:
  """σ of the Gaussian mechanism that an attacker of a canary's round sees.

  σ² = z² + (m + m (m - 1) a) / d: m clients' updates of the full clip norm, whose
  mean cosine with each other is a, have only this share in a random direction.

  Args:
    noise_multiplier: z >= 0.
    clients: m >= 1.
    dim: d >= 1.
    alignment: a, mean cosine of two clients' updates, in [0, 1].

  Raises:
    ValueError: alignment is out of range.

  >>> round(effective_noise(1.0, clients=1000, dim=10**6, alignment=1.0), 3)
  1.414
  """
  if not 0 <= alignment <= 1:
    raise ValueError(f'alignment={alignment}; give a mean cosine in [0, 1].')
  others = clients + clients * (clients - 1.0) * alignment
  return math.sqrt(noise_multiplier**2 + others / dim)


def _devices_of_a_copy(job: Job, device: Device, devices: int) -> int:
  needed, share = _VECTORS * _FLOAT * job.dim, 1
  while needed / share > device.memory / 2 and share < devices:
    share *= 2
  if share > devices or needed / share > device.memory / 2:
    raise ValueError(
      f'dim={job.dim:,}: its vectors are {needed:,} bytes, more than half of '
      f'the memory of devices={devices} x {device.memory:,.0f}. Give more '
      'devices.'
    )
  return share
