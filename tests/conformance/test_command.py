"""The command `epe-jax check`, its script, the example and the pytest fixture."""

import json
import math
import os
import pathlib
import re
import runpy
import signal
import subprocess
import sys
import time

from absl import flags
import pytest
import yaml

from epe_jax import cli, conformance, io, python_path
from epe_jax.cli import check

EXAMPLE = str(pathlib.Path(conformance.__file__).with_name('example.py'))
SHAPES = '--shapes=20x30,30'
ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.integration
def test_a_broken_rule_is_1_and_json_says_which(capsys):
  code = cli.main(
    ['check', f'{EXAMPLE}:NoNoiseOnBiases', SHAPES, '--format=json']
  )
  assert code == 1
  body = json.loads(capsys.readouterr().out)
  (broken,) = (r for r in body['results'] if r['status'] == 'broken')
  assert broken['rule'] == 'tensor_noise'
  assert broken['finding']['epsilon'] == 'Infinity'
  assert body['epsilon'] == 'Infinity'


@pytest.mark.integration
def test_an_epsilon_is_claimed_in_place_of_a_noise_multiplier(capsys):
  argv = ['check', f'{EXAMPLE}:make', SHAPES, '--epsilon=2', '--format=json']
  assert cli.main(argv) == 0
  body = json.loads(capsys.readouterr().out)
  assert body['claimed_epsilon'] == pytest.approx(2)
  assert cli.main([*argv, '--noise_multiplier=1']) == 2
  assert 'give one of them' in capsys.readouterr().err


def test_nothing_broken_is_0_and_what_was_not_checked_is_counted(capsys):
  assert cli.main(['check', f'{EXAMPLE}:make', SHAPES]) == 0
  out = capsys.readouterr().out
  assert '21 rules checked: 21 passed, 0 failed; 1 not checked' in ' '.join(
    out.split()
  )
  assert ' '.join(out.rstrip().split('\n\n')[-1].split()) == (
    '0 failed, 21 passed, 1 not checked (resume). Not applicable: clip_norm, '
    'add_or_remove, constants.'
  )


@pytest.mark.integration
@pytest.mark.parametrize(
  ('required', 'code'), [('clipping', 0), ('clipping,resume', 3), ('all', 3)]
)
def test_a_required_rule_that_was_not_checked_is_3(required, code, capsys):
  argv = ['check', f'{EXAMPLE}:make', SHAPES, f'--require={required}']
  assert cli.main(argv) == code
  assert ('resume' in capsys.readouterr().err) == bool(code)


_MODULE_OF_MECHANISMS = """
import itertools
import secrets
import sibling
import numpy as np
from epe_jax.conformance.example import GaussianMean

np.random.seed(0)
COUNTER, RNG = itertools.count(), np.random.default_rng(0)

class Global(GaussianMean):
  def draw_noise(self, shape):
    return np.random.normal(0, self.claim.noise_multiplier * self.claim.clip_norm, shape)

class Counted(GaussianMean):
  def __init__(self, claim):
    super().__init__(claim)
    self.rng = np.random.default_rng(next(COUNTER))

class OneTensor(GaussianMean):
  def draw_noise(self, shape):
    rng, self.rng = self.rng, RNG if len(shape) == 1 else self.rng
    drawn = super().draw_noise(shape)
    self.rng = rng
    return drawn

class Resumes(GaussianMean):
  def save(self): return None
  def restore(self, state):
    self.rng = np.random.default_rng(secrets.randbits(128))

"""


