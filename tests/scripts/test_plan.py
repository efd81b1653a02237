"""`epe-jax plan`: what an audit will tell, from flags."""

import json

import pytest

from tests.in_process import run_command

SIZES = (
  '--dim=20000',
  '--rounds=50',
  '--clients_per_round=20',
  '--noise_multiplier=0.7',
  '--delta=1e-5',
  '--observed=100',
  '--unobserved=100',
)


def test_a_plan_is_printed_with_its_warnings():
  done = run_command('plan', *SIZES)
  assert done.returncode == 0
  assert 'worst case' in done.stdout
  assert 'with 100 canaries and 100 held out, the estimate is' in done.stdout


def test_a_plan_is_json():
  plan = json.loads(run_command('plan', *SIZES, '--format=json').stdout)
  assert plan['run']['num_observed'] == 100
  assert {p['key'] for p in plan['predictions']} >= {'maximum', 'residual'}
  assert plan['assumes']


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (SIZES[1:3], '--dim, --noise_multiplier, --delta must be given'),
    (
      (*SIZES, '--repetitions=60'),
      'error: --repetitions=60; give an integer in [1, 50]',
    ),
    ((*SIZES, 'x'), "there is no argument 'x'"),
    ((*SIZES, '--jobs=2'), 'jobs'),
  ],
)
def test_wrong_flags_are_refused(arguments, message):
  done = run_command('plan', *arguments)
  assert done.returncode == 2
  assert message in done.stdout + done.stderr
