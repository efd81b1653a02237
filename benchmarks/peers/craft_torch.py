"""The crafting loop of CANIFE in PyTorch, one canary after another.

  python craft_torch.py PROBLEM.npz --steps=60 --threads=2

It is run by benchmarks/canife.py and prints one JSON object. `whole` does what the
released code does: updates of mock clients stand in a matrix [n, d], of which each
step takes the rows of a minibatch; the gradient of the canary is made by autograd,
with a graph, and concatenated. `factored` has the inner products from factors, as
epe_jax has, but neither compiles nor batches.
"""

import argparse
import importlib.metadata
import json
import time

import numpy as np
import torch
from torch.nn import functional

CLIP_NORM, NORM_TARGET, RATE = 1.0, 1.0, 1.0


def forward(params, x):
  hidden = torch.relu(x @ params['w1'] + params['b1'])
  return hidden, hidden @ params['w2'] + params['b2']


def whole_gradients(params, x, y):
  """Clipped gradients of examples, [n, d], in the order of the names."""
  hidden, logits = forward(params, x)
  second = functional.softmax(logits, dim=1) - y
  first = (second @ params['w2'].T) * (hidden > 0)
  parts = {
    'b1': first,
    'b2': second,
    'w1': (x[:, :, None] * first[:, None]).flatten(1),
    'w2': (hidden[:, :, None] * second[:, None]).flatten(1),
  }
  rows = torch.cat([parts[name] for name in sorted(parts)], dim=1)
  norms = rows.norm(dim=1, keepdim=True)
  return rows * torch.clamp(CLIP_NORM / norms, max=1)


def finish(dim, norm, scores):
  shortage = torch.clamp(NORM_TARGET - norm, min=0)
  return dim * (shortage**2 + (scores**2).mean())


def make_whole(params, x, y):
  names = sorted(params)
  updates = whole_gradients(params, x, y)
  weights = [params[name].clone().requires_grad_() for name in names]

  def loss(pixels, label, rows):
    _, logits = forward(dict(zip(names, weights)), pixels[None])
    target = functional.softmax(label, dim=0)[None]
    value = functional.cross_entropy(logits, target)
    slopes = torch.autograd.grad(value, weights, create_graph=True)
    gradient = torch.cat([slope.flatten() for slope in slopes])
    norm = gradient.norm()
    direction = functional.normalize(gradient, dim=0) * CLIP_NORM
    target = updates if rows is None else updates[rows]
    return finish(gradient.numel(), norm, (direction[None] * target).sum(dim=1))

  return loss


def make_factored(params, x, y):
  dim = sum(w.numel() for w in params.values())

  def factor(x, y):
    hidden, logits = forward(params, x)
    second = functional.softmax(logits, dim=-1) - y
    return x, hidden, (second @ params['w2'].T) * (hidden > 0), second

  def norms(f):
    squares = [(part * part).sum(dim=-1) for part in f]
    return torch.sqrt(
      (squares[0] + 1) * squares[2] + (squares[1] + 1) * squares[3]
    )

  pool = factor(x, y)
  scale = torch.clamp(CLIP_NORM / norms(pool), max=1)[:, None]
  pool = (pool[0], pool[1], scale * pool[2], scale * pool[3])

  def loss(pixels, label, rows):
    f = factor(pixels, functional.softmax(label, dim=0))
    norm = norms(f)
    x, h, first, second = pool if rows is None else [p[rows] for p in pool]
    inner = (x @ f[0] + 1) * (first @ f[2]) + (h @ f[1] + 1) * (second @ f[3])
    return finish(dim, norm, CLIP_NORM * inner / norm)

  return loss


def craft(loss, pixels, label, num, minibatch, steps):
  pixels, label = (v.clone().requires_grad_() for v in (pixels, label))
  optimizer = torch.optim.Adam([pixels, label], lr=RATE)
  for _ in range(steps):
    optimizer.zero_grad()
    rows = torch.ones(num).multinomial(minibatch, replacement=False)
    loss(pixels, label, rows).backward()
    optimizer.step()


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument('problem')
  parser.add_argument('--steps', type=int, required=True)
  parser.add_argument('--repetitions', type=int, required=True)
  parser.add_argument('--threads', type=int, required=True)
  parser.add_argument('--minibatch', type=int, required=True)
  args = parser.parse_args()
  torch.manual_seed(0)
  torch.set_num_threads(args.threads)
  with np.load(args.problem) as file:
    arrays = {name: torch.from_numpy(file[name]) for name in file.files}
  params = {name: arrays[name] for name in ('w1', 'b1', 'w2', 'b2')}
  x, y = arrays['x'], arrays['y']
  begin = arrays['pixels'], arrays['label_logits']
  answer = {'torch': importlib.metadata.version('torch')}
  for name, make in (('whole', make_whole), ('factored', make_factored)):
    loss = make(params, x, y)
    first = float(loss(*begin, None).detach())
    craft(loss, *begin, len(x), args.minibatch, max(args.steps // 10, 2))
    seconds = []
    for _ in range(args.repetitions):
      start = time.perf_counter()
      craft(loss, *begin, len(x), args.minibatch, args.steps)
      seconds.append((time.perf_counter() - start) / args.steps)
    answer[name] = {'first_loss': first, 'seconds': min(seconds)}
  print(json.dumps(answer))


if __name__ == '__main__':
  main()