@pytest.mark.integration
@pytest.mark.parametrize(
  ('name', 'require', 'code', 'message'),
  [
    ('Global', '', 1, '600 of 600 numbers of the noise of tensor 0'),
    ('OneTensor', '', 1, '30 of 30 numbers of the noise of tensor 1'),
    # Rules that do not apply are not missing.
    (
      'Resumes',
      'all',
      0,
      '22 passed, 0 not checked. Not applicable: clip_norm, ',
    ),
  ],
)
def test_noise_differs_between_processes(
  name, require, code, message, tmp_path, capsys, monkeypatch
):
  path = tmp_path / 'mechanisms.py'
  path.write_text(_MODULE_OF_MECHANISMS)
  # What lies next to a file is found, as it is by a script.
  (tmp_path / 'sibling.py').touch()
  monkeypatch.setattr(sys, 'path', sys.path[:])
  argv = ['check', f'{path}:{name}', SHAPES, f'--require={require}']
  assert cli.main(argv) == code
  out = ' '.join(capsys.readouterr().out.split())
  assert message in out
  assert out.count('PRIVACY') == code
  assert ('noise equal between processes' in out) == code


def make_report(*severities, passed=1, not_checked=0):
  """A report in which a rule is broken for each severity."""
  results = [conformance.Result('clipping', 'passed', '', 0.5)] * passed
  for severity in severities:
    finding = conformance.Finding(
      'rounding', 'never_ends', severity, '', '', '', math.inf, math.inf
    )
    results.append(
      conformance.Result('rounding', 'broken', '', math.nan, finding)
    )
  for rule in ('resume', 'memory', 'rounds', 'weights')[:not_checked]:
    results.append(conformance.Result(rule, 'not checked', ''))
  claim = conformance.Claim(1.0, 1.0, 10, ((20, 30), ()))
  return conformance.Report(
    claim, tuple(results), 1e-5, math.inf, 4.38, 1, 0.1, None
  )


@pytest.mark.parametrize(
  ('report', 'require', 'code', 'message', 'color'),
  [
    (make_report(), 'all', 0, '1 of 1 passed', 'brightgreen'),
    (
      make_report(not_checked=4),
      '',
      0,
      '1 of 5 passed, 4 not checked',
      'blue',
    ),
    (
      make_report(passed=0, not_checked=3),
      'all',
      3,
      '0 of 3 passed, 3 not checked',
      'lightgrey',
    ),
    (make_report('utility'), '', 4, '1 of 2 passed, 1 failed', 'orange'),
    (
      make_report('utility', not_checked=1),
      'all',
      3,
      '1 of 3 passed, 1 failed, 1 not checked',
      'orange',
    ),
    (
      make_report('utility', 'privacy', not_checked=1),
      'all',
      1,
      '1 of 4 passed, 2 failed, 1 not checked',
      'red',
    ),
  ],
)
def test_status_badge_and_file_say_what_was_found(
  report, require, code, message, color, tmp_path, monkeypatch
):
  monkeypatch.setattr(conformance, 'check', lambda *_, **__: report)
  monkeypatch.setattr(
    check, 'check_apart', lambda name, argv, seconds: check.make_outcome(argv)
  )
  file, badge = tmp_path / 'report.json', tmp_path / 'badge.json'
  argv = ['check', f'{EXAMPLE}:make', f'--require={require}']
  assert cli.main([*argv, f'--report={file}', f'--badge={badge}']) == code
  assert io.read_json(file)['schema_version'] == 1
  assert io.read_json(badge) == {
    'schemaVersion': 1,
    'label': 'privacy rules',
    'message': message,
    'color': color,
  }


def read_action():
  """The inputs of action.yml, and its step that checks."""
  action = yaml.safe_load((ROOT / 'action.yml').read_text('utf-8'))
  (step,) = (x for x in action['runs']['steps'] if 'epe-jax' in x['run'])
  return action['inputs'], step


_FAULTY = """
import sys
from epe_jax.conformance.example import GaussianMean

class Exits(GaussianMean):
  def aggregate(self, updates, weights):
    sys.exit(0)

class Dict(GaussianMean):
  def aggregate(self, updates, weights):
    return dict(enumerate(super().aggregate(updates, weights)))

class Raises(GaussianMean):
  def aggregate(self, updates, weights):
    raise ValueError('shapes (2,) and (3,)')

class Prints(GaussianMean):
  def aggregate(self, updates, weights):
    print('a round')
    return super().aggregate(updates, weights)

class Rounds(GaussianMean):
  def aggregate(self, updates, weights):
    return [x.round() for x in super().aggregate(updates, weights)]
"""


