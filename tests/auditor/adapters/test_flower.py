import pytest

pytest.importorskip('flwr', reason='flwr is not installed')

import contextlib
import itertools
import json
import logging
import os
import pathlib
import random
import socket
import subprocess
import sys
import time

from flwr.app import (
  Array,
  ArrayRecord,
  Context,
  Error,
  Message,
  MetricRecord,
  RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.common.secure_aggregation.quantization import dequantize, quantize
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import (
  DifferentialPrivacyClientSideAdaptiveClipping,
  DifferentialPrivacyClientSideFixedClipping,
  DifferentialPrivacyServerSideAdaptiveClipping,
  DifferentialPrivacyServerSideFixedClipping,
  FedAdam,
  FedAvg,
)
from flwr.supercore.task_identity import TaskIdentity
import numpy as np

import epe_jax
from epe_jax import accounting, conformance
from epe_jax.audit import attackers
from epe_jax.auditor.adapters import flower
from epe_jax.auditor.adapters.flower import canary_mod
from epe_jax.cli import program
from epe_jax.conformance.adapters import flower as mechanisms
from tests.auditor.adapters import laws
from tests.auditor.adapters.flower_app import audited_app

logging.getLogger('flwr').setLevel(logging.ERROR)

# Messages are those of a run, which these tests have none of.
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1

# 20 canaries a round.
DIM, ROUNDS, NODES = 5_000, 25, 40
# Flower divides by the norm of an update: clients without a signal send this.
WHISPER = 1e-6


class Nodes:
  """A grid of nodes that train in turn, in this process."""

  def __init__(self, num=NODES, update=None, examples=None, mods=()):
    self.num, self.update, self.examples = num, update, examples or {}
    self.silent, self.failing = set(), set()
    self.app = ClientApp(mods=list(mods))
    self.app.train()(self._train)
    self.asked = []

  def get_node_ids(self):
    return range(1, self.num + 1)

  def _train(self, message, context):
    node = message.metadata.dst_node_id
    arrays = message.content['arrays']
    self.asked.append(dict(message.content['config']))
    returned = {key: x.numpy().copy() for key, x in arrays.items()}
    if self.update is None:
      next(iter(returned.values())).flat[0] += WHISPER
    else:
      for x, update in zip(returned.values(), self.update(node)):
        x += update
    content = RecordDict(
      {
        'arrays': ArrayRecord({k: Array(x) for k, x in returned.items()}),
        'metrics': MetricRecord(
          {'num-examples': self.examples.get(node, 8), 'loss': 1.0}
        ),
      }
    )
    return Message(content, reply_to=message)

  def send_and_receive(self, messages, *, timeout=None):
    del timeout
    return [
      self._reply(x)
      for x in messages
      if x.metadata.dst_node_id not in self.silent
    ]

  def _reply(self, message):
    node = message.metadata.dst_node_id
    if node in self.failing:
      return Message(Error(code=0, reason='out of memory'), reply_to=message)
    context = Context(1, node, {}, RecordDict(), {})
    return self.app(message, context)


def seed_noise(seed):
  # Flower draws its noise from the global stream.
  np.random.seed(seed)


def make_fedavg():
  return FedAvg(fraction_evaluate=0.0)


def make_model(dim=DIM):
  shapes = (dim - 100, 1), (10, 10)
  names = 'weight', 'bias'
  zeros = [np.zeros(shape, np.float32) for shape in shapes]
  return ArrayRecord({k: Array(x) for k, x in zip(names, zeros)})


def make_strategy(noise_multiplier=0.5, clip_norm=1.0, nodes=NODES, inner=None):
  seed_noise(3)
  return DifferentialPrivacyServerSideFixedClipping(
    inner or make_fedavg(), noise_multiplier, clip_norm, nodes
  )


def make_auditor(noise_multiplier=0.5, rounds=ROUNDS, **config):
  return laws.make_auditor(
    **{'dim': DIM, 'noise_multiplier': noise_multiplier, 'rounds': rounds}
    | config
  )


def audit_with(strategy, auditor, **options):
  return flower.audit(strategy, auditor=auditor, **options)


def run(strategy, nodes=None, rounds=ROUNDS, model=None):
  """Runs Flower's own loop, and returns what the rounds released, [d] each."""
  models = [model or make_model()]
  aggregate_train = strategy.aggregate_train

  def aggregate_and_keep(server_round, replies):
    returned = aggregate_train(server_round, replies)
    models.append(returned[0])
    return returned

  strategy.aggregate_train = aggregate_and_keep
  strategy.start(nodes or Nodes(), models[0], num_rounds=rounds)
  vectors = [flatten(x) for x in models if x is not None]
  return [b - a for a, b in itertools.pairwise(vectors)]


def flatten(model):
  return np.concatenate([model[key].numpy().ravel() for key in sorted(model)])


@pytest.mark.parametrize('noise_multiplier', laws.NOISE_MULTIPLIERS)
def test_what_a_strategy_claims_is_measured(noise_multiplier):
  auditor = make_auditor(noise_multiplier, clip_norm=2.0)
  strategy = make_strategy(noise_multiplier, clip_norm=2.0)
  run(audit_with(strategy, auditor))
  laws.assert_claim_is_met(auditor)
  scalars = auditor.record().rounds
  np.testing.assert_allclose(scalars.canary_norm, 2 / NODES)
  np.testing.assert_allclose(
    scalars.residual_norm,
    noise_multiplier * 2 / NODES * DIM**0.5,
    rtol=0.1,
  )


def test_a_strategy_and_our_own_loop_give_the_same_epsilon():
  releases = run(audit_with(make_strategy(1e-9), make_auditor(1e-9)))
  laws.assert_same_as_own_loop(make_auditor, releases, divisor=NODES)


def test_clients_with_large_updates_do_not_hide_the_noise():
  rng = np.random.default_rng(0)
  directions = rng.normal(size=(NODES + 1, 10, 10)).astype(np.float32)
  nodes = Nodes(update=lambda node: (1.0, directions[node]))
  auditor = make_auditor()
  run(audit_with(make_strategy(), auditor), nodes)
  residual = auditor.evaluate().find(attackers.RESIDUAL)
  low, high = residual.first.interval
  assert low / 1.1 < residual.analytic.epsilon < 1.1 * high


@pytest.mark.parametrize('side', ['server', 'client'])
def test_canaries_follow_a_clip_norm_that_adapts(side):
  wrap, mods = {
    'server': (DifferentialPrivacyServerSideAdaptiveClipping, ()),
    'client': (
      DifferentialPrivacyClientSideAdaptiveClipping,
      (adaptiveclipping_mod,),
    ),
  }[side]
  seed_noise(3)
  strategy = wrap(make_fedavg(), 0.5, NODES, initial_clipping_norm=0.1)
  # What is left for updates, after the count of those that were clipped.
  auditor = make_auditor(strategy.noise_multiplier, clip_norm=0.1)
  clip_norms = []
  audited = audit_with(strategy, auditor)
  configure = audited.configure_train

  def configure_and_keep(*args):
    clip_norms.append(strategy.clipping_norm)
    return configure(*args)

  audited.configure_train = configure_and_keep
  run(audited, Nodes(mods=mods))
  scalars = auditor.record().rounds
  np.testing.assert_allclose(scalars.clip_norm, clip_norms)
  # Nobody is counted as clipped, canaries neither: up it goes, 10 % a round.
  assert clip_norms[-1] > 0.1 * 1.08 ** (ROUNDS - 1)


def test_a_canary_of_an_adaptive_clip_norm_is_of_that_norm():
  strategy = DifferentialPrivacyServerSideAdaptiveClipping(
    make_fedavg(), 1e-9, NODES, initial_clipping_norm=0.1
  )
  auditor = make_auditor(strategy.noise_multiplier, clip_norm=0.1)
  releases = run(audit_with(strategy, auditor))
  for t, clip_norm in enumerate(auditor.record().rounds.clip_norm):
    expected = auditor.injection(t, clip_norm=clip_norm).update / NODES
    np.testing.assert_allclose(releases[t], expected, rtol=1e-4, atol=2e-6)


def test_what_a_strategy_with_clipping_clients_claims_is_measured():
  nodes = Nodes(mods=[fixedclipping_mod, canary_mod])
  strategy = DifferentialPrivacyClientSideFixedClipping(
    make_fedavg(), 0.5, 2.0, NODES
  )
  seed_noise(4)
  auditor = make_auditor(clip_norm=2.0)
  run(audit_with(strategy, auditor, client_side=True), nodes)
  laws.assert_claim_is_met(auditor)
  assert auditor.record().included.sum() == auditor.planned.sum() == 500
  # Neither is a key sent, nor does training see an order.
  assert not any('epe_jax.canary' in config for config in nodes.asked)
  assert len(nodes.asked) == NODES * ROUNDS


def test_canaries_of_clients_and_of_the_server_release_the_same():
  releases = []
  for is_client_side in (False, True):
    nodes = Nodes(mods=[canary_mod] if is_client_side else [])
    audited = audit_with(
      make_strategy(1e-9), make_auditor(1e-9), client_side=is_client_side
    )
    releases.append(run(audited, nodes, rounds=3))
  np.testing.assert_allclose(*releases, atol=1e-6)


def test_a_designated_client_without_the_mod_is_an_error():
  audited = audit_with(make_strategy(), make_auditor(), client_side=True)
  with pytest.raises(ValueError, match=r'node \d+ was to send a canary.*mods='):
    run(audited)


def test_the_canary_of_a_node_that_is_silent_is_left_out():
  nodes, auditor = Nodes(), make_auditor(None)
  nodes.silent, nodes.failing = set(range(1, 11)), set(range(11, 16))
  inner = make_fedavg()
  run(audit_with(inner, auditor), nodes)
  included = auditor.record().included.sum()
  # 25 of 40 nodes, give or take.
  assert 230 < included < 390
  np.testing.assert_allclose(auditor.record().rounds.canary_norm, 1 / 25)


def test_a_round_that_failed_leaves_its_canaries_to_the_next():
  nodes, auditor = Nodes(), make_auditor()
  audited = audit_with(make_strategy(), auditor)
  nodes.failing = {7}
  assert run(audited, nodes, rounds=2) == []
  assert auditor.num_rounds_observed == 0
  nodes.failing = set()
  releases = run(audited, nodes, rounds=ROUNDS)
  assert len(releases) == auditor.num_rounds_observed == ROUNDS
  laws.assert_claim_is_met(auditor)


def test_an_auditor_goes_on_where_it_was_saved(tmp_path):
  auditor = make_auditor()
  run(audit_with(make_strategy(), auditor), rounds=10)
  auditor.save(tmp_path / 'audit.npz')
  auditor = epe_jax.Auditor.load(tmp_path / 'audit.npz')
  audited = audit_with(make_strategy(), auditor)
  with pytest.raises(ValueError, match='num_rounds=16, but the audit has 15'):
    run(audited, rounds=16)
  run(audited, rounds=15)
  assert auditor.num_rounds_observed == ROUNDS
  laws.assert_claim_is_met(auditor)


def test_fewer_nodes_than_canaries_are_an_error_before_training():
  nodes = Nodes(num=19)
  audited = audit_with(make_strategy(nodes=19), make_auditor())
  with pytest.raises(ValueError, match=r'asks 19 nodes, .* lower num_observed'):
    run(audited, nodes)
  assert not nodes.asked


def test_a_canary_has_the_weight_of_a_median_client_and_a_warning_says_so():
  nodes = Nodes(examples={1: 80})
  auditor = make_auditor(1e-9)
  text = '=80 moves the mean 10 times as far'
  with pytest.warns(UserWarning, match=text) as warned:
    releases = run(audit_with(make_strategy(1e-9), auditor), nodes)
  assert len(warned) == 1
  assert text in laws.describe_notes(auditor)
  record = auditor.record()
  for t, norm in enumerate(record.rounds.canary_norm):
    # A canary may have replaced the client that is larger than others.
    assert norm in (pytest.approx(1 / 40), pytest.approx(8 / (39 * 8 + 80)))
    expected = auditor.injection(t).update * norm
    np.testing.assert_allclose(releases[t], expected, rtol=1e-4, atol=2e-6)


def test_clients_of_other_sizes_do_not_change_the_noise_that_is_claimed():
  sizes = np.random.default_rng(0).lognormal(3, 0.8, NODES).round() + 1
  nodes = Nodes(examples={i + 1: int(x) for i, x in enumerate(sizes)})
  auditor = make_auditor()
  with pytest.warns(UserWarning, match='moves the mean'):
    run(audit_with(make_strategy(), auditor), nodes)
  record = auditor.record()
  np.testing.assert_allclose(record.rounds.noise_std, 0.5 / NODES)
  assert auditor.evaluate().find(attackers.RESIDUAL).contradictions == ()


def test_the_report_has_the_epsilon_of_the_largest_client(tmp_path):
  nodes, auditor = Nodes(examples={1: 80}), make_auditor()
  with pytest.warns(UserWarning, match='=80 moves'):
    run(audit_with(make_strategy(), auditor), nodes)
  (note,) = auditor.notes
  # Of a share of 80 / (39 * 8 + 80), and noise for one of 1/40.
  influence = 40 * 80 / (39 * 8 + 80)
  expected = accounting.epsilon_of_releases(0.5 / influence, delta=laws.DELTA)
  assert note.values['epsilon'] == pytest.approx(expected.epsilon)
  auditor.save(tmp_path / 'audit.npz')
  loaded = epe_jax.Auditor.load(tmp_path / 'audit.npz')
  assert loaded.notes == auditor.notes
  assert f'{expected.epsilon:.1f}, where' in laws.describe_notes(auditor)


def test_the_conformance_suite_names_the_client_of_a_large_weight(capsys):
  page = laws.EXAMPLES.parents[1] / 'docs' / 'frameworks' / 'flower.md'
  text = page.read_text(encoding='utf-8')
  command = text.split('```sh\n')[1].split('\n```')[0]
  name, *arguments = command.split()
  assert name == 'epe-jax'
  code = program.main([*arguments, '--format=json'])
  results = json.loads(capsys.readouterr().out)['results']
  status = {x['rule']: x['status'] for x in results}
  assert code == 1
  assert status['noise_scale'] == status['clipping'] == 'passed'
  assert {x for x in status if status[x] == 'broken'} == {
    'weights',
    'dropout',
    'not_finite',
  }


def test_the_conformance_suite_sends_parameters_without_an_axis():
  claim = conformance.Claim(1.0, 1.0, 8, shapes=((30, 40), ()))
  report = conformance.check(mechanisms.fixed_clipping, claim, budget=20)
  assert 'clipping' in {x.rule for x in report.findings}


@pytest.mark.parametrize(
  ('claimed', 'adjacency', 'exact', 'at'),
  [
    (5, 'zero_out', 4.54, 'noise_multiplier × 0.25'),
    (10, 'zero_out', 10.4, ''),
    (1, 'replace', 1.6, ''),
    (50, 'replace', 300, ''),
  ],
)
def test_the_noise_of_local_dp_is_judged_by_its_exact_epsilon(
  claimed, adjacency, exact, at
):
  claim = conformance.Claim.from_epsilon(
    claimed,
    clip_norm=2.0,
    num_clients=1,
    shapes=((30, 40),),
    release='sum',
    adjacency=adjacency,
  )
  report = conformance.check(mechanisms.local_dp, claim, budget=20)
  assert report.epsilon == pytest.approx(exact, rel=0.05)
  found = {f.rule: f.at for f in report.findings}
  # Flower divides by the norm, and does not ask whether it is finite.
  assert found.pop('zero_update') == found.pop('not_finite') == ''
  # Replacing an update moves twice as far over the grid of float32.
  if adjacency == 'replace':
    found.pop('noise_grid', None)
  assert found == {'noise_scale': at}


def test_canaries_may_have_the_weight_of_the_largest_client():
  nodes, auditor = Nodes(examples={1: 80}), make_auditor(1.0)
  run(audit_with(make_strategy(1.0), auditor, num_examples=80), nodes)
  # Flower adds noise for a share of 1/40, and theirs is 1/22.
  attack = laws.evaluate_own_round(auditor)
  assert attack.first.interval[0] > 1.3 * attack.analytic.epsilon


def test_counters_are_left_alone_and_training_goes_on_as_without_an_audit():
  model = make_model()
  model['batches'] = Array(np.array(3))
  update = lambda node: (0.01 * node, np.float32(0.02), 5)
  models = []
  for is_audited in (False, True):
    # Of the nodes that Flower samples; an audit takes nothing from this stream.
    random.seed(3)
    strategy = make_strategy()
    if is_audited:
      # All canaries are held out: what is left is the scoring.
      auditor = make_auditor(None, num_observed=1, rounds=500)
      assert not auditor.planned[:3].any()
      strategy = audit_with(strategy, auditor)
    result = strategy.start(Nodes(update=update), model, num_rounds=3)
    models.append(result.arrays)
  for key in models[0]:
    np.testing.assert_array_equal(
      models[0][key].numpy(), models[1][key].numpy()
    )
  assert auditor.record().cosines.keys() >= {'aggregate', 'final', 'change'}


def test_an_audit_goes_on_from_a_model_whose_counters_have_become_floats():
  auditor = make_auditor()
  model = make_model()
  # As FedAvg returns those of batch normalization.
  model['norm.num_batches_tracked'] = Array(np.array(3.0))
  audited = audit_with(make_strategy(), auditor)
  audited.start(
    Nodes(update=lambda node: (0.01, np.float32(0.02), 5.0)),
    model,
    num_rounds=2,
  )
  assert auditor.num_rounds_observed == 2


def test_a_round_may_have_no_canaries():
  auditor = make_auditor(num_observed=1, rounds=500)
  run(audit_with(make_strategy(), auditor), rounds=2)
  assert auditor.num_rounds_observed == 2
  assert not auditor.record().included.any()


def test_an_optimizer_of_the_server_is_seen_by_the_change_of_the_model():
  with pytest.raises(
    ValueError, match=r"FedAdam is a server optim.*view='server_update'"
  ):
    audit_with(
      make_strategy(inner=FedAdam(fraction_evaluate=0.0)), make_auditor()
    )
  auditor = make_auditor(view='server_update')
  audited = audit_with(
    make_strategy(inner=FedAdam(fraction_evaluate=0.0)), auditor
  )
  run(audited, rounds=3)
  assert auditor.num_rounds_observed == 3


def test_a_mean_may_be_seen_by_the_change_of_the_model_too():
  auditor = make_auditor(view='server_update')
  run(audit_with(make_strategy(), auditor), rounds=3)
  assert set(auditor.record().cosines) == {'server_update', 'final', 'change'}


def test_what_the_strategy_has_is_passed_on():
  strategy = make_strategy()
  audited = audit_with(strategy, make_auditor())
  assert audited.num_sampled_clients == NODES
  assert audited.privacy_spent() is None
  audited.summary()
  with pytest.raises(AttributeError, match='no_such'):
    audited.no_such  # noqa: B018


def test_a_strategy_with_a_loop_of_its_own_is_an_error():
  class Own(FedAvg):
    def start(self, *args, **kwargs):
      raise NotImplementedError

  with pytest.raises(TypeError, match='Own has a `start` of its own'):
    audit_with(Own(), make_auditor())


def test_what_a_strategy_and_start_know_is_read_and_said():
  strategy = flower.audit(
    make_strategy(0.7, clip_norm=2.0), delta=1e-3, num_observed=300
  )
  with pytest.raises(ValueError, match='made when training starts'):
    strategy.auditor  # noqa: B018
  run(strategy)
  auditor = strategy.auditor
  config = auditor.config
  assert (config.clip_norm, config.noise_multiplier) == (2.0, 0.7)
  assert (config.dim, config.rounds, config.delta) == (DIM, ROUNDS, 1e-3)
  text = laws.describe_notes(auditor)
  assert (
    'read from the strategy: clip norm 2, noise multiplier 0.7, server momentum 0.'
  ) in text
  # The server adds up releases, so that what the model keeps is known.
  final = auditor.evaluate().find(attackers.FINAL)
  assert final is not None
  assert final.is_calibrated
  assert 'read from the call of start: 25 rounds.' in text
  assert 'read from the initial model: d = 5,000.' in text


def test_what_a_strategy_does_not_know_is_asked_for():
  with pytest.raises(ValueError, match=r'clip_norm of the audit is not known'):
    flower.audit(make_fedavg(), delta=1e-5)
  with pytest.raises(
    ValueError, match=r'noise_multiplier=0\.4, .* is 0\.5; set'
  ):
    flower.audit(make_strategy(), delta=1e-5, noise_multiplier=0.4)


def test_nothing_may_be_claimed_of_a_strategy_with_noise():
  strategy = flower.audit(make_strategy(), delta=1e-5, noise_multiplier=None)
  run(strategy)
  assert strategy.auditor.config.noise_multiplier is None


def test_running_statistics_are_released_and_counted_and_counters_are_not():
  model = make_model()
  model['norm.running_mean'] = Array(np.zeros(50, np.float32))
  model['norm.num_batches_tracked'] = Array(np.array(0))
  strategy = flower.audit(make_strategy(), delta=1e-5, rounds=ROUNDS)
  run(strategy, model=model, rounds=1)
  assert strategy.auditor.config.dim == DIM + 50
  fewer = flower.audit(make_strategy(), delta=1e-5, dim=DIM, rounds=ROUNDS)
  with pytest.raises(
    ValueError, match=r'dim=5,000\. The difference is norm\.running_mean \(50\)'
  ):
    run(fewer, model=model)


def assert_canaries_are_seen(auditor):
  """Those that took part are seen through the updates of real clients."""
  record = auditor.record()
  assert record.included.sum() == 2 * audited_app.ROUNDS
  cosines = record.cosines['aggregate']
  others = cosines[:, auditor.config.num_observed :]
  assert cosines[record.included].mean() > 3 * others.std()
  if 'residual' in record.cosines:
    # Without the updates of all the noise is left.
    expected = record.rounds.noise_std * auditor.config.dim**0.5
    np.testing.assert_allclose(record.rounds.residual_norm, expected, rtol=0.1)
  assert record.cosines['final'].shape == record.cosines['change'].shape


@pytest.mark.parametrize('client_side', [False, True])
def test_an_app_is_audited_in_the_simulation_of_flower(
  client_side, monkeypatch
):
  pytest.importorskip('ray', reason='ray is not installed')
  from flwr.simulation import run_simulation

  monkeypatch.setenv('FLWR_TELEMETRY_ENABLED', '0')
  monkeypatch.setenv('RAY_USAGE_STATS_ENABLED', '0')
  auditors, server_app = [], ServerApp()

  @server_app.main()
  def serve(grid, context):
    del context
    auditors.append(
      audited_app.train_audited(grid, nodes=3, client_side=client_side)
    )

  run_simulation(server_app, audited_app.client_app, num_supernodes=3)
  assert_canaries_are_seen(auditors[0])


@pytest.mark.integration
def test_an_app_is_audited_with_processes_of_its_own(tmp_path):
  folder = pathlib.Path(audited_app.__file__).parent
  binaries = pathlib.Path(sys.executable).parent
  port, *node_ports = find_ports(4)
  (tmp_path / 'config.toml').write_text(
    '[superlink]\ndefault = "loopback"\n[superlink.loopback]\n'
    f'address = "127.0.0.1:{port}"\ninsecure = true\n'
  )
  environment = os.environ | {
    'FLWR_DISABLE_UPDATE_CHECK': '1',
    'FLWR_HOME': str(tmp_path),
    'FLWR_TELEMETRY_ENABLED': '0',
    'PATH': f'{binaries}:{os.environ["PATH"]}',
    'PYTHONPATH': str(folder.parents[3]),
  }
  out, stack = tmp_path / 'audit.npz', contextlib.ExitStack()

  def start(name, *flags):
    log = stack.enter_context((tmp_path / f'{name}-{len(flags)}.log').open('a'))
    process = subprocess.Popen(
      [binaries / name, *flags],
      env=environment,
      cwd=tmp_path,
      stdout=log,
      stderr=subprocess.STDOUT,
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)

  with stack:
    host = ('--host', '127.0.0.1', '--port', str(port))
    offline = '--disable-runtime-dependency-installation'
    start('flower-superlink', '--insecure', offline, *host)
    wait_until(lambda: is_listening(port))
    link = ('--superlink', f'127.0.0.1:{port}')
    for own_port in node_ports:
      start('flower-supernode', '--insecure', *link, '--port', str(own_port))
    options = ('--run-config', f'out="{out}"')
    start('flwr', 'run', str(folder), 'loopback', *options)
    wait_until(out.exists)
  assert_canaries_are_seen(epe_jax.Auditor.load(out))


def find_ports(num):
  with contextlib.ExitStack() as stack:
    sockets = [stack.enter_context(socket.socket()) for _ in range(num)]
    for x in sockets:
      x.bind(('127.0.0.1', 0))
    return [x.getsockname()[1] for x in sockets]


def is_listening(port):
  with socket.socket() as x:
    return x.connect_ex(('127.0.0.1', port)) == 0


def wait_until(is_true, seconds=240):
  deadline = time.monotonic() + seconds
  while not is_true():
    assert time.monotonic() < deadline, 'see the logs in the folder of the test'
    time.sleep(0.5)


@pytest.mark.parametrize(('bits', 'share'), [(22, 1.0), (10, 1.0), (10, 0.064)])
def test_the_grid_of_secure_aggregation_costs_a_canary_what_the_docs_say(
  bits, share
):
  np.random.seed(3)
  auditor, num, steps = make_auditor(), 20, 2**bits
  share, noise = round(share * steps) / steps, np.random.default_rng(0)
  model = noise.normal(0, 0.1, DIM)
  # Coordinates from -8 to 8, times num_examples / max_weight.
  variance = (2 * 8 / steps / share) ** 2 / 6
  own, in_sum = [], []
  for first in range(0, 400, num):
    canaries = [auditor.canary_update(first + j) for j in range(num)]
    sent = [quantize([share * (model + x)], 8.0, steps) for x in canaries]
    left = [dequantize(x, 8.0, steps)[0] / share - model for x in sent]
    total = sum(left) + noise.normal(0, 0.5, DIM)
    for x, y in zip(canaries, left):
      own.append(x @ y / np.linalg.norm(y))
      in_sum.append(x @ total / np.linalg.norm(total))
  assert np.mean(own) == pytest.approx((1 + DIM * variance) ** -0.5, rel=0.01)
  expected = (DIM * (0.25 + num * variance) + num) ** -0.5
  # Three standard errors of cosines that scatter by 1/√d.
  error = (DIM * len(in_sum)) ** -0.5
  assert np.mean(in_sum) == pytest.approx(expected, abs=3 * error)


@pytest.mark.integration
@pytest.mark.parametrize('name', ['flower', 'secagg'])
def test_the_quickstart_is_audited(name, tmp_path):
  laws.assert_example_audits(name, tmp_path)
