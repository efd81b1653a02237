import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip(
  'nvflare', reason='NVFlare is not installed: make test-frameworks'
)

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.aggregators.intime_accumulate_model_aggregator import (
  InTimeAccumulateWeightedAggregator,
)
from nvflare.app_common.app_constant import AppConstants

import epe_jax
from epe_jax.auditor.adapters import nvflare as integration
from epe_jax.auditor.adapters.nvflare import AuditedAggregator, CanaryFilter
from tests.auditor.adapters import laws, nvflare_job

DIM, ROUNDS, SITES, CLIP_NORM = 10_000, 50, 16, 2.0


class GaussianPrivacy(DXOFilter):
  """NVFlare has no such filter: clips, and adds the share of a site in the noise."""

  def __init__(self, noise_multiplier, seed=1):
    super().__init__([DataKind.WEIGHT_DIFF], [DataKind.WEIGHT_DIFF])
    self._rng = np.random.default_rng(seed)
    self._std = noise_multiplier * CLIP_NORM / np.sqrt(SITES)

  def process_dxo(self, dxo, shareable, fl_ctx):
    norm = np.sqrt(sum(np.sum(x.astype(float) ** 2) for x in dxo.data.values()))
    scale = min(1.0, CLIP_NORM / max(norm, 1e-12))
    dxo.data = {
      name: scale * x + self._rng.normal(0, self._std, x.shape)
      for name, x in dxo.data.items()
    }
    return dxo


def make_auditor(noise_multiplier=0.5, **config):
  return laws.make_auditor(
    dim=DIM,
    rounds=ROUNDS,
    noise_multiplier=noise_multiplier,
    clip_norm=CLIP_NORM,
    **config,
  )


def make_context(t):
  context = FLContext()
  context.set_prop(AppConstants.CURRENT_ROUND, t)
  return context


def send(t, site, filters, steps=1):
  """What a site sends, from an update of zeros."""
  update = {
    'w': np.zeros((99, 100), np.float32),
    'b': np.zeros(100, np.float32),
  }
  dxo = DXO(
    DataKind.WEIGHT_DIFF, update, {MetaKey.NUM_STEPS_CURRENT_ROUND: steps}
  )
  shareable = dxo.to_shareable()
  shareable.set_header(AppConstants.CURRENT_ROUND, t)
  shareable.add_cookie(AppConstants.CONTRIBUTION_ROUND, t)
  shareable.set_peer_props({ReservedKey.IDENTITY_NAME: f'site-{site}'})
  for one in filters:
    shareable = one.process(shareable, make_context(t))
  return shareable


def make_aggregator(auditor, **options):
  inner = InTimeAccumulateWeightedAggregator(
    expected_data_kind=DataKind.WEIGHT_DIFF, **options
  )
  inner.handle_event(EventType.START_RUN, make_context(0))
  return AuditedAggregator(inner, auditor)


def run(auditor, noise_multiplier, rounds=ROUNDS, drops=lambda t, site: False):
  aggregator = make_aggregator(auditor)
  privacy, releases = GaussianPrivacy(noise_multiplier), []
  filters = [[CanaryFilter(auditor, site), privacy] for site in range(SITES)]
  for t in range(rounds):
    for site in range(SITES):
      if not drops(t, site):
        aggregator.accept(send(t, site, filters[site]), make_context(t))
    data = from_shareable(aggregator.aggregate(make_context(t))).data
    releases.append(np.concatenate([data['b'], data['w'].ravel()]))
  return releases


@pytest.mark.parametrize('noise_multiplier', laws.NOISE_MULTIPLIERS)
def test_the_noise_of_filters_is_measured(noise_multiplier):
  auditor = make_auditor(noise_multiplier)
  run(auditor, noise_multiplier)
  laws.assert_claim_is_met(auditor)


def test_filters_and_our_own_loop_give_the_same_epsilon():
  releases = run(make_auditor(), 1e-9)
  laws.assert_same_as_own_loop(make_auditor, releases, divisor=SITES)


def test_a_site_that_drops_out_leaves_its_canary_out():
  auditor = make_auditor()
  run(auditor, 0.5, drops=lambda t, site: site == 0)
  # Each of 50 rounds has lost the first of its 10 canaries.
  assert auditor.record().observed.sum() == 500 - ROUNDS


def test_a_round_without_sites_is_none():
  auditor = make_auditor()
  aggregator = make_aggregator(auditor)
  aggregator.aggregate(make_context(0))
  assert auditor.num_rounds_observed == 0


def test_sites_beyond_the_canaries_of_a_round_send_their_own_update():
  few = make_auditor(num_observed=50)
  own = from_shareable(send(0, 5, [CanaryFilter(few, 5)])).data
  assert not any(x.any() for x in own.values())
  canary = from_shareable(send(0, 0, [CanaryFilter(few, 0)])).data
  norm = np.sqrt(sum(np.sum(x**2) for x in canary.values()))
  assert norm == pytest.approx(CLIP_NORM, rel=1e-5)


