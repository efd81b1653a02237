"""What an `Auditor` adds to a round of federated learning in PyTorch.

  python benchmarks/auditor_overhead.py
  python benchmarks/auditor_overhead.py --quick

A round of federated averaging as one writes it: 20 clients train for an epoch of SGD;
their updates are clipped and summed, noise is added and the mean goes to the model.
Rounds with and without an audit by 1,000 + 1,000 Hadamard canaries are timed in turn,
with the same clients, within one process; five canaries take part in each. Memory is
that of a process of its own for either form. --threads=1 measures seconds of the
processor instead of the wall, which a machine that does other things too does not
distort.

  lstm         the StackOverflow LSTM, 64 sentences of 20 words, in batches of 16
  large lstm   the same with about 10^7 parameters
  perceptron   100 examples in batches of 20; it uses each parameter once for an
               example, the least that a layer can do, so that the auditor's passes
               over all parameters weigh as much as they can

It needs PyTorch but not JAX: `.venv-frameworks/torch/bin/python` has it, from
tests/auditor/adapters/install.sh.
"""

import importlib.metadata
import itertools
import json
import os
import pathlib
import platform
import subprocess
import sys
import time

from absl import app, flags
import numpy as np
import torch
from torch import nn

import epe_jax
from epe_jax import io

FOLDER = pathlib.Path(__file__).parent / 'results'
_QUICK = flags.DEFINE_bool('quick', False, 'Small sizes: does it run?')
_ROUNDS = flags.DEFINE_integer('rounds', 15, 'Rounds of each form.')
_THREADS = flags.DEFINE_integer('threads', None, 'Of PyTorch; its own choice.')
_PEAK = flags.DEFINE_string('peak', None, 'WORK,FORM whose memory is printed.')
_OUT = flags.DEFINE_string(
  'out', str(FOLDER / 'auditor_overhead.json'), 'File of the result.'
)
_PAGE = flags.DEFINE_string(
  'page', None, 'Write the result that --out has into this page, and no more.'
)
# What each client trains with; the share of a round that an audit may take.
WORKS = {
  'lstm': (64, 16, 0.02),
  'large lstm': (64, 16, 0.01),
  'perceptron': (100, 20, None),
}
WORDS, CLASSES, FEATURES = 10_004, 62, 784
CLIENTS, CLIP_NORM, NOISE = 20, 1.0, 0.5


class Lstm(nn.Module):
  """Next words; of the widths of TFF's StackOverflow model, or others."""

  def __init__(self, width: int, hidden: int):
    super().__init__()
    self.embedding = nn.Embedding(WORDS, width)
    self.lstm = nn.LSTM(width, hidden, batch_first=True)
    # PyTorch has two biases where one suffices.
    for name, p in self.lstm.named_parameters():
      if name == 'bias_hh_l0':
        nn.init.zeros_(p).requires_grad_(False)
    self.projection = nn.Linear(hidden, width)
    self.logits = nn.Linear(width, WORDS)

  def forward(self, x):
    x, _ = self.lstm(self.embedding(x))
    return self.logits(self.projection(x)).flatten(0, 1)


def make_model(work: str) -> nn.Module:
  if work == 'perceptron':
    widths = [FEATURES, 2048, 1024, 350, CLASSES]
    layers = []
    for before, after in itertools.pairwise(widths):
      layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
  widths = (8, 16) if _QUICK.value else (96, 670)
  return Lstm(*((256, 1000) if work == 'large lstm' else widths))


def make_data(work: str, examples: int) -> tuple[torch.Tensor, torch.Tensor]:
  """Inputs and labels, [clients, examples, ...] each."""
  if work == 'perceptron':
    data = torch.randn(CLIENTS, examples, FEATURES)
    return data, torch.randint(CLASSES, (CLIENTS, examples))
  words = torch.randint(WORDS, (CLIENTS, examples, 21))
  return words[..., :-1], words[..., 1:]


def clock() -> float:
  """Seconds; of the processor where one thread was asked for."""
  # Other programs of a busy machine do not count then.
  return time.process_time() if _THREADS.value == 1 else time.perf_counter()


class Training:
  """A model, its clients and the sum of their updates."""

  def __init__(self, work: str):
    torch.manual_seed(0)
    examples, self.batch, _ = WORKS[work]
    examples = 2 if _QUICK.value else examples
    self.model = make_model(work)
    self.params = [p for p in self.model.parameters() if p.requires_grad]
    self.dim = sum(p.numel() for p in self.params)
    self.data, self.labels = make_data(work, examples)
    self.auditor = epe_jax.Auditor(
      epe_jax.AuditConfig(
        dim=self.dim,
        rounds=200,
        clip_norm=CLIP_NORM,
        noise_multiplier=NOISE,
        delta=1e-5,
      ),
      seed=0,
    )

  def train_round(self, auditor: epe_jax.Auditor | None, t: int) -> float:
    """Makes a round; returns the seconds that the auditor took of it."""
    start = [p.detach().clone() for p in self.params]
    sums = [torch.zeros_like(p) for p in start]
    optimizer = torch.optim.SGD(self.params, lr=0.01)
    for data, labels in zip(self.data, self.labels):
      batches = data.split(self.batch), labels.split(self.batch)
      for x, label in zip(*batches):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), label.flatten())
        loss.backward()
        optimizer.step()
      with torch.no_grad():
        for p, x in zip(self.params, start):
          p -= x
        norm = torch.stack([p.norm() for p in self.params]).norm()
        scale = min(1.0, CLIP_NORM / float(norm))
        for p, x, total in zip(self.params, start, sums):
          total.add_(p, alpha=scale)
          p.copy_(x)
    count, seconds = CLIENTS, 0.0
    if auditor is not None:
      began = clock()
      count += auditor.add_injection(t, sums)
      seconds += clock() - began
    with torch.no_grad():
      for x in sums:
        x.add_(torch.randn_like(x), alpha=NOISE * CLIP_NORM).div_(count)
      if auditor is not None:
        began = clock()
        auditor.observe(t, sums, divisor=count)
        seconds += clock() - began
      for p, x in zip(self.params, sums):
        p += x
    return seconds


