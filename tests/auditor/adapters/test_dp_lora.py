"""Adapters that train look healthy when they do not: meta-pytorch/opacus issue 820."""

import copy
import re

import pytest

pytest.importorskip('peft', reason='peft is not installed')

from opacus import PrivacyEngine
import peft
import torch
from torch import nn
import transformers

from epe_jax.auditor.adapters import opacus
from tests.auditor.adapters import laws

pytestmark = [
  pytest.mark.filterwarnings('ignore:Secure RNG'),
  pytest.mark.filterwarnings('ignore:Full backward hook'),
]

torch.set_num_threads(1)

WORDS, LENGTH, EXAMPLES, BATCH = 32, 8, 32, 8
ADAPTERS = {'r': 2, 'target_modules': ['c_attn'], 'fan_in_fan_out': True}
NAMED = r'trains \S*lora_A\.default\.weight, \S*lora_B\.default\.weight that'


def make_base():
  config = transformers.GPT2Config(
    vocab_size=WORDS,
    n_positions=LENGTH,
    n_embd=16,
    n_layer=1,
    n_head=2,
    bos_token_id=0,
    eos_token_id=0,
  )
  return transformers.GPT2LMHeadModel(config)


def add_adapters(base, **options):
  return peft.get_peft_model(base, peft.LoraConfig(**ADAPTERS, **options))


def find_trained(model):
  return [p for p in model.parameters() if p.requires_grad]


def copy_adapters(model):
  return {
    name: p.detach().clone()
    for name, p in model.named_parameters()
    if 'lora_' in name
  }


class Training:
  """DP-SGD of what `trained` has, of a model with adapters."""

  def __init__(self, model, trained):
    self.engine = PrivacyEngine()
    words = torch.randint(WORDS, (EXAMPLES, LENGTH))
    self.private, self.optimizer, self.data = self.engine.make_private(
      module=model.train(),
      optimizer=torch.optim.SGD(trained, lr=0.5),
      data_loader=torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(words), BATCH
      ),
      noise_multiplier=1.0,
      max_grad_norm=1.0,
    )

  def audit(self, model):
    return opacus.audit(
      self.optimizer,
      model=model,
      steps=EXAMPLES // BATCH,
      delta=1e-5,
      num_observed=4,
      num_unobserved=4,
    )

  def run(self):
    for (words,) in self.data:
      self.private.zero_grad()
      self.optimizer.zero_grad()
      logits = self.private(input_ids=words).logits[:, :-1]
      loss = nn.functional.cross_entropy(logits.transpose(1, 2), words[:, 1:])
      loss.backward()
      self.optimizer.step()


@pytest.fixture(autouse=True)
def fixed_seed():
  torch.manual_seed(0)


def test_adapters_are_audited_and_move():
  model = add_adapters(make_base())
  training = Training(model, find_trained(model))
  auditor, before = training.audit(model), copy_adapters(model)
  training.run()
  assert auditor.config.dim == 2 * (16 + 48)
  assert auditor.num_rounds_observed == EXAMPLES // BATCH
  assert all(
    (x != before[name]).any() for name, x in copy_adapters(model).items()
  )


def make_optimizer_before_adapters():
  """PEFT leaves biases to train, so that Opacus finds parameters that it knows."""
  base = make_base()
  biases = [*base.parameters()]
  model = add_adapters(base, bias='all')
  return Training(model, biases), model


def test_an_optimizer_of_frozen_parameters_is_an_error():
  base = make_base()
  frozen = [*base.parameters()]
  training = Training(add_adapters(base), frozen)
  training.run()  # Without an error of Opacus.
  with pytest.raises(ValueError, match=r'all parameters .* are frozen'):
    training.audit(None)


def release_a_copy():
  """The model that is saved was copied, as to a device, before it was trained."""
  model = add_adapters(make_base())
  released = copy.deepcopy(model)
  return Training(model, find_trained(model)), released


@pytest.mark.parametrize(
  'make', [make_optimizer_before_adapters, release_a_copy]
)
def test_adapters_that_never_move_are_named_before_the_first_step(make):
  training, model = make()
  before = copy_adapters(model)
  training.run()
  # Opacus trains, and counts ε, without an error; the adapters stay where they were.
  assert training.engine.get_epsilon(1e-5) > 1
  assert all(
    (x == before[name]).all() for name, x in copy_adapters(model).items()
  )
  with pytest.raises(ValueError, match=NAMED):
    training.audit(model)


def materialize(model):
  model.to_empty(device='cpu')
  model.load_state_dict(add_adapters(make_base()).state_dict())


def test_adapters_that_are_materialized_after_make_private_are_named():
  with torch.device('meta'):
    model = add_adapters(make_base())
  training = Training(model, find_trained(model))
  materialize(model)
  with pytest.raises(ValueError, match=NAMED):
    training.audit(model)
  # What Opacus says of them, at the first batch.
  with pytest.raises(AttributeError, match='_forward_counter'):
    training.run()


def test_what_is_unfrozen_while_it_trains_is_named():
  model = add_adapters(make_base())
  training = Training(model, find_trained(model))
  bias = model.base_model.model.transformer.ln_f.bias
  training.audit(model)
  bias.requires_grad_()
  with pytest.raises(
    ValueError, match=r'trains \S*ln_f\.bias that .* moves nothing that'
  ):
    training.run()

  # Opacus goes on without it.
  model = add_adapters(make_base())
  training = Training(model, find_trained(model))
  model.base_model.model.transformer.ln_f.bias.requires_grad_()
  training.run()


@pytest.mark.parametrize(
  ('rate', 'message'),
  [
    (
      0.5,
      r'lora_A\.default\.weight, \S+ moved before step 1 by something else',
    ),
    (0.0, r'no parameter of the optimizer moved in the first 3 steps'),
  ],
)
def test_what_other_optimizers_move_is_named_and_what_nobody_moves(
  rate, message, monkeypatch
):
  monkeypatch.setattr(opacus, '_STEPS_TO_USE', 3)
  model = add_adapters(make_base())
  training = Training(model, find_trained(model))
  auditor = training.audit(model)
  other = torch.optim.SGD(find_trained(model), lr=0.1)
  if rate:
    step = training.optimizer.step
    monkeypatch.setattr(
      training.optimizer, 'step', lambda: (other.step(), step())
    )
  else:
    training.optimizer.param_groups[0]['lr'] = 0.0
  with pytest.warns(UserWarning, match=message):
    training.run()
  assert re.search(message, ' '.join(auditor.report().split()))


def test_an_evaluation_with_gradients_is_one_that_opacus_waits_for():
  model = add_adapters(make_base())
  training = Training(model, find_trained(model))
  training.private(input_ids=torch.zeros(1, LENGTH, dtype=torch.long))
  with pytest.raises(
    ValueError, match='Per sample gradient is not initialized'
  ):
    training.run()


def test_the_example_is_audited_and_learns(tmp_path):
  printed = laws.assert_example_audits('dp_lora', tmp_path)
  first, last = map(float, re.findall(r'([\d.]+) (?:before|after)', printed))
  assert last < 1 < first
