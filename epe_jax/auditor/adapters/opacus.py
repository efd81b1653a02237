"""Audits of DP-SGD with Opacus: canaries before the noise of its optimizers.

model, optimizer, data = privacy_engine.make_private(...)
auditor = opacus.audit(optimizer, steps=..., delta=...)   # A line more,
...
print(auditor.report())                                   # and another at the end.
"""

from collections.abc import Iterable, Sequence
import inspect
from typing import Any
import warnings

from epe_jax import extras
from epe_jax.auditor.adapters import base
from epe_jax.auditor.auditor import Auditor
from epe_jax.fact import Fact
from epe_jax.report import checks

with extras.explain_missing():
  from opacus.optimizers import (
    AdaClipDPOptimizer,
    DistributedDPOptimizer,
    DistributedDPOptimizerFastGradientClipping,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
    DPPerLayerOptimizer,
    FSDPOptimizerFastGradientClipping,
  )
  import torch
  from torch import nn

# Steps after which every parameter that is used has had a gradient.
_STEPS_TO_USE = 10
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


def audit(
  optimizer: DPOptimizer,
  *,
  model: nn.Module | None = None,
  steps: int | None = None,
  auditor: Auditor | None = None,
  seed: int | None = None,
  **settings: Any,
) -> Auditor:
  """Adds canaries to each clipped sum of gradients, and scores `p.grad`.

  A round is a step that adds noise, including the batches of gradient accumulation or
  a `BatchMemoryManager`. Steps continue from the last one that the auditor observed.
  The step hook remains the accountant's.

  Canaries are certain to be in their steps, so the claimed ε is against an attacker
  who knows when an example was drawn: sampling does not amplify it. The report has
  next to it what the accountant states, whose sampling rate is read. If noise is
  claimed the residual is scored too, which takes a copy of a gradient.

  Args:
    optimizer: what `PrivacyEngine.make_private` returns with flat clipping, also for
      grad_sample_mode='ghost'. It is changed in place. The number of parameters, the
      clip norm and the noise multiplier are read from it. The clip norm may follow a
      schedule, but with ghost clipping, of which an optimizer does not know the
      norm. If the noise follows one, give noise_multiplier=None.
    model: that will be released. In each step it must have the parameters that the
      optimizer moves, and no others to train, so that the audit is of that model.
    steps: that will be made; such as epochs * len(data_loader).

  Returns:
    The auditor.

  Raises:
    TypeError: it is not an Opacus optimizer, its steps cannot be audited, or a
      setting is unknown.
    ValueError: a setting is missing or another than the optimizer has, it is audited
      already or has nothing to train, the model has other parameters, or, later, ghost
      clipping may have another clip norm than the noise.

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
  known = base.Settings(
    {**settings, 'steps': steps}, auditor=auditor, seed=seed, rounds='steps'
  )
  known.refuse_other_views(
    'gradients are observed before the optimizer uses them; '
    "set view='aggregate'"
  )
  if not optimizer.params:
    raise ValueError(
      'all parameters of the optimizer are frozen, as adapters freeze those of the '
      'model that they are put into; make the optimizer of the parameters of adapters.'
    )
  sizes = {f'parameter {i}': p.numel() for i, p in enumerate(optimizer.params)}
  known.read_dim('optimizer', sizes)
  _check_model(optimizer, model)
  first_norm = float(optimizer.max_grad_norm)
  # Of a schedule, an auditor that goes on has the norm of the first step.
  goes_on = auditor is not None and auditor.num_rounds_observed > 0
  clip_norm = known.find('clip_norm') if goes_on else first_norm
  known.read('optimizer', clip_norm=clip_norm)
  _check_noise(optimizer, known)
  if (rate := _find_sample_rate(optimizer)) is not None:
    known.read('optimizer', sampling_probability=rate)
  auditor = known.make()
  add_noise, scale_grad = optimizer.add_noise, optimizer.scale_grad
  t = auditor.num_rounds_observed
  watch, others = _Watch(optimizer, model, auditor), None

  # Called once in a step, on the sum over its batches.
  def add_canaries_and_noise() -> None:
    nonlocal others
    _check_noise(optimizer, known)
    _check_model(optimizer, model)
    _check_ghost_clipping(optimizer, first_norm)
    sums = []
    for p in optimizer.params:
      p.summed_grad = p.summed_grad.contiguous()
      sums.append(p.summed_grad)
    watch.before_step(t, sums)
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
    if optimizer.accumulated_iterations > 1:
      # Its accountant multiplies the rate by the batches of a step.
      auditor.drop_sampling()
    if others is not None:
      others = [x / divisor for x in others]
    release = [p.grad for p in optimizer.params]
    auditor.observe(t, release, divisor=divisor, others=others)
    t, others = t + 1, None

  optimizer.add_noise = add_canaries_and_noise
  optimizer.scale_grad = scale_and_observe
  optimizer.original_optimizer.register_step_post_hook(watch.after_step)
  return auditor


class _Watch:
  """Warns of parameters that have no gradient, or that something else moves."""

  def __init__(
    self, optimizer: DPOptimizer, model: nn.Module | None, auditor: Auditor
  ) -> None:
    self._optimizer, self._model = optimizer, model
    self._auditor = auditor
    self._num_steps = 0
    self._unused = {*range(len(optimizer.params))}
    # After the last step; before the first one.
    self._versions, self._sums = [], self._sum()

  def before_step(self, t: int, grads: Sequence[torch.Tensor]) -> None:
    """Looks at parameters, and the sums of their gradients, before step t."""
    moved = [
      i
      for i, (p, version) in enumerate(
        zip(self._optimizer.params, self._versions)
      )
      if p._version != version
    ]
    notes = self._auditor.notes
    if moved and not any(x.key == 'moved_otherwise' for x in notes):
      self._warn(
        Fact('moved_otherwise', {'names': self._name(moved), 'step': t})
      )
    if self._num_steps < _STEPS_TO_USE:
      self._unused -= {i for i in self._unused if grads[i].any()}
    self._num_steps += 1
    # All of them have none where an audit is tried without data.
    is_some = 0 < len(self._unused) < len(grads)
    if self._num_steps == _STEPS_TO_USE and is_some:
      values = {'names': self._name(self._unused), 'steps': _STEPS_TO_USE}
      self._warn(Fact('without_gradient', values))

  def after_step(self, *_: Any) -> None:
    """Is the hook of whoever moves the parameters, in steps without noise as well."""
    self._versions = [p._version for p in self._optimizer.params]
    if self._num_steps == _STEPS_TO_USE and self._sums:
      if self._sums == self._sum():
        self._warn(Fact('nothing_moved', {'steps': _STEPS_TO_USE}))
      self._sums = []

  def _sum(self) -> list[float]:
    return [float(p.detach().double().sum()) for p in self._optimizer.params]

  def _name(self, indices: Iterable[int]) -> str:
    names = (
      _describe(self._optimizer, i, self._model) for i in sorted(indices)
    )
    return ', '.join(names)

  def _warn(self, fact: Fact) -> None:
    warnings.warn(f'{checks.describe_check(fact)}.', stacklevel=4)
    self._auditor.add_note(fact)


def _describe(
  optimizer: DPOptimizer, i: int, model: nn.Module | None = None
) -> str:
  p = optimizer.params[i]
  names = [] if model is None else model.named_parameters()
  unnamed = f'parameter {i} {tuple(p.shape)}'
  return next((name for name, x in names if x is p), unnamed)


def _check_model(optimizer: DPOptimizer, model: nn.Module | None) -> None:
  """Raises a ValueError unless the optimizer moves what the model has to train."""
  if model is None:
    return
  moved = {id(p): i for i, p in enumerate(optimizer.params)}
  trained = {
    id(p): name for name, p in model.named_parameters() if p.requires_grad
  }
  stale = [_describe(optimizer, moved[x]) for x in moved if x not in trained]
  still = [trained[x] for x in trained if x not in moved]
  if stale or still:
    raise ValueError(
      f'the model trains {", ".join(still) or "nothing"} that the optimizer does not '
      f'move, and the optimizer moves {", ".join(stale) or "nothing"} that the model '
      'does not have, so that what is audited is not what is released. Give the model '
      'that is trained, no copy of it and not one with adapters merged. Put the model '
      'on its device, and adapters into it, before the optimizer and make_private.'
    )


def _find_sample_rate(optimizer: DPOptimizer) -> float | None:
  """q of the accountant, which its step hook alone has."""
  hook = getattr(optimizer, 'step_hook', None)
  if not inspect.isfunction(hook):
    return None
  return inspect.getclosurevars(hook).nonlocals.get('sample_rate')


def _check_noise(optimizer: DPOptimizer, settings: base.Settings) -> None:
  noise = float(optimizer.noise_multiplier)
  settings.read('optimizer', noise_multiplier=noise)
  # Set by the criterion of `PrivacyEngineAdaptiveClipping`, once it is called.
  if hasattr(optimizer, '_adjusted_noise_multiplier'):
    raise TypeError(f'the criterion of the optimizer {_ADAPTIVE}.')


def _check_ghost_clipping(optimizer: DPOptimizer, first_norm: float) -> None:
  norm = float(optimizer.max_grad_norm)
  is_ghost = isinstance(optimizer, DPOptimizerFastGradientClipping)
  if is_ghost and norm != first_norm:
    raise ValueError(
      f'max_grad_norm={norm:g} of the optimizer, which scales the noise, but it was '
      f'{first_norm:g}, and ghost clipping is to the norm of the module, which a '
      'schedule of the clip norm does not set; make_private with '
      "grad_sample_mode='hooks'."
    )
