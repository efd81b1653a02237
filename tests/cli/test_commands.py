"""The commands on runs and auditors: what they print, write and exit with."""

import dataclasses
import json

import numpy as np
import pytest

import epe_jax
from epe_jax import audit
from epe_jax.audit.record_file import write_record
from epe_jax.cli import claims, estimate, program
from epe_jax.epsilon.types import Estimate
from epe_jax.experiment import finished_runs, run_result
from epe_jax.report import provenance, report
from tests import recorded_runs

pytestmark = pytest.mark.usefixtures('quick_compilation')


def run(capsys, *argv):
  """The exit status, and what was printed to stdout and stderr."""
  capsys.readouterr()
  code = program.main([*map(str, argv)])
  return code, *capsys.readouterr()


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
  """An empty folder in which the command runs."""
  monkeypatch.chdir(tmp_path)
  return tmp_path


SMALL = (
  *('--config.rounds=3', '--config.clients_per_round=40'),
  *('--config.client.epochs=1', '--config.evaluate_every=3'),
)


@pytest.mark.integration
@pytest.mark.usefixtures('small_task', 'no_floors', 'undrawn')
def test_a_run_is_named_audited_reported_and_judged(capsys, in_folder):
  code, out, err = run(capsys, 'run', 'digits:smoke', *SMALL)
  assert code == 0, err
  workdir = in_folder / 'runs' / 'digits-smoke'
  assert out.endswith(
    'Report: runs/digits-smoke/report.html, model: runs/digits-smoke/model.npz\n'
  )
  result = finished_runs.load_result(workdir)
  assert result.rounds == 3
  assert result.model_sha256
  assert result.record_sha256
  belongs_to = provenance.identify_workdir(workdir, result)
  summary = report.format_summary(result, belongs_to)
  assert out.startswith(summary)

  # The same, without training.
  code, out, _ = run(capsys, 'report', 'runs/digits-smoke')
  assert code == 0
  assert out.startswith(f'{summary}\n')
  bound = result.audit.headline[1].epsilon
  assert bound > 0
  for command in ('estimate', 'report'):
    for claim, status in ((bound * 0.9, 1), (bound * 1.1, 0)):
      code, out, _ = run(capsys, command, workdir, f'--claim={claim}')
      assert code == status
      assert ('violated' in out) == bool(status)

  # A config with a claim of its own.
  claim = f'--claim={bound * 0.9}'
  code, out, _ = run(
    capsys, 'run', 'digits:smoke', *SMALL, claim, '--workdir=other'
  )
  assert code == 1
  assert f'Claim ε ≤ {bound * 0.9:g}: violated.' in out
  assert (in_folder / 'other' / 'result.json').exists()
  json_ = json.loads(run(capsys, 'estimate', 'other', '--format=json')[1])
  assert json_['headline']['epsilon'] == pytest.approx(bound)
  # A finished run is only shown, and only if nothing of it was removed.
  again = 'run', 'digits:smoke', *SMALL, claim, '--workdir=other'
  code, out, err = run(capsys, *again)
  assert code == 1
  assert 'other is finished: nothing is trained.\n' in err
  for name in ('private/scores.npz', 'model.npz'):
    (in_folder / 'other' / name).rename(in_folder / 'kept')
    code, _, err = run(capsys, *again)
    assert code == 2
    assert 'is finished' not in err
    assert f'other/{name} does not exist' in err
    (in_folder / 'kept').rename(in_folder / 'other' / name)


@pytest.mark.integration
@pytest.mark.usefixtures('no_floors')
def test_a_record_is_audited_at_any_delta(capsys, tmp_path):
  (tmp_path / 'private').mkdir()
  path = tmp_path / 'private' / 'scores.npz'
  write_record(path, recorded_runs.by_law())
  code, out, _ = run(capsys, 'estimate', path, '--delta=1e-7')
  assert code == 0
  assert 'δ = 1e-7' in out
  # A workdir without result.json has scores all the same.
  assert run(capsys, 'estimate', tmp_path, '--delta=1e-7')[1] == out
  code, out, _ = run(capsys, 'estimate', path, '--simultaneous', '--claim=0.1')
  assert code == 1
  assert 'together' in out
  # What the largest bound without a shape is, and how it was found.
  assert '% confidence (' in out


