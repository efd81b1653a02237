import pytest

pytest.importorskip('pfl', reason='pfl (pfl-research) is not installed')
pytest.importorskip('torch', reason='PyTorch is not installed')

import types

import numpy as np
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints, WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.restore_training import RestoreTrainingCallback
from pfl.context import UserContext
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from pfl.postprocessor.base import Postprocessor
from pfl.privacy.adaptive_clipping import AdaptiveClippingGaussianMechanism
from pfl.privacy.ftrl_mechanism import (
  BandedMatrixFactorizationMechanism,
  ForwardSubstitution,
)
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import (
  CentrallyAppliedPrivacyMechanism,
  NormClippingOnly,
)
from pfl.stats import MappedVectorStatistics
import torch
from torch import nn

from epe_jax import accounting
from epe_jax.audit import attackers
from epe_jax.auditor.adapters import pfl as integration
from tests.auditor.adapters import laws

pytestmark = pytest.mark.filterwarnings('ignore:To copy construct')

# Threads that wait for one another cost more than such small updates.
torch.set_num_threads(1)

ROUNDS, COHORT, DIM = 25, 40, 20_000


class Network(nn.Module):
  """A linear layer whose updates are zero, or too large for any clip norm."""

  def __init__(self, signal):
    super().__init__()
    self.layer, self.signal = nn.Linear(199, 100), signal

  def loss(self, x):
    return self.signal * self.layer(x).sum()

  def metrics(self, x):
    return {}


class Recorder(Postprocessor):
  """Keeps the sums that the server releases, [d] each, with their weights."""

  def __init__(self):
    self.releases, self.weights = [], []

  def postprocess_server(self, *, stats, **kwargs):
    release = [x.detach().numpy().ravel() for x in stats.values()]
    self.releases.append(np.concatenate(release))
    self.weights.append(stats.weight)
    return super().postprocess_server(stats=stats, **kwargs)


def train(
  postprocessors,
  *,
  rounds=ROUNDS,
  cohort=COHORT,
  signal=0.0,
  saved=None,
):
  """Federated averaging as pfl's documentation has it; returns what it released."""
  np.random.seed(3)
  torch.manual_seed(3)
  network, recorder = Network(signal), Recorder()
  optimizer = torch.optim.SGD(network.parameters(), 1.0)
  model = PyTorchModel(network, torch.optim.SGD, optimizer)
  # User i has i mod 3 + 1 data points.
  data = FederatedDataset(
    lambda i: PyTorchTensorDataset([torch.ones(i % 3 + 1, 199)], str(i)),
    MinimizeReuseUserSampler(list(range(100))),
  )
  algorithm = FederatedAveraging()
  callbacks = []
  if saved is not None:
    folder, canaries = saved
    saveables = [model, algorithm, canaries]
    callbacks.append(RestoreTrainingCallback(saveables, str(folder)))
  algorithm.run(
    NNAlgorithmParams(
      central_num_iterations=rounds,
      evaluation_frequency=10,
      train_cohort_size=cohort,
      val_cohort_size=2,
    ),
    SimulatedBackend(data, data, postprocessors=[recorder, *postprocessors]),
    model,
    NNTrainHyperParams(
      local_num_epochs=1, local_learning_rate=1.0, local_batch_size=None
    ),
    callbacks=callbacks,
    send_metrics_to_platform=False,
  )
  return recorder


def central(noise_multiplier, clip_norm=1.0):
  return CentrallyAppliedPrivacyMechanism(
    GaussianMechanism(clip_norm, noise_multiplier)
  )


def adaptive(initial):
  return AdaptiveClippingGaussianMechanism(
    make_gaussian_mechanism=lambda bound: GaussianMechanism(bound, 0.5),
    initial_clipping_bound=initial,
    clipping_indicator_noise_stddev=50.0,
    adaptive_clipping_norm_quantile=0.5,
  )


def make_auditor(noise_multiplier=0.5, rounds=ROUNDS, **config):
  return laws.make_auditor(
    dim=DIM, rounds=rounds, noise_multiplier=noise_multiplier, **config
  )


def audit_with(auditor, *postprocessors):
  """The postprocessors of a backend, canaries first."""
  audited = list(postprocessors)
  canaries = integration.audit(audited, auditor=auditor)
  assert audited == [canaries, *postprocessors]
  return audited


@pytest.mark.parametrize('noise_multiplier', laws.NOISE_MULTIPLIERS)
def test_what_a_central_mechanism_claims_is_measured(noise_multiplier):
  auditor = make_auditor(noise_multiplier, clip_norm=2.0)
  train(audit_with(auditor, central(noise_multiplier, 2.0)))
  laws.assert_claim_is_met(auditor)


@pytest.mark.parametrize('noise_multiplier', laws.NOISE_MULTIPLIERS)
def test_what_local_mechanisms_claim_is_measured_in_their_sum(noise_multiplier):
  auditor = make_auditor(noise_multiplier)
  local = GaussianMechanism(1.0, noise_multiplier / COHORT**0.5)
  train(audit_with(auditor, local))
  laws.assert_claim_is_met(auditor)


