"""DP fine-tuning of a language model with LoRA and Opacus, audited.

  python examples/frameworks/dp_lora_gpt2.py

The statements marked `# +` are the audit. A small GPT-2, of a configuration, learns
in public to count up by one; adapters of rank 8 then learn from private sequences,
which count up by three. Canaries are in the adapters' gradients: 1,000 of 2,000, each
in one of 100 steps.
"""

import argparse
import pathlib
import warnings

from opacus import PrivacyEngine
import peft
import torch
from torch import nn
import transformers

from epe_jax.auditor.adapters import opacus  # +

EXAMPLES, BATCH, EPOCHS, WORDS, LENGTH = 2000, 80, 4, 32, 8
STEPS = EPOCHS * EXAMPLES // BATCH


def make_sequences(num: int, by: int) -> torch.Tensor:
  return (torch.randint(WORDS, (num, 1)) + by * torch.arange(LENGTH)) % WORDS


def compute_loss(model: nn.Module, words: torch.Tensor) -> torch.Tensor:
  logits = model(input_ids=words).logits[:, :-1]
  return nn.functional.cross_entropy(logits.transpose(1, 2), words[:, 1:])


def pretrain(model: nn.Module) -> None:
  optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
  for _ in range(100):
    optimizer.zero_grad()
    compute_loss(model, make_sequences(BATCH, by=1)).backward()
    optimizer.step()


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument(
    '--out', type=pathlib.Path, help='where the audit is kept'
  )
  out = parser.parse_args().out

  torch.manual_seed(0)
  torch.set_num_threads(1)
  warnings.filterwarnings(
    'ignore', 'Secure RNG|Full backward hook|`is_gradient_checkpointing`'
  )
  config = transformers.GPT2Config(
    vocab_size=WORDS,
    n_positions=LENGTH,
    n_embd=64,
    n_layer=1,
    n_head=4,
    bos_token_id=0,
    eos_token_id=0,
  )
  model = transformers.GPT2LMHeadModel(config)
  pretrain(model)
  # The device first, then the adapters, then the optimizer, then `make_private`.
  adapters = peft.LoraConfig(
    r=8, target_modules=['c_attn', 'c_fc', 'c_proj'], fan_in_fan_out=True
  )
  model = peft.get_peft_model(model, adapters).train()
  trained = [p for p in model.parameters() if p.requires_grad]
  data_loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(make_sequences(EXAMPLES, by=3)), BATCH
  )
  private, optimizer, data_loader = PrivacyEngine().make_private(
    module=model,
    optimizer=torch.optim.Adam(trained, lr=1e-2),
    data_loader=data_loader,
    noise_multiplier=0.6,
    max_grad_norm=1.0,
  )
  auditor = opacus.audit(optimizer, model=model, steps=STEPS, delta=1e-5)  # +

  new = make_sequences(1000, by=3)
  # Without `no_grad` Opacus waits for gradients of this batch.
  with torch.no_grad():
    first = compute_loss(model, new)
  for _ in range(EPOCHS):
    for (words,) in data_loader:
      optimizer.zero_grad()
      compute_loss(private, words).backward()
      optimizer.step()
  with torch.no_grad():
    last = compute_loss(model, new)

  print(f'loss on new data {first:.2f} before, {last:.2f} after\n')
  print(auditor.report())  # +
  if out is not None:
    auditor.save(out / 'dp_lora.npz')


if __name__ == '__main__':
  main()