def test_jobs_give_the_file_of_an_auditor(tmp_path):
  path = tmp_path / 'auditor.npz'
  make_auditor().save(path)
  run(str(path), 0.5, rounds=3)
  assert epe_jax.Auditor.load(path).num_rounds_observed == 3


def test_canaries_that_weigh_differently_are_an_error():
  auditor = make_auditor()
  aggregator = make_aggregator(auditor)
  for site in range(2):
    sent = send(0, site, [CanaryFilter(auditor, site)], steps=1 + site)
    aggregator.accept(sent, make_context(0))
  with pytest.raises(ValueError, match='canaries of round 0 have the weights'):
    aggregator.aggregate(make_context(0))


def test_the_report_has_the_epsilon_of_a_site_of_more_steps():
  auditor = make_auditor(num_observed=ROUNDS)
  aggregator = make_aggregator(auditor)
  for site in range(SITES):
    filters = [CanaryFilter(auditor, site), GaussianPrivacy(0.5, seed=site)]
    steps = 3 if site == 1 else 1
    sent = send(0, site, filters, steps=steps)
    aggregator.accept(sent, make_context(0))
  with pytest.warns(UserWarning, match='=3 moves the mean 3 times as far'):
    aggregator.aggregate(make_context(0))
  (note,) = auditor.notes
  assert note.values['epsilon'] > 3 * note.values['claimed']


@pytest.mark.parametrize(
  'options',
  [
    {},
    {'weigh_by_local_iter': False},
    {'aggregation_weights': {f'site-{i}': 1.0 + i % 2 for i in range(SITES)}},
  ],
)
def test_a_divisor_is_that_of_the_aggregator(options):
  """Without noise a release is the canary over the divisor, however it weighs."""
  auditor = make_auditor(None, num_observed=ROUNDS)
  aggregator = make_aggregator(auditor, **options)
  for site in range(SITES):
    # Sites send zeros, but for the one that is designated.
    sent = send(0, site, [CanaryFilter(auditor, site)], steps=1 + site % 3)
    aggregator.accept(sent, make_context(0))
  data = from_shareable(aggregator.aggregate(make_context(0))).data
  norm = np.sqrt(sum(np.sum(x.astype(float) ** 2) for x in data.values()))
  assert norm == pytest.approx(auditor.record().rounds.canary_norm[0], rel=1e-5)


def test_an_update_without_a_round_is_an_error():
  shareable = DXO(DataKind.WEIGHT_DIFF, {'w': np.zeros(DIM)}).to_shareable()
  with pytest.raises(ValueError, match='an update of site 0 has no round'):
    CanaryFilter(make_auditor(), 0).process(shareable, FLContext())


@pytest.mark.integration
def test_a_job_is_audited_in_the_simulator_of_nvflare(tmp_path):
  rounds, sites = 6, 3
  path, job = tmp_path / 'auditor.npz', tmp_path / 'job'
  laws.make_auditor(
    dim=DIM,
    rounds=rounds,
    clip_norm=CLIP_NORM,
    noise_multiplier=0.1,
    num_observed=2 * rounds,
  ).save(path)
  nvflare_job.write_job(
    job, path, sites=sites, rounds=rounds, noise_multiplier=0.1
  )
  names = ','.join(f'site-{i + 1}' for i in range(sites))
  module = 'nvflare.private.fed.app.simulator.simulator'
  command = [sys.executable, '-m', module, str(job), '-c', names]
  done = subprocess.run(
    [*command, '-w', str(tmp_path / 'workspace'), '-t', str(sites)],
    capture_output=True,
    text=True,
    timeout=240,
    check=False,
  )
  assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
  record = epe_jax.Auditor.load(path).record()
  assert not np.isnan(record.rounds.aggregate_norm).any()
  assert record.observed.sum() == 2 * rounds
  # Of noise that small scores lie 10 standard errors apart.
  own = record.trace[record.assigned & record.observed]
  assert own.min() > 5 / np.sqrt(DIM)


def test_an_aggregator_is_audited_in_one_process():
  inner = InTimeAccumulateWeightedAggregator(
    expected_data_kind=DataKind.WEIGHT_DIFF
  )
  inner.handle_event(EventType.START_RUN, make_context(0))
  aggregator = integration.audit(
    inner,
    dim=DIM,
    rounds=ROUNDS,
    clip_norm=CLIP_NORM,
    noise_multiplier=0.5,
    delta=1e-3,
    num_observed=ROUNDS,
  )
  privacy = GaussianPrivacy(0.5)
  for site in range(SITES):
    sent = send(0, site, [aggregator.filter(site), privacy])
    aggregator.accept(sent, make_context(0))
  aggregator.aggregate(make_context(0))
  assert aggregator.auditor.num_rounds_observed == 1
  assert aggregator.auditor.record().included.sum() == 1
  with pytest.raises(
    ValueError, match=r'^dim of the audit is not known; give dim'
  ):
    integration.audit(inner, rounds=5, clip_norm=1.0, delta=1e-3)


def test_a_site_has_a_number():
  with pytest.raises(ValueError, match='site=-1'):
    CanaryFilter(make_auditor(), -1)


def test_the_quickstart_is_audited(tmp_path):
  laws.assert_example_audits('nvflare', tmp_path)
