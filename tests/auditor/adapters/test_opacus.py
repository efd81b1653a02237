import re

import pytest

pytest.importorskip('opacus', reason='opacus is not installed')


import numpy as np
from opacus import PrivacyEngine
from opacus.schedulers import StepGradClip, StepNoise
from opacus.utils.adaptive_clipping.adaptive_clipping_utils import (
  PrivacyEngineAdaptiveClipping,
)
from opacus.utils.batch_memory_manager import BatchMemoryManager
import torch
from torch import nn

import epe_jax
from epe_jax.audit import attackers
from epe_jax.auditor.adapters import opacus as integration
from tests.auditor.adapters import laws

# Opacus and PyTorch warn of what is meant here.
pytestmark = [
  pytest.mark.filterwarnings('ignore:Secure RNG'),
  pytest.mark.filterwarnings('ignore:Full backward hook'),
]

# Threads that wait for one another cost more than such small gradients.
torch.set_num_threads(1)

ROUNDS, FEATURES, CLASSES = 25, 199, 100
DIM = (FEATURES + 1) * CLASSES
EXAMPLES = 25 * 8


class Network(nn.Module):
  """A linear layer; without a signal its gradients are zero."""

  def __init__(self, signal):
    super().__init__()
    self.layer, self.signal = nn.Linear(FEATURES, CLASSES), signal

  def forward(self, x):
    return self.signal * self.layer(x)


class Recorder(torch.optim.SGD):
  """SGD that keeps the gradients which it was given, [d] each."""

  def __init__(self, params):
    super().__init__(params, lr=0.1)
    self.releases = []

  def step(self, closure=None):
    gradients = [p.grad.numpy().ravel() for p in self.param_groups[0]['params']]
    self.releases.append(np.concatenate(gradients))
    return super().step(closure)


