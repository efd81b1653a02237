"""What an `Auditor` adds to a round of federated learning in PyTorch.

  python -m benchmarks.speed.auditor_overhead
  python -m benchmarks.speed.auditor_overhead --quick

A round of federated averaging as one writes it: 20 clients train for an epoch of SGD;
their updates are clipped and summed, noise is added and the mean is applied. Rounds
with and without an audit by 1,000 + 1,000 Hadamard canaries are timed in turn, with the
same clients, within one process; five canaries are included in each. Memory is that of a
separate process for each form. --threads=1 measures CPU seconds, which other work on the
machine does not distort.

  lstm         the StackOverflow LSTM, 64 sentences of 20 words, in batches of 16
  large lstm   the same with about 10^7 parameters
  perceptron   100 examples in batches of 20; it uses each parameter once per example,
               the least that a layer can do, so that the auditor's passes over all
               parameters weigh as much as they can

It needs PyTorch but not JAX: `.venv-frameworks/torch/bin/python` has it, from
tests/auditor/adapters/install.sh.
"""

import itertools
import time

from absl import flags
import numpy as np
import torch
from torch import nn

from benchmarks import harness
import epe_jax

_ROUNDS = flags.DEFINE_integer('rounds', 15, 'Rounds of each form.')
_THREADS = flags.DEFINE_integer('threads', None, 'Of PyTorch; its own choice.')
# Examples of each client, and of a batch.
WORKS = {'lstm': (64, 16), 'large lstm': (64, 16), 'perceptron': (100, 20)}
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


def make_model(work: str, quick: bool) -> nn.Module:
  if work == 'perceptron':
    widths = [FEATURES, 2048, 1024, 350, CLASSES]
    layers = []
    for before, after in itertools.pairwise(widths):
      layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
  widths = (8, 16) if quick else (96, 670)
  return Lstm(*((256, 1000) if work == 'large lstm' else widths))


def make_data(work: str, examples: int) -> tuple[torch.Tensor, torch.Tensor]:
  """Inputs and labels, [clients, examples, ...] each."""
  if work == 'perceptron':
    data = torch.randn(CLIENTS, examples, FEATURES)
    return data, torch.randint(CLASSES, (CLIENTS, examples))
  words = torch.randint(WORDS, (CLIENTS, examples, 21))
  return words[..., :-1], words[..., 1:]


def clock() -> float:
  """Seconds; of the CPU if there is one thread."""
  one = torch.get_num_threads() == 1
  return time.process_time() if one else time.perf_counter()


class Training:
  """A model, its clients and the sum of their updates."""

  def __init__(self, work: str, quick: bool):
    torch.manual_seed(0)
    examples, self.batch = WORKS[work]
    examples = 2 if quick else examples
    self.model = make_model(work, quick)
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
    """Runs a round and returns the seconds spent in the auditor."""
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


def measure_time(work: str, quick: bool) -> dict[str, float]:
  """Times rounds of both forms in turn, after one of each."""
  training = Training(work, quick)
  plain, audited, shares, own = [], [], [], []
  for t in range((2 if quick else _ROUNDS.value) + 1):
    both = {}
    # The first form alternates, because machines slow down and speed up.
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
    # The same with less noise: its calls over the rest of the round.
    'share_of_auditor': float(np.median(shares)),
  }


def measure_peak(work: str, form: str, quick: bool, threads: int) -> int:
  """Peak memory of this process after two rounds."""
  torch.set_num_threads(threads)
  training = Training(work, quick)
  for t in range(2):
    training.train_round(training.auditor if form == 'audited' else None, t)
  return harness.max_resident_bytes()


def measure(quick: bool) -> dict:
  if _THREADS.value is not None:
    torch.set_num_threads(_THREADS.value)
  threads, works = torch.get_num_threads(), {}
  for work in WORKS:
    works[work] = measure_time(work, quick)
    for form in ('plain', 'audited'):
      works[work][f'peak_bytes_{form}'] = harness.call_in_process(
        'benchmarks.speed.auditor_overhead:measure_peak',
        work,
        form,
        quick,
        threads,
      )
    print(f'{work}: {works[work]}', flush=True)
  return {
    'clients': CLIENTS,
    'canaries': 2000,
    'works': works,
    'machine': {'threads': threads},
  }


if __name__ == '__main__':
  harness.run(measure, 'torch', 'numpy', 'scipy')
