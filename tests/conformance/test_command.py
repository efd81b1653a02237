"""The command `epe-jax check`, its script, the example and the pytest fixture."""

import json
import pathlib
import runpy

import pytest

from epe_jax import cli, conformance
from tests import in_process

EXAMPLE = str(pathlib.Path(conformance.__file__).with_name('example.py'))
SHAPES = '--shapes=20x30,30'


def test_nothing_broken_is_0(capsys):
  assert cli.main(['check', f'{EXAMPLE}:make', SHAPES]) == 0
  assert '0 of 16 rules' in capsys.readouterr().out


def test_a_broken_rule_is_1_and_json_says_which(capsys):
  code = cli.main(['check', f'{EXAMPLE}:NoNoiseOnBiases', SHAPES, '--json'])
  assert code == 1
  body = json.loads(capsys.readouterr().out)
  (broken,) = (r for r in body['results'] if r['status'] == 'broken')
  assert broken['rule'] == 'tensor_noise'
  assert broken['finding']['epsilon'] == 'Infinity'
  assert body['epsilon'] == 'Infinity'


def test_rules_that_were_not_checked_are_counted_in_the_last_line(capsys):
  assert cli.main(['check', f'{EXAMPLE}:make', SHAPES]) == 0
  last = capsys.readouterr().out.rstrip().split('\n\n')[-1]
  assert ' '.join(last.split()) == (
    '0 broken, 16 passed, 3 not checked: clip_norm, resume, add_or_remove.'
  )


@pytest.mark.parametrize(
  ('required', 'code'), [('clipping', 0), ('clipping,resume', 1), ('all', 1)]
)
def test_a_required_rule_that_was_not_checked_is_1(required, code, capsys):
  argv = ['check', f'{EXAMPLE}:make', SHAPES, f'--require={required}']
  assert cli.main(argv) == code
  assert ('resume' in capsys.readouterr().err) == bool(code)


@pytest.mark.parametrize(
  ('argv', 'message'),
  [
    ([], 'usage: epe-jax COMMAND'),
    (['chek'], "'chek' is not a command"),
    (['check'], 'give one factory, not 0'),
    (['check', 'nothing'], "'nothing' is no factory"),
    (['check', 'no.such:make'], "'no.such' cannot be imported"),
    (
      ['check', 'no/such.py:make'],
      'cannot be imported: there is no such file;',
    ),
    (['check', 'math:nothing'], "'math' has no function 'nothing'"),
    (['check', 'math:sqrt', '--nonsense'], 'nonsense'),
    (['check', 'math:sqrt', '--require=no'], "['no'] are no rules; give"),
    (['check', 'math:sqrt', '--shapes=2xa'], "--shapes='2xa'; give sizes"),
    (['check', 'math:sqrt', '--clip_norm=-1'], r'clip_norm=-1.0; give'),
    (['check', 'math:sqrt', '--budget=0'], 'budget'),
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
    (
      'def make(claim): raise TypeError("No.")',
      '{path}, line 1: TypeError: No\n',
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


def test_help_lists_the_flags(capsys):
  assert cli.main(['check', '--help']) == 0
  assert '--noise_multiplier' in capsys.readouterr().out


def test_the_script_is_the_command():
  ended = in_process.run_script('check', f'{EXAMPLE}:NoNoiseOnBiases', SHAPES)
  assert ended.returncode == 1
  assert 'tensor without noise' in ended.stdout


def test_the_example_checks_both_of_its_mechanisms(capsys):
  runpy.run_path(EXAMPLE, run_name='__main__')
  out = ' '.join(capsys.readouterr().out.split())
  assert '0 of 16 rules' in out.split('GaussianMean')[1]
  broken = out.split('NoNoiseOnBiases')[1]
  assert '1 of 16 rules' in broken
  assert 'ε = ∞ for an ordinary client; claimed 4.38. ' in broken


@pytest.fixture
def run_pytest(tmp_path, monkeypatch):
  """Exit status of a test that uses the fixture."""
  monkeypatch.setenv('PYTEST_DISABLE_PLUGIN_AUTOLOAD', '1')

  def run(name, *arguments):
    # A module is imported once in a process, under its name.
    path = tmp_path / f'test_{name}_{abs(hash(arguments))}.py'
    path.write_text(
      f"""
import runpy
from epe_jax import conformance
example = runpy.run_path({EXAMPLE!r})
claim = conformance.Claim(1.0, 1.0, 10, ((20, 30), (30,)))
def test_it(check_privacy):
  check_privacy(example[{name!r}], claim, {', '.join(arguments)})
"""
    )
    plugin = 'epe_jax.conformance.pytest_plugin'
    options = ['-q', '-p', plugin, '-p', 'no:cacheprovider', '-c', '/dev/null']
    options += [
      '-W',
      'ignore',
      '--import-mode=importlib',
      f'--rootdir={tmp_path}',
    ]
    return pytest.main([*options, str(path)])

  return run


@pytest.mark.integration
def test_the_fixture_passes_and_fails_tests(run_pytest, capsys):
  assert run_pytest('make') == pytest.ExitCode.OK
  capsys.readouterr()
  assert run_pytest('NoNoiseOnBiases') == pytest.ExitCode.TESTS_FAILED
  assert 'PRIVACY  tensor_noise: tensor without noise' in (
    capsys.readouterr().out
  )


@pytest.mark.integration
def test_the_fixture_requires_rules(run_pytest, capsys):
  assert run_pytest('make', "require=['clipping']") == pytest.ExitCode.OK
  code = run_pytest('make', "require=['resume', 'clipping']")
  assert code == pytest.ExitCode.TESTS_FAILED
  assert 'not checked, but required: resume' in capsys.readouterr().out


@pytest.mark.integration
def test_the_fixture_allows_rules_by_their_names(run_pytest, capsys):
  allow = "allow=['tensor_noise']"
  assert run_pytest('NoNoiseOnBiases', allow) == pytest.ExitCode.OK
  assert run_pytest('make', "allow=['nonsense']") == (
    pytest.ExitCode.TESTS_FAILED
  )
  assert next(iter(conformance.RULES)) in capsys.readouterr().out