@pytest.mark.parametrize('code', [0, 1, None])
def test_a_module_that_exits_is_no_check_that_passed(code, tmp_path, capsys):
  path = tmp_path / 'exits.py'
  path.write_text(f'import sys\nsys.exit({code})\n')
  assert cli.main(['check', f'{path}:make', SHAPES]) == 2
  assert 'exits.py, line 2: SystemExit' in ' '.join(
    capsys.readouterr().err.split()
  )


@pytest.mark.integration
@pytest.mark.parametrize(
  ('name', 'code', 'message'),
  [
    ('Exits', 2, 'faulty.py, line 7: SystemExit: 0'),
    ('Dict', 2, 'aggregate returned a dict; return its tensors in the order'),
    ('Raises', 2, 'faulty.py, line 15: ValueError: shapes (2,) and (3,)'),
    ('Rounds', 3, 'Not checked, but required: noise_scale, clipping.'),
    ('Prints', 0, 'a round'),
  ],
)
def test_what_a_mechanism_does_wrong_is_said(
  name, code, message, tmp_path, capsys
):
  path = tmp_path / 'faulty.py'
  path.write_text(_FAULTY)
  assert cli.main(['check', f'{path}:{name}', SHAPES, '--format=json']) == code
  out, err = capsys.readouterr()
  assert message in ' '.join(err.split())
  if code != 2:
    assert json.loads(out)['schema_version'] == 1


_HOSTILE = """
import atexit
import os
import signal
import sys
import threading
import time
from epe_jax.conformance import session
from epe_jax.conformance.example import GaussianMean, NoNoiseOnBiases
from epe_jax.conformance.rules import processes

# Rounds may take a second, and no further processes are started.
session._MAX_SECONDS, processes._is_fresh = 0.5, True
is_first = True

def wait_for_ever():
  while True:
    time.sleep(0.01)

class Does(GaussianMean):
  def aggregate(self, updates, weights):
    global is_first
    if is_first:
      self.act()
    is_first = False
    return super().aggregate(updates, weights)

class EndsProcess(Does):
  def act(self): os._exit(0)

class InterruptsLater(GaussianMean):
  def aggregate(self, updates, weights):
    global is_first
    if not is_first:
      raise GeneratorExit
    is_first = False
    return super().aggregate(updates, weights)

class Kills(Does):
  def act(self): os.kill(os.getpid(), signal.SIGKILL)

class Hangs(Does):
  def act(self): wait_for_ever()

class RetriesForEver(Does):
  def act(self):
    while True:
      try:
        wait_for_ever()
      except BaseException:
        continue

class HasThread(Does):
  def act(self): threading.Thread(target=wait_for_ever).start()

class BreaksAndEndsAtExit(NoNoiseOnBiases):
  def __init__(self, claim):
    super().__init__(claim)
    atexit.register(os._exit, 0)

class WritesToDescriptor(Does):
  def act(self): os.write(1, b'written')

"""


@pytest.mark.integration
@pytest.mark.parametrize(
  ('name', 'code', 'message'),
  [
    ('EndsProcess', 2, 'ended with status 0 and without a report'),
    ('InterruptsLater', 2, 'GeneratorExit'),
    ('Kills', 2, 'ended with status -9 and without a report'),
    ('Hangs', 2, 'the mechanism did not end within 1 s'),
    ('RetriesForEver', 2, 'did not end within 4 s, and was killed'),
    ('HasThread', 0, ''),
    ('BreaksAndEndsAtExit', 1, ''),
    ('WritesToDescriptor', 0, 'written'),
  ],
)
def test_the_status_is_that_of_the_report_whatever_a_mechanism_does(
  name, code, message, tmp_path, capsys, monkeypatch
):
  path = tmp_path / 'hostile.py'
  path.write_text(_HOSTILE)
  argv = ['check', f'{path}:{name}', SHAPES, '--format=json']
  if code == 2:
    argv.append('--budget=1')
  if 'killed' in message:
    monkeypatch.setattr(check, '_BEGIN', 4.0 - 3 * 20.0)
  assert cli.main(argv) == code
  out, err = capsys.readouterr()
  assert message in err
  assert bool(out) == (code != 2)
  if out:
    assert json.loads(out)['schema_version'] == 1