def test_the_cache_of_the_user_is_removed_when_asked(
  capsys, tmp_path, monkeypatch
):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  folder = tmp_path / 'epe_jax'
  for _ in range(2):
    (folder / 'compiled').mkdir(parents=True)
    (folder / 'compiled' / 'a').write_bytes(bytes(1234))
    code, out, _ = run(capsys, 'data', '--clear_cache')
    assert (code, out) == (0, f'Removed {folder}, 1,234 bytes.\n')
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('command', ['estimate', 'report'])
def test_a_run_that_has_not_ended_is_said_to_be_resumed(
  capsys, tmp_path, command
):
  (tmp_path / 'private').mkdir()
  (tmp_path / 'config.json').write_text('{}')
  (tmp_path / 'private' / 'secret').touch()
  code, out, err = run(capsys, command, tmp_path)
  assert (code, out) == (2, '')
  assert err == (
    f'error: {tmp_path}: the run has not ended. If it was interrupted, repeat its '
    '`epe-jax run` command, which resumes it.\n'
  )


def observe_rounds(divisor=1):
  """An auditor of sums that are told to be divided by a divisor."""
  rng, rounds = np.random.default_rng(0), 5
  auditor = epe_jax.Auditor(
    epe_jax.AuditConfig(
      dim=4096,
      rounds=rounds,
      clip_norm=1.0,
      noise_multiplier=0.2,
      delta=1e-3,
      num_observed=40,
      num_unobserved=40,
    ),
    seed=1,
  )
  for t in range(rounds):
    injection = auditor.injection(t)
    noise = 0.2 * rng.normal(size=4096)
    auditor.observe(t, injection.update + noise, divisor=divisor)
  return auditor


@pytest.mark.integration
@pytest.mark.usefixtures('no_floors')
def test_an_auditor_is_audited_as_its_loop_prints_it(capsys, tmp_path):
  auditor, path = observe_rounds(), tmp_path / 'auditor.npz'
  auditor.save(path)
  code, out, _ = run(capsys, 'estimate', path)
  assert (code, out) == (0, f'{auditor.report()}\n')
  bound = auditor.evaluate().headline[1].epsilon
  claim = f'--claim={bound / 2}'
  code, out, _ = run(capsys, 'estimate', path, claim)
  assert code == 1
  assert out.startswith(auditor.report())
  code, out, _ = run(
    capsys, 'estimate', path, '--delta=1e-4', '--simultaneous', '--format=json'
  )
  assert code == 0
  assert run(capsys, 'estimate', path, '--by_round')[2] == (
    f'error: --by_round is of a run, but {path} holds an auditor; leave it out.\n'
  )
  attack = json.loads(out)['attacks'][0]
  assert {x['delta'] for x in attack['estimates']} == {1e-4}
  wrong = observe_rounds(divisor=2)
  wrong.save(path)
  told = ' '.join(wrong.report().split())
  _, out, _ = run(capsys, 'estimate', path, '--format=json')
  warnings = json.loads(out)['warnings']
  assert told.startswith(f'Finding: {warnings[0]}.')
  code, _, err = run(capsys, 'estimate', path, '--claim=100')
  assert code == 2
  assert 'cannot be judged: canaries score 2.12 times what' in err


@pytest.mark.integration
def test_rounds_judge_a_claim_too(capsys, tmp_path):
  path = tmp_path / 'scores.npz'
  write_record(path, recorded_runs.by_law())
  code, out, _ = run(
    capsys, 'estimate', path, '--by_round', '--delta=1e-3', '--claim=0.01'
  )
  assert code == 1
  assert 'Claim ε ≤ 0.01: ' in out
  code, _, _ = run(
    capsys, 'estimate', path, '--by_round', '--delta=1e-3', '--claim=1000'
  )
  assert code == 0


