"""Laws that the audit of any framework obeys, and that its tests check.

In a loop without a learning signal, whose clients send zeros, a release is the
canaries of the round and the privacy noise. So what is measured is known.
"""

from collections.abc import Callable, Sequence
import pathlib
import subprocess
import sys

import numpy as np

import epe_jax
from epe_jax import audit
from epe_jax.audit import attackers, results
from epe_jax.report import checks

DELTA = 1e-3
NOISE_MULTIPLIERS = (0.3, 0.5, 1.0)
EXAMPLES = pathlib.Path(__file__).parents[3] / 'examples' / 'frameworks'


def make_auditor(
  *,
  dim: int,
  rounds: int,
  noise_multiplier: float,
  clip_norm: float = 1.0,
  **config,
) -> epe_jax.Auditor:
  """An auditor with 500 + 500 canaries of a fixed seed."""
  return epe_jax.Auditor(
    epe_jax.AuditConfig(
      dim=dim,
      rounds=rounds,
      clip_norm=clip_norm,
      noise_multiplier=noise_multiplier,
      delta=DELTA,
      **{'num_observed': 500, 'num_unobserved': 500, **config},
    ),
    seed=0,
  )


def evaluate_own_round(
  auditor: epe_jax.Auditor, attacker: audit.ThreatModel = attackers.OWN
) -> results.AttackResult:
  """What an attacker finds who knows the round of each canary, without floors."""
  attacks = audit.evaluate(
    auditor.record(), threat_models=[attacker], floors=False
  )
  attack = attacks.find(attacker)
  assert attack is not None
  return attack


def describe_notes(auditor: epe_jax.Auditor) -> str:
  """What a report says of settings and clients."""
  return ' '.join(f'{checks.describe_check(x)}.' for x in auditor.notes)


def assert_claim_is_met(
  auditor: epe_jax.Auditor, attacker: audit.ThreatModel = attackers.OWN
) -> None:
  """The own-round ε is the analytic ε of the claim, within 3 standard errors.

  Of a Gaussian test of 3 standard errors one in 370 fails by chance; noise is of
  fixed seeds wherever the framework has seeds.
  """
  attack = evaluate_own_round(auditor, attacker)
  assert attack.analytic is not None
  estimate, claimed = attack.first, attack.analytic.epsilon
  assert estimate.interval is not None, 'own-round estimates have one'
  error = (estimate.interval[1] - estimate.interval[0]) / (2 * 1.645)
  assert abs(estimate.epsilon - claimed) < 3 * error, (
    f'{estimate.epsilon:.3f} ± {error:.3f} measured, {claimed:.3f} claimed'
  )


def assert_same_as_own_loop(
  make: Callable[[], epe_jax.Auditor],
  releases: Sequence[np.ndarray],
  *,
  divisor: float,
) -> None:
  """What a framework releases without noise gives the ε of our own loop, to 1e-3.

  Args:
    make: makes an auditor of a fixed seed and a noise multiplier.
    releases: what each round of the framework released with next to no noise and
      updates of zeros, [d] each, with the canaries of such an auditor in it.
    divisor: what the sum of the updates was divided by.
  """
  config, epsilons = make().config, []
  assert config.noise_multiplier is not None
  noise_std = config.noise_multiplier * config.clip_norm / divisor
  for is_own in (False, True):
    auditor, rng = make(), np.random.default_rng(5)
    for t, release in enumerate(releases):
      own = auditor.injection(t).update / divisor
      noise = noise_std * rng.normal(size=config.dim)
      put_in = own if is_own else np.asarray(release)
      auditor.observe(t, put_in + noise, divisor=divisor)
    epsilons.append(float(evaluate_own_round(auditor).first.epsilon))
  assert epsilons[1] > 0.1
  assert abs(epsilons[0] - epsilons[1]) < 1e-3, epsilons


def assert_example_audits(name: str, folder: pathlib.Path) -> str:
  """An example of examples/frameworks runs and audits every round of its own.

  Its canaries are secret, so of another seed each time: a bound of 95 % confidence
  may exceed the analytic ε once in twenty, but hardly by a fifth.

  Returns:
    What it prints.
  """
  (path,) = EXAMPLES.glob(f'{name}_*.py')
  command = [sys.executable, str(path), f'--out={folder}']
  done = subprocess.run(
    command, capture_output=True, text=True, timeout=300, check=False
  )
  assert done.returncode == 0, done.stderr[-3000:]
  auditor = epe_jax.Auditor.load(folder / f'{name}.npz')
  assert auditor.num_rounds_observed == auditor.config.rounds
  assert (
    f'{auditor.config.rounds} of {auditor.config.rounds} rounds' in done.stdout
  )
  attack = evaluate_own_round(auditor)
  assert attack.analytic is not None
  claimed = attack.analytic.epsilon
  assert 0.7 * claimed < attack.first.epsilon < 1.3 * claimed
  return done.stdout