def has_ended(pid):
  """Whether a process is gone, or waits for its parent to take note of that."""
  try:
    return ' Z ' in pathlib.Path(f'/proc/{pid}/stat').read_text()
  except FileNotFoundError:
    return True


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != 'linux', reason='it reads /proc')
@pytest.mark.parametrize(
  ('signum', 'code'),
  [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGKILL, -9)],
)
def test_the_process_of_a_check_ends_with_the_command(signum, code, tmp_path):
  path, pid = tmp_path / 'hangs.py', tmp_path / 'pid'
  path.write_text(
    'import os, pathlib, time\n'
    f'pathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\n'
    'time.sleep(1000)\n'
  )
  begin = 'from epe_jax import cli; sys.exit(cli.main())'
  command = python_path.make_command(begin, 'check', f'{path}:make')
  with subprocess.Popen(command) as process:
    while not (pid.exists() and pid.read_text()):
      assert process.poll() is None
      time.sleep(0.1)
    process.send_signal(signum)
  assert process.returncode == code
  while not has_ended(pid.read_text()):
    time.sleep(0.1)


def test_the_action_gives_flags_that_exist_and_their_defaults():
  inputs, step = read_action()
  values = flags.FlagValues()
  check.define_flags(values)
  given = re.findall(r'--(\w+)=', step['run'])
  assert {*given} <= {*values}
  used = re.findall(r'inputs\.([\w-]+)', ' '.join(step['env'].values()))
  assert sorted(used) == sorted(inputs)
  # What is pasted into a script may be a command.
  assert '${{' not in step['run']
  # That of epsilon excludes it.
  assert inputs['noise-multiplier']['default'] == ''
  for flag in {*given} - {'report', 'badge', 'noise_multiplier'}:
    default = inputs[flag.replace('_', '-')]['default']
    assert default == str(values[flag].default)


@pytest.mark.integration
@pytest.mark.parametrize(
  ('name', 'code'), [('make', 0), ('NoNoiseOnBiases', 1)]
)
def test_the_action_writes_a_report_a_badge_and_a_summary(name, code, tmp_path):
  inputs, step = read_action()
  given = {key: entry.get('default') for key, entry in inputs.items()}
  given |= {'module': f'{EXAMPLE}:{name}', 'shapes': '20x30,30'}
  summary = tmp_path / 'summary.md'
  environment = os.environ | {
    key: given[text.split('inputs.')[1].split()[0]]
    for key, text in step['env'].items()
  }
  environment['GITHUB_STEP_SUMMARY'] = str(summary)
  environment['PYTHONPATH'] = str(ROOT)
  programs = pathlib.Path(sys.executable).parent
  environment['PATH'] = f'{programs}{os.pathsep}{environment["PATH"]}'
  ended = subprocess.run(
    ['bash', '-eo', 'pipefail', '-c', step['run']],
    cwd=tmp_path,
    env=environment,
    check=False,
  )
  assert ended.returncode == code
  text = summary.read_text('utf-8')
  assert f'{code} failed, ' in text
  # All of it is code, whatever a mechanism prints.
  assert all(line.startswith('    ') for line in text.splitlines()[1:])
  report = io.read_json(tmp_path / 'privacy-check' / 'report.json')
  assert report['schema_version'] == 1
  badge = io.read_json(tmp_path / 'privacy-check' / 'badge.json')
  assert badge['color'] == ('red' if code else 'blue')