@pytest.mark.parametrize('is_meant', [False, True])
def test_correlated_noise_leaks_what_all_rounds_together_show(
  is_meant, tmp_path, monkeypatch
):
  # The mechanism writes its matrix into the current folder.
  monkeypatch.chdir(tmp_path)
  accountant = types.SimpleNamespace(cohort_noise_parameter=1.0)
  mechanism = BandedMatrixFactorizationMechanism(
    1.0, 12, 4, lambda participations: accountant
  )
  if is_meant:
    gram = mechanism.query_matrix @ mechanism.query_matrix.T
    mechanism._C = np.flip(np.linalg.cholesky(np.flip(gram)).T).copy()
    mechanism._C_inv_noise = ForwardSubstitution(mechanism._C, 3)
  postprocessors = [CentrallyAppliedPrivacyMechanism(mechanism)]
  with pytest.raises(ValueError, match=r'rounds=9, .* of the mechanism is 12'):
    integration.audit(postprocessors, rounds=9, delta=laws.DELTA)
  independent = make_auditor(1.0, rounds=12)
  with pytest.raises(ValueError, match=r'strategy=None.* is a matrix .12, 12.'):
    integration.audit(postprocessors, auditor=independent)
  canaries = integration.audit(
    postprocessors, delta=laws.DELTA, num_observed=90, seed=0
  )
  train(postprocessors, rounds=12, cohort=95, signal=1.0)
  auditor = canaries.auditor
  config = auditor.config
  assert (config.rounds, config.min_separation, config.repetitions) == (
    12,
    4,
    3,
  )
  laws.assert_claim_is_met(auditor, attackers.DECORRELATED)
  combined, alone = (
    laws.evaluate_own_round(auditor, x)
    for x in (attackers.DECORRELATED, attackers.RESIDUAL)
  )
  assert combined.analytic is not None
  assert alone.first.epsilon < 0.9 * combined.analytic.epsilon
  # Three participations of z = 1 are claimed, which is μ = √3.
  claimed = accounting.epsilon_of_releases(1.0, delta=1e-3, participations=3)
  is_above = combined.analytic.epsilon > 1.05 * claimed.epsilon
  says_so = 'is for a sensitivity of 1.73 clip norms' in auditor.report()
  assert is_above == says_so == (not is_meant)


def test_a_mechanism_and_our_own_loop_give_the_same_epsilon():
  audited = audit_with(make_auditor(1e-9), central(1e-9))
  releases = train(audited).releases
  laws.assert_same_as_own_loop(make_auditor, releases, divisor=1.0)


@pytest.mark.parametrize('weighting', [WeightByUser, WeightByDatapoints])
def test_a_canary_weighs_and_is_clipped_as_its_user(weighting):
  auditor = make_auditor(1e-9)
  recorder = train(audit_with(auditor, weighting(), central(1e-9)), rounds=3)
  # The sum of canaries is that of clipped ones, whatever their users weigh.
  np.testing.assert_allclose(
    recorder.releases[2], auditor.injection(2).update, atol=1e-6
  )
  users = np.arange(2 * COHORT, 3 * COHORT) % 100
  weighs = users % 3 + 1 if weighting is WeightByDatapoints else 1
  assert recorder.weights[2] == np.sum(weighs + 0 * users)


def test_a_weight_behind_the_mechanism_is_found_out():
  auditor = make_auditor(1.0)
  train(audit_with(auditor, central(1.0), WeightByDatapoints()))
  attack = laws.evaluate_own_round(auditor)
  assert attack.bounds[0].epsilon > attack.analytic.epsilon


def test_other_users_are_clipped_and_summed_as_without_an_audit():
  auditor = make_auditor(1e-9)
  recorder = train(audit_with(auditor, central(1e-9)), rounds=1, signal=1.0)
  alone = train([central(1e-9)], rounds=1, signal=1.0)
  injection = auditor.injection(0)
  assert 5 < injection.count < COHORT
  np.testing.assert_allclose(
    recorder.releases[0] - injection.update,
    alone.releases[0] * (COHORT - injection.count) / COHORT,
    atol=1e-5,
  )
  assert np.linalg.norm(alone.releases[0]) == pytest.approx(COHORT, rel=1e-5)


def test_a_clip_norm_may_adapt():
  mechanism = adaptive(2.0)
  auditor = make_auditor(0.5, clip_norm=2.0)
  train(audit_with(auditor, mechanism))
  clip_norms = auditor.record().rounds.clip_norm
  assert clip_norms[0] == 2.0
  assert len(set(clip_norms)) == ROUNDS
  assert clip_norms[-1] != mechanism.mutable_clipping_bound.value()
  laws.assert_claim_is_met(auditor)


