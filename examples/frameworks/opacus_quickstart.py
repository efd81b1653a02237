"""DP-SGD with Opacus, audited: a small convolutional network on made-up images.

  python examples/frameworks/opacus_quickstart.py

The statements marked `# +` are the audit; the others are the loop of
Opacus's tutorials. An image is noise with a bright bar, whose place is the
label. Canaries are in it from the start: 1,000 of 2,000, each in one of 100
steps.
"""

import argparse
import pathlib
import warnings

from opacus import PrivacyEngine
import torch
from torch import nn

from epe_jax.auditor.adapters import opacus  # +

EXAMPLES, BATCH, EPOCHS, CLASSES = 2000, 80, 4, 10
STEPS = EPOCHS * EXAMPLES // BATCH


def make_images(num: int) -> torch.utils.data.TensorDataset:
  labels = torch.randint(CLASSES, (num,))
  images = torch.randn(num, 1, 20, 20)
  for image, label in zip(images, labels):
    image[0, 2 * label : 2 * label + 2] += 1.0
  return torch.utils.data.TensorDataset(images, labels)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument(
    '--out', type=pathlib.Path, help='where the audit is kept'
  )
  out = parser.parse_args().out

  torch.manual_seed(0)
  warnings.filterwarnings('ignore', 'Secure RNG|Full backward hook')
  model = nn.Sequential(
    nn.Conv2d(1, 16, 4, stride=2),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(16 * 9 * 9, 32),
    nn.ReLU(),
    nn.Linear(32, CLASSES),
  )
  data_loader = torch.utils.data.DataLoader(make_images(EXAMPLES), BATCH)
  model, optimizer, data_loader = PrivacyEngine().make_private(
    module=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
    data_loader=data_loader,
    noise_multiplier=0.6,
    max_grad_norm=1.0,
  )
  auditor = opacus.audit(optimizer, steps=STEPS, delta=1e-5)  # +

  loss = nn.CrossEntropyLoss()
  for _ in range(EPOCHS):
    for images, labels in data_loader:
      optimizer.zero_grad()
      loss(model(images), labels).backward()
      optimizer.step()

  images, labels = make_images(1000).tensors
  with torch.no_grad():
    accuracy = (model(images).argmax(dim=1) == labels).float().mean()
  print(f'accuracy on new data {100 * accuracy:.1f} %\n')
  print(auditor.report())  # +
  if out is not None:
    auditor.save(out / 'opacus.npz')


if __name__ == '__main__':
  main()