class Training:
  """DP-SGD as Opacus's documentation has it, 25 steps in an epoch."""

  def __init__(
    self,
    noise_multiplier=0.5,
    signal=0.0,
    engine=PrivacyEngine,
    network=Network,
    **options,
  ):
    torch.manual_seed(1)
    dataset = torch.utils.data.TensorDataset(
      torch.randn(EXAMPLES, FEATURES), torch.arange(EXAMPLES) % CLASSES
    )
    model = network(signal)
    options = {'max_grad_norm': 1.0, **options}
    reduction = options.get('loss_reduction', 'mean')
    self.engine = engine()
    made = self.engine.make_private(
      module=model,
      optimizer=Recorder(model.parameters()),
      criterion=nn.CrossEntropyLoss(reduction=reduction),
      data_loader=torch.utils.data.DataLoader(dataset, EXAMPLES // ROUNDS),
      noise_multiplier=noise_multiplier,
      noise_generator=torch.Generator().manual_seed(2),
      **options,
    )
    self.model, self.optimizer, *criterion, self.data = made
    self.loss = criterion[0] if criterion else nn.CrossEntropyLoss()
    self.model.train()

  @property
  def releases(self):
    return self.optimizer.original_optimizer.releases

  def run(self, data=None):
    for x, label in self.data if data is None else data:
      self.optimizer.zero_grad()
      self.loss(self.model(x), label).backward()
      self.optimizer.step()
    return self

  def run_in_physical_batches(self, size):
    with BatchMemoryManager(
      data_loader=self.data,
      max_physical_batch_size=size,
      optimizer=self.optimizer,
    ) as data:
      return self.run(data)


def make_auditor(noise_multiplier=0.5, rounds=ROUNDS, **config):
  return laws.make_auditor(
    **{'dim': DIM, 'rounds': rounds, 'noise_multiplier': noise_multiplier}
    | config
  )


def audit_with(optimizer, auditor):
  assert integration.audit(optimizer, auditor=auditor) is auditor


@pytest.mark.parametrize('noise_multiplier', laws.NOISE_MULTIPLIERS)
@pytest.mark.parametrize('mode', ['hooks', 'ghost'])
def test_what_an_optimizer_claims_is_measured(noise_multiplier, mode):
  training = Training(
    noise_multiplier, max_grad_norm=2.0, grad_sample_mode=mode
  )
  auditor = make_auditor(noise_multiplier, clip_norm=2.0)
  audit_with(training.optimizer, auditor)
  training.run()
  laws.assert_claim_is_met(auditor)
  scalars = auditor.record().rounds
  # Sums are divided by the expected batch size, with the canaries in them or not.
  np.testing.assert_allclose(scalars.canary_norm, 2.0 / 8)
  np.testing.assert_allclose(
    scalars.residual_norm, noise_multiplier / 4 * DIM**0.5, rtol=0.05
  )


@pytest.mark.parametrize('mode', ['hooks', 'ghost'])
@pytest.mark.parametrize('loss_reduction', ['mean', 'sum'])
def test_an_optimizer_and_our_own_loop_give_the_same_epsilon(
  mode, loss_reduction
):
  training = Training(
    1e-9, grad_sample_mode=mode, loss_reduction=loss_reduction
  )
  audit_with(training.optimizer, make_auditor(1e-9))
  training.run()
  laws.assert_same_as_own_loop(
    make_auditor,
    training.releases,
    divisor=8 if loss_reduction == 'mean' else 1,
  )


@pytest.mark.parametrize('mode', ['hooks', 'ghost'])
def test_canaries_enter_once_however_many_physical_batches_a_step_has(mode):
  releases = []
  for size in (2, 1000):
    training = Training(0.0, grad_sample_mode=mode)
    audit_with(training.optimizer, make_auditor(0.0))
    releases.append(training.run_in_physical_batches(size).releases)
    assert training.engine.accountant.history == [(0.0, 1 / ROUNDS, ROUNDS)]
  assert len(releases[0]) == ROUNDS
  np.testing.assert_array_equal(*releases)


def test_a_batch_without_examples_is_a_step_with_canaries():
  training = Training(1e-9)
  auditor = make_auditor(1e-9)
  audit_with(training.optimizer, auditor)
  training.run([next(iter(training.data))])
  empty = torch.zeros(0, FEATURES), torch.zeros(0, dtype=torch.long)
  training.run([empty])
  expected = auditor.injection(1).update / 8
  np.testing.assert_allclose(training.releases[1], expected, atol=1e-7)


def test_accumulated_batches_are_one_step_of_a_larger_divisor():
  training = Training(1e-9, poisson_sampling=False)
  auditor = make_auditor(1e-9)
  audit_with(training.optimizer, auditor)
  for i, (x, label) in enumerate(training.data):
    training.loss(training.model(x), label).backward()
    if i % 5 == 4:
      training.optimizer.step()
      training.optimizer.zero_grad()
  assert auditor.num_rounds_observed == 5
  # The norm of a canary in a mean over five batches of eight.
  np.testing.assert_allclose(auditor.record().rounds.canary_norm, 1 / 40)
  np.testing.assert_allclose(
    training.releases[2], auditor.injection(2).update / 40, atol=1e-7
  )


def test_the_rate_of_accumulated_batches_is_left_to_the_accountant():
  training = Training(1.0, poisson_sampling=False)
  auditor = integration.audit(
    training.optimizer, steps=5, delta=1e-5, num_observed=4, num_unobserved=4
  )
  assert auditor.config.sampling_probability == pytest.approx(1 / ROUNDS)
  for i, (x, label) in enumerate(training.data):
    training.loss(training.model(x), label).backward()
    if i % 5 == 4:
      training.optimizer.step()
      training.optimizer.zero_grad()
  assert training.engine.accountant.history == [
    (1.0, pytest.approx(5 / ROUNDS), 5)
  ]
  assert auditor.config.sampling_probability is None


@pytest.mark.parametrize('mode', ['hooks', 'ghost'])
def test_training_and_its_accountant_go_on_as_without_an_audit(mode):
  plain = Training(signal=1.0, grad_sample_mode=mode).run()
  audited = Training(signal=1.0, grad_sample_mode=mode)
  # All canaries are held out: what is left is the scoring.
  auditor = make_auditor(num_observed=1, rounds=10 * ROUNDS)
  assert not auditor.planned[:ROUNDS].any()
  audit_with(audited.optimizer, auditor)
  audited.run()
  np.testing.assert_array_equal(audited.releases, plain.releases)
  assert auditor.num_rounds_observed == ROUNDS
  assert audited.engine.accountant.history == plain.engine.accountant.history
  assert sum(steps for _, _, steps in plain.engine.accountant.history) == ROUNDS


@pytest.mark.parametrize('mode', ['hooks', 'ghost'])
def test_who_removes_all_gradients_finds_the_noise_however_large_they_are(mode):
  training = Training(0.5, signal=1.0, grad_sample_mode=mode)
  auditor = make_auditor()
  audit_with(training.optimizer, auditor)
  training.run()
  residual = auditor.evaluate().find(attackers.RESIDUAL)
  low, high = residual.first.interval
  assert low / 1.1 < residual.analytic.epsilon < 1.1 * high


def test_a_clip_norm_may_follow_a_schedule():
  training = Training(0.5)
  auditor = make_auditor(0.5)
  audit_with(training.optimizer, auditor)
  schedule = StepGradClip(training.optimizer, step_size=1, gamma=0.9)
  for batch in training.data:
    training.run([batch])
    schedule.step()
  laws.assert_claim_is_met(auditor)
  assert auditor.record().rounds.clip_norm[-1] < 0.1


def test_an_audit_with_a_schedule_of_the_clip_norm_goes_on(tmp_path):
  training = Training(0.5)
  auditor, path = make_auditor(0.5), tmp_path / 'audit.npz'
  audit_with(training.optimizer, auditor)
  schedule = StepGradClip(training.optimizer, step_size=1, gamma=0.9)
  for batch in [*training.data][:5]:
    training.run([batch])
    schedule.step()
  auditor.save(path)
  again, loaded = (
    Training(0.5, max_grad_norm=0.9**5),
    epe_jax.Auditor.load(path),
  )
  audit_with(again.optimizer, loaded)
  again.run([*again.data][:1])
  assert loaded.record().rounds.clip_norm[-1] == pytest.approx(0.9**5)


def test_a_schedule_that_ghost_clipping_does_not_follow_is_an_error():
  training = Training(0.5, grad_sample_mode='ghost')
  auditor = make_auditor(0.5)
  audit_with(training.optimizer, auditor)
  schedule = StepGradClip(training.optimizer, step_size=1, gamma=0.9)
  batches = list(training.data)
  training.run(batches[:1])
  schedule.step()
  with pytest.raises(ValueError, match=r"=0\.9 of .* was 1, .*_mode='hooks'"):
    training.run(batches[1:])
  assert auditor.num_rounds_observed == len(training.releases) == 1


def test_a_noise_multiplier_that_follows_a_schedule_is_not_what_was_claimed():
  training = Training(0.5)
  audit_with(training.optimizer, make_auditor(0.5))
  StepNoise(training.optimizer, step_size=1, gamma=0.9).step()
  with pytest.raises(ValueError, match=r'is 0\.45; set noise_multiplier=0\.45'):
    training.run()


def test_gradients_of_half_precision_hold_canaries_too():
  training = Training(1e-9)
  training.model.bfloat16()
  auditor = make_auditor(1e-9)
  audit_with(training.optimizer, auditor)
  x, label = next(iter(training.data))
  training.loss(training.model(x.bfloat16()), label).backward()
  training.optimizer.original_optimizer.step = lambda: None
  training.optimizer.step()
  own = auditor.injection(0).update
  assert own @ np.concatenate(
    [p.grad.float().numpy().ravel() for p in training.optimizer.params]
  ) == pytest.approx(own @ own / 8, rel=1e-2)


def test_a_copy_is_not_taken_for_a_buffer():
  gradients = [torch.zeros(DIM, dtype=torch.bfloat16)]
  with pytest.raises(ValueError, match=r'out\[0\] cannot be added to in place'):
    make_auditor().add_injection(0, gradients)


def test_more_steps_than_rounds_are_an_error():
  training = Training()
  audit_with(training.optimizer, make_auditor(rounds=ROUNDS - 1))
  with pytest.raises(ValueError, match=r'none of the 24 rounds.* or steps,'):
    training.run()


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    (
      {
        'clipping': 'adaptive',
        'target_unclipped_quantile': 0.5,
        'clipbound_learning_rate': 0.2,
        'max_clipbound': 10.0,
        'min_clipbound': 0.1,
        'unclipped_num_std': 1.0,
      },
      'AdaClipDPOptimizer, which splits its noise',
    ),
    (
      {'clipping': 'per_layer', 'max_grad_norm': [1.0, 1.0]},
      'DPPerLayerOptimizer, which clips layer by layer',
    ),
  ],
)
def test_an_optimizer_that_does_not_clip_flat_is_an_error(options, message):
  with pytest.raises(TypeError, match=message):
    audit_with(Training(**options).optimizer, make_auditor())