@pytest.mark.parametrize(
  ('argv', 'message'),
  [
    (['check'], 'give one factory, not 0'),
    (['check', 'nothing'], "'nothing' is not a factory"),
    (['check', ':make'], "':make' is not a factory"),
    (['check', 'no.such:make'], 'no.such:make cannot be imported'),
    (['check', 'no_such.py:make'], 'no_such.py:make cannot be imported'),
    (['check', 'math:nothing'], "math has no function 'nothing'; give"),
    (['check', 'math:sqrt', '--require=no'], "['no'] are no rules; give"),
    (['check', 'math:sqrt', '--shapes=2xa'], "--shapes='2xa'; give sizes"),
    (['check', 'math:sqrt', '--clip_norm=-1'], r'clip_norm=-1.0; give'),
  ],
)
def test_a_wrong_call_is_2(argv, message, capsys):
  assert cli.main(argv) == 2
  assert message in capsys.readouterr().err


@pytest.mark.parametrize(
  ('source', 'message'),
  [
    ('1 / 0', '{path}, line 1: ZeroDivisionError: division by zero\n'),
    ('def make(:', '{path}, line 1: SyntaxError: '),
    (
      'def make(): pass',
      '{path}:make: TypeError: make() takes 0 positional arguments but 1 was '
      'given. A factory is called with a claim, and aggregate ',
    ),
    ('def make(claim): pass', 'has no method aggregate(updates, weights)'),
    (
      'class make:\n'
      '  def __init__(self, claim): pass\n'
      '  def aggregate(self, updates, weights): return updates[999]',
      '{path}, line 3: IndexError: list index out of range\n',
    ),
  ],
)
def test_a_factory_that_fails_is_told_in_a_line(
  tmp_path, source, message, capsys
):
  path = tmp_path / 'mine.py'
  path.write_text(source)
  assert cli.main(['check', f'{path}:make']) == 2
  error = capsys.readouterr().err
  assert error.startswith('error: ')
  assert error.count('\n') == 1
  assert message.format(path=path) in error


@pytest.mark.integration
def test_the_example_checks_both_of_its_mechanisms(capsys):
  runpy.run_path(EXAMPLE, run_name='__main__')
  out = ' '.join(capsys.readouterr().out.split())
  assert '20 rules checked: 20 passed, 0 failed' in out.split('GaussianMean')[1]
  broken = out.split('NoNoiseOnBiases')[1]
  assert '20 rules checked: 19 passed, 1 failed' in broken
  assert 'ε = ∞ for an ordinary client; ε = 4.38 was claimed. ' in broken


@pytest.mark.integration
@pytest.mark.parametrize(
  ('name', 'arguments', 'said'),
  [
    ('make', '', None),
    ('NoNoiseOnBiases', '', 'PRIVACY  tensor_noise: tensor without noise'),
    ('make', "require=['clipping']", None),
    (
      'make',
      "require=['resume', 'clipping']",
      'not checked, but required: resume',
    ),
    ('NoNoiseOnBiases', "allow=['tensor_noise']", None),
    ('make', "allow=['nonsense']", next(iter(conformance.RULES))),
  ],
)
def test_the_fixture_fails_what_is_broken_and_not_allowed_or_missing(
  name, arguments, said, tmp_path, monkeypatch, capsys
):
  monkeypatch.setenv('PYTEST_DISABLE_PLUGIN_AUTOLOAD', '1')
  # A module is imported once in a process, under its name.
  path = tmp_path / f'test_{name}_{abs(hash(arguments))}.py'
  path.write_text(
    f"""
import runpy
from epe_jax import conformance
example = runpy.run_path({EXAMPLE!r})
claim = conformance.Claim(1.0, 1.0, 10, ((20, 30), (30,)))
def test_it(check_privacy):
  check_privacy(example[{name!r}], claim, {arguments})
"""
  )
  options = '-q -p epe_jax.conformance.pytest_plugin -p no:cacheprovider'
  options += ' -c /dev/null -W ignore --import-mode=importlib'
  code = pytest.main([*options.split(), f'--rootdir={tmp_path}', str(path)])
  assert code == (pytest.ExitCode.TESTS_FAILED if said else pytest.ExitCode.OK)
  assert (said or '') in capsys.readouterr().out
