"""Runs with secure aggregation: their ε, their audit, and what does not go with it."""

import numpy as np
import pytest

from epe_jax import accounting, audit
from epe_jax.audit import evaluation
from epe_jax.audit.attackers import RESIDUAL
from epe_jax.experiment import audited_run
from epe_jax.experiment.setup import analytic, build
from epe_jax.experiment.setup import config as config_lib
from epe_jax.report import checks
from tests.helpers import load_config

pytestmark = pytest.mark.usefixtures('quick_compilation')


def _load(**changes):
  config = load_config(
    'digits',
    **{
      'rounds': 12,
      'clipping.kind': 'fixed',
      'secure_aggregation.bits': 16,
      **changes,
    },
  )
  return config_lib.check_config(config)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'noise_multiplier': 0.0}, 'noise_multiplier=0.0: .* give more than 0'),
    ({'clipping.kind': 'adaptive'}, "give clipping.kind='fixed'"),
    ({'noise.correlation': 'tree'}, "give noise.correlation='independent'"),
    ({'simulation': False}, 'secure_aggregation.bits=None, or simulation=True'),
    ({'audit.claim': 3.0}, 'leave it out'),
  ],
)
def test_what_does_not_go_with_secure_aggregation_is_refused(changes, message):
  config = _load(**changes)
  with pytest.raises(ValueError, match=rf'bits=16 with .*{message}'):
    config_lib.check_conflicts(config)


@pytest.mark.usefixtures('small_task')
@pytest.mark.parametrize('noise', ['skellam', 'discrete_gaussian'])
def test_a_run_states_the_epsilon_of_its_integers(noise):
  config = _load(**{'secure_aggregation.noise': noise, 'noise_multiplier': 2.0})
  setup = build.build(config)
  assert setup.aggregation is not None
  ring = setup.aggregation.ring
  assert (ring.shares > 0) == (noise == 'discrete_gaussian')
  assert ring.std * setup.aggregation.granularity == pytest.approx(
    config.noise_multiplier
  )
  stated = analytic.analyze_privacy(config, setup)
  rounds = setup.participants.max_rounds
  assert stated.clients == accounting.epsilon_of_ring(
    ring, delta=setup.delta, rounds=rounds
  )
  gaussian = accounting.epsilon_of_releases(
    config.noise_multiplier, delta=setup.delta, participations=rounds
  )
  assert gaussian.epsilon < stated.clients.epsilon < 1.2 * gaussian.epsilon
  # The grid follows from the config, and not from who was drawn.
  other = build.build(config_lib.replace_fields(config, seed=1))
  assert other.aggregation == setup.aggregation


@pytest.mark.integration
@pytest.mark.usefixtures('small_task', 'no_floors')
@pytest.mark.parametrize(('bits', 'granularity'), [(16, None), (6, 1 / 20)])
def test_an_audit_says_whether_coordinates_went_round(
  bits, granularity, tmp_path
):
  config = _load(
    **{
      'secure_aggregation.bits': bits,
      'secure_aggregation.granularity': granularity,
    }
  )
  result = audited_run.run(config, tmp_path / 'run')
  record = audit.load_record(tmp_path / 'run/private/scores.npz')
  assert record.ring is not None
  assert (record.ring.wrapped > 0) == (bits == 6)
  (attack,) = evaluation.evaluate(
    record, threat_models=[RESIDUAL], floors=False
  ).attacks
  limit = accounting.epsilon_of_ring(record.ring, delta=record.delta)
  assert attack.analytic == limit
  assert result.analytic_epsilon == limit.epsilon
  said = [checks.describe_check(note) for note in attack.notes]
  is_said = any('wrapped around the ring' in text for text in said)
  assert is_said == (bits == 6)
  keys = [attack.threat_model.key for attack in result.audit.attacks]
  assert {'final', 'own_round', 'residual'} <= {*keys}
  # A grid this coarse is another mechanism than the continuous one.
  ratio = np.sqrt(np.mean(record.rounds.residual_norm**2) / record.dim)
  ratio /= record.rounds.noise_std[0]
  assert (ratio == pytest.approx(1, abs=0.02)) == (bits == 16)