def test_an_audit_goes_on_with_its_checkpoint(tmp_path):
  # An algorithm of pfl makes the last round before a checkpoint again.
  for rounds, made in ((10, 10), (ROUNDS - 1, ROUNDS)):
    postprocessors = audit_with(make_auditor(), central(0.5))
    canaries = postprocessors[0]
    train(postprocessors, rounds=rounds, saved=(tmp_path, canaries))
    assert canaries.auditor.num_rounds_observed == made
  laws.assert_claim_is_met(canaries.auditor)


def test_statistics_of_numpy_hold_canaries_too():
  auditor = make_auditor()
  (canaries,) = audit_with(auditor)
  zeros = {'w': np.zeros((199, 100), np.float32), 'b': np.zeros(100)}
  context = UserContext(num_datapoints=1, seed=None)
  first, _ = canaries.postprocess_one_user(
    stats=MappedVectorStatistics(zeros, weight=3.0), user_context=context
  )
  assert first.weight == 3.0
  assert isinstance(first['w'], np.ndarray)
  norms = [np.linalg.norm(first[key].astype(float)) for key in ('w', 'b')]
  assert np.hypot(*norms) == pytest.approx(1, abs=1e-6)


def test_more_canaries_than_users_are_an_error():
  audited = audit_with(make_auditor(), central(0.5))
  with pytest.raises(
    ValueError, match=r'canaries, but its cohort only 4 users'
  ):
    train(audited, cohort=4)


def test_more_iterations_than_rounds_are_an_error():
  auditor = make_auditor(num_observed=20, rounds=2)
  with pytest.raises(ValueError, match='round 2 is none of the 2 rounds'):
    train(audit_with(auditor, central(0.5)))


@pytest.mark.parametrize(
  'mechanism', [central(0.5), NormClippingOnly(2.0, 1.0)]
)
def test_canaries_behind_a_mechanism_are_an_error(mechanism):
  with pytest.raises(ValueError, match=r'give postprocessors=\[canaries, '):
    train([mechanism, *audit_with(make_auditor())])


def test_a_model_of_another_size_is_an_error():
  auditor = laws.make_auditor(dim=7, rounds=ROUNDS, noise_multiplier=0.5)
  with pytest.raises(ValueError, match='has 20,000 numbers, but dim=7'):
    train(audit_with(auditor, central(0.5)))


def test_an_auditor_of_model_changes_is_an_error():
  with pytest.raises(ValueError, match="set 'aggregate'"):
    audit_with(make_auditor(view='server_update'))


def test_what_a_mechanism_knows_is_read_and_said():
  postprocessors = [WeightByUser(), central(0.7, 2.0)]
  canaries = integration.audit(postprocessors, rounds=ROUNDS, delta=1e-3)
  assert postprocessors[0] is canaries
  train(postprocessors)
  config = canaries.auditor.config
  assert (config.clip_norm, config.noise_multiplier) == (2.0, 0.7)
  assert (config.dim, config.rounds) == (DIM, ROUNDS)
  text = laws.describe_notes(canaries.auditor)
  assert 'read from the mechanism: clip norm 2, noise multiplier 0.7.' in text
  assert 'read from the first statistics: d = 20,000.' in text


def test_what_nothing_knows_is_asked_for():
  with pytest.raises(ValueError, match=r'^rounds of the audit is not known'):
    integration.audit([central(0.5)], delta=1e-5)
  local = [GaussianMechanism(1.0, 0.1)]
  with pytest.raises(ValueError, match=r'^clip_norm of the audit is not known'):
    integration.audit(local, rounds=5, delta=1e-5)


@pytest.mark.parametrize(
  ('mechanism', 'message'),
  [
    (central(0.4), r'noise_multiplier=0\.5, but that of the mechanism is 0\.4'),
    (central(0.5, 2.0), r'clip_norm=1\.0, but that of the mechanism is 2\.0'),
    (adaptive(2.0), r'clip_norm=1\.0, but that of the mechanism is 2\.0'),
    (GaussianMechanism(2.0, 0.5), r'clip_norm=1\.0, but that of the mechanism'),
    (GaussianMechanism(1.0, 0.05), r'sum of 40 local mechanisms is 0\.316'),
  ],
)
def test_a_mechanism_that_is_not_what_the_auditor_was_told_is_an_error(
  mechanism, message
):
  with pytest.raises(ValueError, match=message):
    train(audit_with(make_auditor(), mechanism), rounds=1)
  # Another one than `audit` saw, as that of a checkpoint may be.
  audited = audit_with(make_auditor())
  audited.append(mechanism)
  with pytest.raises(ValueError, match=message):
    train(audited, rounds=1)


def test_several_processes_are_an_error(monkeypatch):
  from pfl.internal.ops import pytorch_ops

  (canaries,) = audit_with(make_auditor())
  monkeypatch.setattr(pytorch_ops.distributed, '_world_size', 2)
  with pytest.raises(NotImplementedError, match='several processes would'):
    canaries.postprocess_one_user(
      stats=MappedVectorStatistics({}),
      user_context=UserContext(num_datapoints=1, seed=None),
    )


def test_the_quickstart_is_audited(tmp_path):
  laws.assert_example_audits('pfl', tmp_path)