def test_ghost_clipping_to_an_adaptive_norm_is_an_error():
  training = Training(
    grad_sample_mode='ghost', engine=PrivacyEngineAdaptiveClipping
  )
  audit_with(training.optimizer, make_auditor())
  with pytest.raises(TypeError, match='criterion of the optimizer splits its'):
    training.run([(torch.ones(20, FEATURES), torch.arange(20))])


def test_an_optimizer_without_privacy_is_an_error():
  with pytest.raises(TypeError, match=r'is a SGD; give what `PrivacyEngine'):
    audit_with(torch.optim.SGD(Network(0.0).parameters()), make_auditor())


@pytest.mark.parametrize(
  ('config', 'message'),
  [
    ({'dim': 7}, r'the optimizer has 20,000 numbers, but dim=7'),
    ({'clip_norm': 3.0}, r'clip_norm=3\.0.*set clip_norm=1\.0'),
    ({'noise_multiplier': 0.7}, r'=0\.7, but.*set noise_multiplier=0\.5'),
    ({'view': 'server_update'}, "set view='aggregate'"),
  ],
)
def test_an_auditor_of_another_optimizer_is_an_error(config, message):
  with pytest.raises(ValueError, match=message):
    audit_with(Training().optimizer, make_auditor(**config))


def test_what_an_optimizer_knows_is_read_and_said():
  training = Training(0.7, max_grad_norm=2.0)
  auditor = integration.audit(training.optimizer, steps=ROUNDS, delta=1e-3)
  training.run()
  config = auditor.config
  assert (config.dim, config.rounds) == (DIM, ROUNDS)
  assert (config.clip_norm, config.noise_multiplier) == (2.0, 0.7)
  said = (
    'read from the optimizer: d = 20,000, clip norm 2, noise multiplier 0.7, '
    'sampling probability 0.04.'
  )
  assert said in laws.describe_notes(auditor)
  # As its accountant has it.
  assert config.sampling_probability == 1 / ROUNDS
  counted = re.search(r'counts sampling allows ε = (\S+)', auditor.report())
  assert float(counted[1]) == pytest.approx(
    training.engine.get_epsilon(1e-3), rel=0.02
  )