def measure_time(work: str) -> dict[str, float | None]:
  """Times rounds of both forms in turn, after one of each."""
  training = Training(work)
  plain, audited, shares, own = [], [], [], []
  for t in range(_ROUNDS.value + 1):
    both = {}
    # Which form comes first alternates, as machines slow down and speed up.
    for is_audited in (False, True) if t % 2 else (True, False):
      began = clock()
      seconds = training.train_round(
        training.auditor if is_audited else None, t
      )
      both[is_audited] = clock() - began, seconds
    if t:
      plain.append(both[False][0])
      audited.append(both[True][0])
      own.append(both[True][1])
      shares.append(both[True][1] / (both[True][0] - both[True][1]))
  return {
    'parameters': training.dim,
    'seconds_plain': float(np.median(plain)),
    'seconds_audited': float(np.median(audited)),
    'seconds_of_auditor': float(np.median(own)),
    'difference': float(np.median(audited) / np.median(plain) - 1),
    # The same question with less noise: its calls, by the rest of the round.
    'share_of_auditor': float(np.median(shares)),
    'target': WORKS[work][2],
  }


def measure_memory(work: str) -> dict[str, float]:
  """Peak memory of either form, in bytes."""
  peaks = {}
  for form in ('plain', 'audited'):
    command = [sys.executable, __file__, f'--peak={work},{form}']
    command += ['--quick'] * _QUICK.value
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peaks[f'peak_bytes_{form}'] = int(done.stdout.split()[-1])
  return peaks


def describe_machine() -> dict[str, object]:
  info = pathlib.Path('/proc/cpuinfo').read_text()
  models = [x for x in info.splitlines() if x.startswith('model name')]
  return {
    'cpu': models[0].partition(': ')[2] if models else platform.processor(),
    'cores': len(os.sched_getaffinity(0)),
    'threads': torch.get_num_threads(),
    'load': os.getloadavg()[0],
    'python': platform.python_version(),
    **{x: importlib.metadata.version(x) for x in ('torch', 'numpy', 'scipy')},
    'epe_jax': epe_jax.__version__,
  }


def write_page(path: pathlib.Path, record: dict) -> None:
  """Writes the table of a result between the marks of a page."""
  machine = record['machine']
  threads = f'{machine["threads"]} thread{"s" * (machine["threads"] > 1)}'
  lines = [
    '',
    f'A round of {record["clients"]} clients in PyTorch with '
    f'{record["canaries"]:,} canaries, on {threads} of {machine["cpu"]} '
    '(`benchmarks/auditor_overhead.py`):',
    '',
    '| work | parameters | round | with an audit | within its calls | their share '
    '| memory, more |',
    '|---|---|---|---|---|---|---|',
  ]
  for work, x in record['works'].items():
    more = x['peak_bytes_audited'] - x['peak_bytes_plain']
    lines.append(
      f'| {work} | {x["parameters"]:,} | {x["seconds_plain"]:.2f} s '
      f'| {x["seconds_audited"]:.2f} s '
      f'| {1000 * x["seconds_of_auditor"]:.0f} ms '
      f'| {100 * x["share_of_auditor"]:.2f} % | {more / 1e6:+.0f} MB |'
    )
  head, rest = path.read_text(encoding='utf-8').split('<!-- begin overhead -->')
  tail = rest.split('<!-- end overhead -->')[1]
  text = '\n'.join([*lines, ''])
  io.write_text(
    path, f'{head}<!-- begin overhead -->\n{text}<!-- end overhead -->{tail}'
  )


def main(_: list[str]) -> None:
  if _PAGE.value is not None:
    write_page(pathlib.Path(_PAGE.value), io.read_json(_OUT.value))
    return
  if _THREADS.value is not None:
    torch.set_num_threads(_THREADS.value)
  if _PEAK.value is not None:
    work, form = _PEAK.value.split(',')
    training = Training(work)
    for t in range(2):
      training.train_round(training.auditor if form == 'audited' else None, t)
    # Not ru_maxrss, which a process has from the one that started it.
    status = pathlib.Path('/proc/self/status').read_text()
    print(int(status.split('VmHWM:')[1].split()[0]) * 1024)
    return
  figures = {}
  print('work        parameters   round  audited  auditor   share  more memory')
  for work in WORKS:
    x = figures[work] = {**measure_time(work), **measure_memory(work)}
    more = x['peak_bytes_audited'] - x['peak_bytes_plain']
    print(
      f'{work:10}  {x["parameters"]:10,}  {x["seconds_plain"]:4.2f} s  '
      f'{x["seconds_audited"]:5.2f} s  {1000 * x["seconds_of_auditor"]:4.0f} ms  '
      f'{100 * x["share_of_auditor"]:4.2f} %  {more / 1e6:8.0f} MB'
    )
  record = {
    'clients': CLIENTS,
    'canaries': 2000,
    'works': figures,
    'machine': describe_machine(),
    'date': time.strftime('%Y-%m-%dT%H:%M:%S+00:00', time.gmtime()),
  }
  path = pathlib.Path(_OUT.value)
  path.parent.mkdir(parents=True, exist_ok=True)
  io.write_json(path, record)
  print(json.dumps(record, indent=2))


if __name__ == '__main__':
  app.run(main)