def test_it_is_said_whom_a_claim_was_tested_by():
  for canaries, clients, says in (
    (1, 4, 'in up to 4'),
    (2, 2, ''),
    (4, 1, None),
  ):
    found = recorded_runs.result(
      participations=canaries, clients_participations=clients
    )
    if says is None:
      with pytest.raises(ValueError, match=r'--claim=3 .* 1 rounds .* in 4'):
        claims.describe_whom(3.0, found)
    else:
      text = claims.describe_whom(3.0, found)
      assert says in text
      assert bool(says) == bool(text)
    assert claims.describe_whom(None, found) == ''


def test_a_claim_about_clients_who_are_drawn_is_one_of_known_rounds(tmp_path):
  sampled = {'participation': {'kind': 'poisson'}}
  result = recorded_runs.result(
    config=recorded_runs.result().config | sampled, analytic_epsilon=4.3772
  )
  assert 'up to 2, drawn in secret, and may leak' in claims.describe_whom(
    4.38, result
  )
  as_often = dataclasses.replace(result, participations=2)
  assert 'a client leaks less' in claims.describe_whom(4.38, as_often)
  with pytest.raises(ValueError, match=r'--claim=2 .* allowed ε = 4\.3772'):
    claims.describe_whom(2.0, result)
  # At another δ canaries are allowed another ε.
  assert claims.describe_whom(2.5, result, delta=1e-2)
  with pytest.raises(ValueError, match=r'--claim=4\.38 cannot be'):
    claims.describe_whom(4.38, result, delta=1e-9)
  # However the run is given, and among others.
  run_result.write_result(tmp_path / 'result.json', result)
  (tmp_path / 'private').mkdir()
  scores = tmp_path / 'private/scores.npz'
  scores.touch()
  for path in (tmp_path, scores):
    with pytest.raises(ValueError, match='--claim=2 cannot be tested'):
      estimate._describe_whom(2.0, ['scores.csv', str(path)])


def test_counts_judge_a_claim(capsys, tmp_path):
  path = tmp_path / 'results.json'
  path.write_text('{"FN": 100, "FP": 10, "TN": 990, "TP": 900}')
  for claim, status in ((3, 1), (5, 0)):
    code, _, _ = run(
      capsys, 'estimate', path, '--delta=1e-5', f'--claim={claim}'
    )
    assert code == status


def test_the_largest_of_bounds_that_hold_together_judges(capsys):
  bounds = [
    Estimate(x, 1e-5, 'some', 0.95, 'confidence_bound') for x in (1.0, 3.0)
  ]
  assert claims.report_claim(2.0, bounds) == 1
  assert 'ε ≥ 3.00 at δ = 1e-5 with 95 % confidence' in capsys.readouterr().out
  # Just as much is no more.
  assert claims.report_claim(3.0, bounds) == 0


def test_bounds_that_hold_each_by_itself_are_judged_by_one_of_them():
  shown = audit.evaluate(recorded_runs.by_law(), floors=False)
  assert claims.choose_bounds(shown) == [shown.headline[1]]
  together = shown._replace(is_simultaneous=True)
  assert len(claims.choose_bounds(together)) > 3
  assert claims.choose_bounds(audit.Audit(())) == []


@pytest.mark.usefixtures('small_task', 'no_floors')
def test_a_sweep_is_named_by_its_config_and_grid(
  capsys, in_folder, monkeypatch
):
  seen = {}

  def run_sweep(points, workdir, **settings):
    seen.update(points=points, workdir=workdir, **settings)
    raise ValueError('enough')

  monkeypatch.setattr('epe_jax.experiment.sweeps.sweep.run_sweep', run_sweep)
  # A cluster's flags may be in a file.
  (in_folder / 'cluster').write_text('--jobs=2\n')
  flagfile = '--flagfile=cluster'
  code, _, err = run(
    capsys, 'sweep', 'digits', '--grid=noise', '--axis=seed=1,2', flagfile
  )
  assert (code, err) == (2, 'error: enough\n')
  assert seen['workdir'] == 'runs/digits-noise'
  assert len(seen['points']) == 8
  assert seen['retry'] is False
  engine, *_ = seen['launch'].args
  assert (engine, seen['launch'].keywords['jobs']) == ('local', 2)
