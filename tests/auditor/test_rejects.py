"""A loop may ask after each round whether its claim still stands, and stop."""

import pathlib
import re

import numpy as np
import pytest

import epe_jax

PAGE = pathlib.Path(__file__).parents[2] / 'docs' / 'estimates.md'
# ε = 8.00 at δ = 1e-5.
DIM, ROUNDS, CLAIMED = 2_000, 10, 0.6


def train(seed, *, noise_multiplier=CLAIMED, **config):
  """The rounds that a loop makes which stops when its claim is rejected."""
  rng = np.random.default_rng([1, seed])
  settings = {'num_observed': 100, 'num_unobserved': 100, **config}
  auditor = epe_jax.Auditor(
    epe_jax.AuditConfig(
      dim=DIM,
      rounds=ROUNDS,
      clip_norm=1.0,
      noise_multiplier=CLAIMED,
      delta=1e-5,
      **settings,
    ),
    seed=seed,
  )
  for t in range(ROUNDS):
    noise = noise_multiplier * rng.normal(size=DIM)
    auditor.observe(t, auditor.injection(t).update + noise, divisor=1)
    if auditor.rejects(8.01):
      break
  return auditor.num_rounds_observed


def test_too_little_noise_stops_a_loop_early():
  assert all(train(seed, noise_multiplier=0.3) < 5 for seed in range(3))


def test_a_true_claim_is_hardly_ever_rejected_however_often_one_asks():
  # Of 12 runs, 5 % each, 5 or more with a chance of 2e-4.
  assert sum(train(seed) < ROUNDS for seed in range(12)) <= 4


def test_a_round_without_canaries_tells_nothing():
  assert train(0, num_observed=2, num_unobserved=2) == ROUNDS


@pytest.mark.parametrize(
  'config',
  [{'repetitions': 2}, {'strategy': np.eye(ROUNDS)}],
  ids=['repetitions', 'strategy'],
)
def test_canaries_that_each_look_scores_anew_are_refused(config):
  with pytest.raises(ValueError, match='repetitions=1 and strategy=None'):
    train(0, **config)


def test_the_lines_of_the_page_stop_a_loop():
  (code,) = [
    x
    for x in re.findall(r'```py\n(.*?)```', PAGE.read_text('utf-8'), re.S)
    if 'rejects' in x
  ]
  assert len(code.splitlines()) == 3
  answers, asked = iter([False, True, False]), []

  class Auditor:
    def rejects(self, epsilon):
      asked.append(epsilon)
      return next(answers)

    def observe(self, t, release, *, divisor):
      asked.append(t)

  lines = ''.join(f'  {x}\n' for x in code.splitlines())
  exec(
    f'for t in range(3):\n{lines}',
    {'auditor': Auditor(), 'release': None, 'count': 1},
  )
  assert asked == [0, 8.0, 1, 8.0]
