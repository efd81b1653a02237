"""Opacus 1.6: with ghost clipping a schedule of the clip norm scales the noise alone.

Schedulers set `optimizer.max_grad_norm`, which the noise follows. Ghost clipping clips
by `module.max_grad_norm`, which stays as it was.

  python examples/findings/opacus_clip_schedule.py
"""

import warnings

from opacus import PrivacyEngine
from opacus.schedulers import StepGradClip
import torch
from torch import nn


def main() -> None:
  warnings.simplefilter('ignore')
  for mode in ('hooks', 'ghost'):
    torch.manual_seed(0)
    model, criterion = nn.Linear(10, 3), nn.CrossEntropyLoss()
    data = torch.utils.data.TensorDataset(
      torch.randn(64, 10), torch.randint(0, 3, (64,))
    )
    made = PrivacyEngine().make_private(
      module=model,
      optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
      data_loader=torch.utils.data.DataLoader(data, 8),
      noise_multiplier=0.0,
      max_grad_norm=1.0,
      grad_sample_mode=mode,
      criterion=criterion,
    )
    model, optimizer = made[0], made[1]
    criterion = made[2] if mode == 'ghost' else criterion
    scheduler = StepGradClip(optimizer, step_size=1, gamma=0.1)
    scheduler.step()
    optimizer.zero_grad()
    x, y = 50 * torch.ones(1, 10), torch.tensor([1])
    criterion(model(x), y).backward()
    optimizer.step()
    gradient = torch.cat([p.grad.ravel() for p in optimizer.params])
    moved = float(gradient.norm()) * optimizer.expected_batch_size
    print(
      f'{mode}: one example moves the sum by {moved:.2f}; noise is made for a clip '
      f'norm of {optimizer.max_grad_norm:.2f}'
    )


if __name__ == '__main__':
  main()