def test_what_an_optimizer_does_not_know_is_asked_for():
  optimizer = Training().optimizer
  with pytest.raises(ValueError, match=r'^steps of the audit is not known'):
    integration.audit(optimizer, delta=1e-5)
  with pytest.raises(TypeError, match='give steps'):
    integration.audit(optimizer, rounds=5, delta=1e-5)
  # None of these has changed the optimizer.
  integration.audit(optimizer, steps=5, delta=1e-5)


def test_the_model_that_is_released_is_the_one_that_is_audited():
  training = Training()
  stale = Network(signal=0)
  with pytest.raises(
    ValueError, match=r'trains layer.weight, layer.bias that.*moves parameter 0'
  ):
    integration.audit(training.optimizer, model=stale, auditor=make_auditor())
  integration.audit(
    training.optimizer, model=training.model, auditor=make_auditor()
  )
  training.run()


def test_a_parameter_that_the_model_does_not_use_is_named():
  class Unused(Network):
    def __init__(self, signal):
      super().__init__(signal)
      self.spare = nn.Linear(1, 1, bias=False)

    def forward(self, x):
      return super().forward(x) + 0 * self.spare(x[:, :1])

  training = Training(signal=1.0, network=Unused)
  auditor = integration.audit(
    training.optimizer, auditor=make_auditor(dim=DIM + 1)
  )
  with pytest.warns(UserWarning, match=r'parameter 2 \(1, 1\).*no gradient'):
    training.run()
  assert 'had no gradient in the first 10 steps' in auditor.report()


def test_an_optimizer_is_audited_once():
  training = Training()
  audit_with(training.optimizer, make_auditor())
  with pytest.raises(ValueError, match='audited already'):
    audit_with(training.optimizer, make_auditor())


def test_the_quickstart_is_audited(tmp_path):
  laws.assert_example_audits('opacus', tmp_path)
