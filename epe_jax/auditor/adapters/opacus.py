"""Audits of DP-SGD with Opacus: canaries before the noise of its optimizers.

model, optimizer, data = privacy_engine.make_private(...)
audit_optimizer(optimizer, auditor)                   # A line more,
...
print(auditor.report())                               # and another at the end.
"""

import math

from opacus.optimizers import (
  AdaClipDPOptimizer,
  DistributedDPOptimizer,
  DistributedDPOptimizerFastGradientClipping,
  DPOptimizer,
  DPPerLayerOptimizer,
  FSDPOptimizerFastGradientClipping,
)

from epe_jax.auditor.adapters import versions
from epe_jax.auditor.auditor import Auditor

versions.check_version('opacus', first='1.6', last='1.6')

_DISTRIBUTED = (
  'adds its noise on one worker, or in shards; audit the same training on one '
  'worker'
)
_ADAPTIVE = (
  'splits its noise between gradients and a count that canaries are not in; audit '
  "clipping='flat'"
)
_REFUSED = {
  AdaClipDPOptimizer: _ADAPTIVE,
  DPPerLayerOptimizer: 'clips layer by layer, which no canary survives whole; '
  "audit clipping='flat'",
  DistributedDPOptimizer: _DISTRIBUTED,
  DistributedDPOptimizerFastGradientClipping: _DISTRIBUTED,
  FSDPOptimizerFastGradientClipping: _DISTRIBUTED,
}


def audit_optimizer(optimizer: DPOptimizer, auditor: Auditor) -> None:
  """Injects canaries into each step of an optimizer, and scores what it releases.

  A round is a step that adds noise, including the batches of gradient accumulation or
  a `BatchMemoryManager`. The canaries of the step are added to the sum of clipped
  gradients as further examples, and all canaries are scored by `p.grad`, which the
  optimizer uses. Steps continue from the last one that the auditor observed. The
  step hook remains the accountant's.

  Canaries are certain to be in their steps, so the claimed ε is against an attacker
  who knows when an example was drawn: sampling does not amplify it. With a noise
  multiplier in the config the residual is scored too, which takes a copy of a
  gradient.

  Args:
    optimizer: what `PrivacyEngine.make_private` returns with flat clipping, also for
      grad_sample_mode='ghost'. Its clip norm may follow a schedule.
    auditor: dim is the number of trained parameters, clip_norm is max_grad_norm, and
      the rounds are the steps that will be made.

  Raises:
    TypeError: it is not an Opacus optimizer, or its steps cannot be audited.
    ValueError: the auditor was made for another optimizer, or audits one already.

  References:
    Opacus: User-Friendly Differential Privacy Library in PyTorch, 2021.
  """
  name = type(optimizer).__name__
  if not isinstance(optimizer, DPOptimizer):
    raise TypeError(
      f'optimizer is a {name}; give what `PrivacyEngine.make_private` returned.'
    )
  for refused, reason in _REFUSED.items():
    if isinstance(optimizer, refused):
      raise TypeError(f'optimizer is a {name}, which {reason}.')
  if 'add_noise' in vars(optimizer):
    raise ValueError('optimizer is audited already; audit it once.')
  _check_config(optimizer, auditor)
  add_noise, scale_grad = optimizer.add_noise, optimizer.scale_grad
  t, others = auditor.num_rounds_observed, None

  # Called once in a step, on the sum over its batches.
  def add_canaries_and_noise() -> None:
    nonlocal others
    _check_noise(optimizer, auditor)
    sums = []
    for p in optimizer.params:
      p.summed_grad = p.summed_grad.contiguous()
      sums.append(p.summed_grad)
    if auditor.config.noise_multiplier is not None:
      others = [x.clone() for x in sums]
    clip_norm = float(optimizer.max_grad_norm)
    if all(x.device.type == 'cpu' and x.itemsize >= 4 for x in sums):
      auditor.add_injection(t, sums, clip_norm=clip_norm)
    else:
      injection = auditor.injection(t, like=sums, clip_norm=clip_norm)
      for x, canaries in zip(sums, injection.update):
        x += canaries
    add_noise()

  def scale_and_observe() -> None:
    nonlocal t, others
    scale_grad()
    divisor = 1.0
    if optimizer.loss_reduction == 'mean':
      assert optimizer.expected_batch_size is not None
      divisor = optimizer.expected_batch_size * optimizer.accumulated_iterations
    if others is not None:
      others = [x / divisor for x in others]
    release = [p.grad for p in optimizer.params]
    auditor.observe(t, release, divisor=divisor, others=others)
    t, others = t + 1, None

  optimizer.add_noise = add_canaries_and_noise
  optimizer.scale_grad = scale_and_observe


def _check_config(optimizer: DPOptimizer, auditor: Auditor) -> None:
  config = auditor.config
  dim = sum(p.numel() for p in optimizer.params)
  if config.dim != dim:
    raise ValueError(
      f'dim={config.dim:,}, but the optimizer trains {dim:,} numbers; give that.'
    )
  if config.sees != 'aggregate':
    raise ValueError(
      f'sees={config.sees!r}, but gradients are observed before the optimizer '
      "uses them; set sees='aggregate'."
    )
  if not math.isclose(config.clip_norm, optimizer.max_grad_norm):
    raise ValueError(
      f'clip_norm={config.clip_norm}, but max_grad_norm is '
      f'{optimizer.max_grad_norm}; set clip_norm={optimizer.max_grad_norm}.'
    )
  _check_noise(optimizer, auditor)


def _check_noise(optimizer: DPOptimizer, auditor: Auditor) -> None:
  claimed, now = auditor.config.noise_multiplier, optimizer.noise_multiplier
  if claimed is not None and not math.isclose(claimed, now):
    raise ValueError(
      f'noise_multiplier={claimed}, but that of the optimizer is {now:g}; set '
      f'noise_multiplier={now:g}, or None where it follows a schedule.'
    )
  # Set by the criterion of `PrivacyEngineAdaptiveClipping`, once it is called.
  if hasattr(optimizer, '_adjusted_noise_multiplier'):
    raise TypeError(f'the criterion of the optimizer {_ADAPTIVE}.')
