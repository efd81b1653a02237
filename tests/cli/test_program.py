"""The program epe-jax: its commands, help, exit statuses and messages."""

import errno
import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys

from absl import flags
import numpy as np
import pytest

from epe_jax import audit
from epe_jax.cli import command_flags, config_flags, program
from epe_jax.report import report, terminal
from tests import installed, recorded_runs


def run(capsys, *argv):
  """The exit status, and what was printed to stdout and stderr."""
  code = program.main([*map(str, argv)])
  return code, *capsys.readouterr()


@pytest.fixture
def csv(tmp_path):
  """Scores of which the first bound is well above 1."""
  rng = np.random.default_rng(0)
  path = tmp_path / 'scores.csv'
  rows = zip(rng.normal(3, 1, 200).tolist(), rng.normal(0, 1, 200).tolist())
  lines = [f'{one!r},{other!r}' for one, other in rows]
  path.write_text('\n'.join(['in,out', *lines]) + '\n')
  return path


def test_help_lists_every_command_with_a_line_each(capsys):
  for argv in (['--help'], ['-h'], ['help']):
    code, out, _ = run(capsys, *argv)
    assert code == 0
    for name, summary in program.COMMANDS.items():
      assert f'  {name:<8}  {summary}\n' in out


@pytest.mark.parametrize('name', program.COMMANDS)
def test_the_help_of_a_command_has_examples_and_all_of_its_flags(capsys, name):
  code, out, _ = run(capsys, name, '--help')
  assert code == 0
  assert out.count(f'  epe-jax {name} ') >= 2
  module = sys.modules[f'epe_jax.cli.{name}']
  values = flags.FlagValues()
  module.define_flags(values)
  for flag in values:
    assert f'--{flag}:' in out or f'--[no]{flag}:' in out
  assert run(capsys, 'help', name) == (0, out, '')


def test_a_flag_of_several_commands_takes_the_same_kind_of_value():
  kinds = {}
  for name in program.COMMANDS:
    values = flags.FlagValues()
    importlib.import_module(f'epe_jax.cli.{name}').define_flags(values)
    for flag in values:
      kinds.setdefault(flag, set()).add(values[flag].flag_type())
  assert {'delta', 'claim', 'out', 'workdir', 'format'} <= kinds.keys()
  assert {flag: x for flag, x in kinds.items() if len(x) > 1} == {}


def test_help_needs_no_extra(capsys):
  helps = {name: run(capsys, name, '--help')[1] for name in program.COMMANDS}
  code = (
    'import contextlib, io, json\n'
    'from epe_jax.cli import program\n'
    'helps = {}\n'
    'for name in program.COMMANDS:\n'
    '  with contextlib.redirect_stdout(io.StringIO()) as out:\n'
    '    assert program.main([name, "--help"]) == 0\n'
    '  helps[name] = out.getvalue()\n'
    'print(json.dumps(helps))'
  )
  assert installed.run(code) == helps


class Terminal(io.StringIO):
  """A stdout that says it is a terminal."""

  encoding = 'utf-8'

  def isatty(self):
    return True


@pytest.mark.parametrize('columns', [80, 100, 200])
def test_text_is_as_wide_as_a_narrow_terminal(monkeypatch, tmp_path, columns):
  record_path = tmp_path / 'scores.npz'
  audit.write_record(record_path, recorded_runs.by_law())
  monkeypatch.setenv('COLUMNS', str(columns))
  stream = Terminal()
  monkeypatch.setattr(sys, 'stdout', stream)
  assert program.main(['estimate', str(record_path)]) == 0
  assert program.main(['check', '--help']) == 0
  lines = stream.getvalue().splitlines()
  longest = max(map(len, lines))
  assert longest <= columns
  assert longest > min(columns, 100) - 8
  # Beyond 100 columns lines are hard to read, and a pipe has no width.
  monkeypatch.setattr(sys, 'stdout', io.StringIO())
  assert terminal.measure_width(sys.stdout) == 100


def test_each_example_of_help_is_made_of_flags_that_exist(capsys):
  for name in program.COMMANDS:
    _, out, _ = run(capsys, name, '--help')
    module = sys.modules[f'epe_jax.cli.{name}']
    values = flags.FlagValues()
    module.define_flags(values)
    examples = out.split('\n\n')[1].replace('\\\n', ' ').splitlines()
    for line in examples:
      words = line.partition(f'epe-jax {name}')[2].split()
      left = values(['', *words], known_only=True)
      for word in left:
        assert not word.startswith('--') or word.startswith('--config.'), line


@pytest.mark.parametrize(
  ('argv', 'message'),
  [
    (['estimat'], "'estimat' is not a command. Did you mean 'estimate'?"),
    (['zzz'], "'zzz' is not a command. Give one of run, plan, estimate, "),
    (
      ['estimate', 'a.csv', '--delt=1'],
      "Unknown command line flag 'delt'. Did you mean: delta",
    ),
    (
      ['run', 'digits', '--rounds=10'],
      "Unknown command line flag 'rounds'. Did you mean: config.rounds ?",
    ),
    (['run'], 'give a config, such as digits or digits:smoke'),
    (['run', '--config.rounds=3'], 'but no config is named'),
    (['run', 'digits', 'emnist'], "'emnist' is not a flag"),
    (
      [
        *('plan', '--dim=100', '--rounds=9', '--clients_per_round=4'),
        *('--noise_multiplier=1', '--delta=1e-5', '--observed=1'),
      ],
      'error: --observed=1; give an integer >= 2.',
    ),
    (['data', 'x'], 'give --out'),
  ],
)
def test_a_wrong_call_is_2_and_says_what_is_right(capsys, argv, message):
  code, out, err = run(capsys, *argv)
  assert (code, out) == (2, '')
  assert err.startswith('error: ')
  assert message in err


# Edges that used to be tracebacks: each is one line with a cure.


@pytest.mark.parametrize(
  ('argv', 'message'),
  [
    (
      ['run', 'digits', '--config.roundz=3'],
      "the config has no field 'roundz'; did you mean 'rounds'?",
    ),
    (
      ['sweep', 'digits', '--axis=rounds=1,many'],
      "axis 'rounds' has the value 'many', which is of type str, and not int as "
      'rounds=20 of the config; give values of that type.',
    ),
  ],
)
def test_a_typing_error_is_one_line(capsys, argv, message):
  assert run(capsys, *argv) == (2, '', f'error: {message}\n')


def test_what_a_config_of_the_package_refuses_is_no_bug_where_it_is_installed(
  capsys, monkeypatch
):
  # As if all of it were below site-packages.
  monkeypatch.setattr(program, '_PACKAGES', {*installed.ROOT.parts})
  for argv in (('run', 'digits:smok'), ('sweep', 'digits', '--grid=noize')):
    code, _, err = run(capsys, *argv)
    assert (code, err[:7]) == (2, 'error: ')


def test_a_config_of_another_folder_is_one_line(capsys, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert run(capsys, 'run', 'configs/digits.py') == (
    2,
    '',
    f'error: configs/digits.py does not exist in {tmp_path}. Give the path of a '
    'file, or the name of a config that ships, which is found from anywhere: digits, '
    'emnist, stackoverflow.\n',
  )
  code, _, err = run(capsys, 'run', 'mine.py')
  assert code == 2
  assert 'mine.py does not exist in' in err
  assert not list(tmp_path.iterdir())


_PLAN = (
  *('plan', '--dim=2000', '--rounds=8', '--clients_per_round=20'),
  *('--noise_multiplier=1', '--observed=20', '--unobserved=20'),
)


@pytest.mark.integration
@pytest.mark.usefixtures('no_floors')
def test_a_delta_too_large_for_any_number_of_people_is_warned_of(
  capsys, csv, tmp_path
):
  path = tmp_path / 'scores.npz'
  audit.write_record(path, recorded_runs.by_law())
  of_file, of_plan = 'above 0.01', 'above 1/n for n = 20 clients'
  several = 'estimate', path, '--simultaneous', '--deltas=1e-5,0.3'
  assert of_file in run(capsys, *several)[2]
  for argv, said in (
    (('estimate', csv), of_file),
    (('estimate', path), of_file),
    (_PLAN, of_plan),
  ):
    code, _, err = run(capsys, *argv, '--delta=0.3')
    assert code == 0
    assert err.startswith(f'warning: δ = 0.3 is {said}'), argv
    code, out, err = run(capsys, *argv, '--delta=1')
    assert (code, out) == (2, '')
    assert err.startswith('error: --delta=1')
  # Of clients who take part in one round at most there are 160.
  argv = (*_PLAN, '--client_participations=1', '--delta=0.01')
  assert 'n = 160 clients' in run(capsys, *argv)[2]


def test_without_haiku_its_extra_is_named(capsys, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'haiku', None)
  monkeypatch.delitem(sys.modules, 'epe_jax.tasks.stackoverflow', raising=False)
  tasks = sys.modules.get('epe_jax.tasks')
  if tasks is not None:
    monkeypatch.delattr(tasks, 'stackoverflow', raising=False)
  code, _, err = run(
    capsys,
    *('run', 'stackoverflow:smoke', '--config.data.synthetic=True'),
    f'--workdir={tmp_path / "run"}',
  )
  # After lines of progress, where a machine is slow.
  assert (code, err.splitlines()[-1]) == (
    2,
    "error: haiku is not installed. Install it with the extra 'haiku': pip "
    "install '.[haiku]' in a checkout of epe_jax",
  )


@pytest.mark.integration
def test_a_terminal_without_greek_letters_is_written_to(csv):
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'epe_jax', 'estimate', csv),
      *('--delta=1e-5', '--claim=1'),
    ],
    capture_output=True,
    env={'PYTHONIOENCODING': 'ascii', 'PYTHONPATH': ':'.join(sys.path)},
    check=False,
  )
  assert done.returncode == 1, done.stderr
  text = done.stdout.decode('ascii')
  assert 'Claim eps <= 1: violated. eps >= ' in text
  assert '\\u' not in text


def test_what_an_encoding_lacks_is_spelt_out(monkeypatch):
  written = io.BytesIO()
  stream = io.TextIOWrapper(written, encoding='latin-1')
  monkeypatch.setattr(sys, 'stdout', stream)
  terminal.prepare_streams()
  print('90 %: ε ≥ 2 ± 1, 漢', flush=True)
  # What Latin-1 has stays as it is.
  assert written.getvalue() == 'eps >= 2 ± 1'.encode('latin-1').join(
    (b'90 %: ', b', \\u6f22\n')
  )
  stream.detach()


# Exit statuses.


def test_a_claim_is_violated_by_the_bound_that_was_fixed_beforehand(
  capsys, csv
):
  command = 'estimate', csv, '--delta=1e-5', '--claim=1'
  code, out, _ = run(capsys, *command)
  assert code == 1
  assert 'Claim ε ≤ 1: violated. ε ≥ ' in out
  assert 'with 95 % confidence' in out
  code, out, _ = run(capsys, *command[:-1], '--claim=9')
  assert code == 0
  assert 'Claim ε ≤ 9: not contradicted, which does not prove it' in out


def test_no_claim_is_judged_by_scores_with_a_reversed_sign(capsys, tmp_path):
  path = tmp_path / 'losses.csv'
  rows = [f'{i % 7},{i % 7 + 5}' for i in range(100)]
  path.write_text('\n'.join(['in,out', *rows]) + '\n')
  command = 'estimate', path, '--delta=1e-5', '--claim=1'
  code, out, err = run(capsys, *command)
  assert (code, out) == (2, '')
  assert 'error: --claim=1 cannot be judged: the sign is probably' in err
  assert 'give --higher=out' in err
  right = tmp_path / 'right.csv'
  right.write_text('\n'.join(['out,in', *rows]) + '\n')
  code, out, err = run(capsys, 'estimate', right, *command[1:])
  assert (code, out) == (2, '')
  assert f'see {path}' in err
  code, out, _ = run(capsys, *command, '--higher=out')
  assert code == 1
  assert 'Claim ε ≤ 1: violated' in out
  counts = tmp_path / 'results.json'
  counts.write_text('{"FN": 900, "FP": 990, "TN": 10, "TP": 100}')
  code, out, err = run(capsys, 'estimate', counts, '--delta=1e-5', '--claim=1')
  assert (code, out) == (2, '')
  assert '--claim=1 cannot be judged: ' in err


@pytest.mark.parametrize(
  ('argv', 'name'),
  [
    (('estimate', 'CSV', '--delta=1e-5', '--out=FILE'), 'out'),
    (('estimate', 'CSV', '--delta=1e-5', '--out=FILE/a'), 'out'),
    (('sweep', 'digits', '--axis=seed=0,1', '--workdir=FILE'), 'workdir'),
    (('run', 'digits:smoke', '--workdir=FILE'), 'workdir'),
    (('run', 'digits:smoke', '--workdir=FILE/run'), 'workdir'),
  ],
)
def test_a_file_where_a_folder_is_to_be_is_one_line(
  capsys, csv, tmp_path, argv, name
):
  file = tmp_path / 'file'
  file.write_text('mine')
  argv = [x.replace('CSV', str(csv)).replace('FILE', str(file)) for x in argv]
  code, out, err = run(capsys, *argv)
  assert (code, out) == (2, '')
  assert err.startswith(f'error: --{name}={file}')
  assert err.endswith(
    f'{file} is a file; give the path of a folder, which need not exist.\n'
  )
  assert file.read_text() == 'mine'


@pytest.mark.skipif(not os.path.isdir('/proc'), reason='needs a /proc')
@pytest.mark.parametrize(
  'argv',
  [
    ('run', 'digits:smoke', '--workdir=/proc/x'),
    ('sweep', 'digits', '--axis=seed=0,1', '--workdir=/proc/x'),
    ('data', 'a.npz', '--out=/proc/x'),
  ],
)
def test_a_path_where_even_root_makes_no_folder_is_one_line(capsys, argv):
  code, out, err = run(capsys, *argv)
  assert (code, out) == (2, '')
  assert err.startswith('error: ')
  assert ': /proc cannot be written (' in err
  assert err.endswith('have its permissions changed.\n')
  assert 'Errno' not in err


def test_an_error_of_the_system_begins_with_its_path(capsys, monkeypatch):
  def fail(*args):
    raise IsADirectoryError(errno.EISDIR, 'Is a directory', 'plans.md')

  monkeypatch.setattr('epe_jax.cli.plan.execute', fail)
  code, _, err = run(capsys, 'plan', '--dim=100', '--rounds=1')
  assert code == 2
  assert err == 'error: plans.md: Is a directory; give another path.\n'


def test_json_stays_json_beside_a_claim(capsys, csv):
  code, out, err = run(
    capsys, 'estimate', csv, '--delta=1e-5', '--claim=1', '--format=json'
  )
  assert code == 1
  assert out.startswith('{')
  assert out.endswith('}\n')
  assert 'violated' in err


def test_an_error_of_ours_is_no_violated_claim(capsys, csv, monkeypatch):
  def fail(*_, **settings):
    raise KeyError('ours')

  # As if it stood in the package.
  monkeypatch.setitem(globals(), '__name__', 'epe_jax.own')
  monkeypatch.setattr('epe_jax.scores.score_files.load', fail)
  code, _, err = run(capsys, 'estimate', csv, '--delta=1e-5')
  assert code == 70
  assert err.startswith('Traceback')
  assert "KeyError: 'ours'\nerror: this is a bug of epe_jax" in err


@pytest.mark.parametrize(
  'fail',
  [
    lambda: np.zeros(3) + np.zeros(2),
    lambda: json.loads('{'),
  ],
)
def test_what_libraries_raise_unforeseen_is_a_bug(
  capsys, csv, monkeypatch, fail
):
  monkeypatch.setattr(
    'epe_jax.audit.failed_checks.check_not_swapped', lambda *_: fail()
  )
  # As if it stood in the package.
  monkeypatch.setitem(fail.__globals__, '__name__', 'epe_jax.own')
  code, out, err = run(capsys, 'estimate', csv, '--delta=1e-5')
  assert (code, out) == (70, '')
  assert 'error: this is a bug of epe_jax, and not of what it was given' in err


def test_what_a_function_of_the_user_raises_is_no_bug(
  capsys, tmp_path, monkeypatch
):
  (tmp_path / 'mine_that_fails.py').write_text(
    "def rows():\n  raise ValueError('no such table')\n  yield\n"
  )
  monkeypatch.chdir(tmp_path)
  command = 'data', 'mine_that_fails:rows', '--out=out', '--workers=0'
  code, _, err = run(capsys, *command)
  assert code == 2
  assert 'no such table' in err
  assert 'bug' not in err


@pytest.mark.parametrize('line', ["{}['absent']", "int('one')"])
def test_what_a_function_of_the_user_did_not_foresee_is_told_with_its_line(
  capsys, tmp_path, monkeypatch, line
):
  (tmp_path / 'mine_of_a_bug.py').write_text(f'def rows():\n  yield {line}\n')
  monkeypatch.chdir(tmp_path)
  monkeypatch.delitem(sys.modules, 'mine_of_a_bug', raising=False)
  command = 'data', 'mine_of_a_bug:rows', '--out=out', '--workers=0'
  code, _, err = run(capsys, *command)
  assert code == 2
  assert err.startswith('Traceback')
  assert 'mine_of_a_bug.py, line 2: ' in err.splitlines()[-1]
  assert 'bug of epe_jax' not in err


def test_a_reason_has_its_traceback_when_it_is_asked_for(capsys, monkeypatch):
  command = 'estimate', 'absent.csv', '--delta=1e-5'
  _, _, plain = run(capsys, *command)
  assert 'Traceback' not in plain
  monkeypatch.setenv('EPE_JAX_TRACEBACK', '1')
  code, _, err = run(capsys, *command)
  assert code == 2
  assert err.startswith('Traceback (most recent call last):\n')
  assert err.endswith(plain)
  code, _, err = run(capsys, 'estimate', '--delt=1')
  assert code == 2
  assert err.startswith('Traceback (most recent call last):\n')


def test_ctrl_c_ends_a_command_with_one_line(monkeypatch, capsys):
  def stop(*_):
    raise KeyboardInterrupt

  monkeypatch.setattr(program, '_run', stop)
  code, out, err = run(capsys, 'plan')
  assert (code, out, err) == (130, '', 'Stopped.\n')


def test_a_report_that_is_stopped_says_that_the_same_command_goes_on(
  monkeypatch, capsys, tmp_path
):
  def end(code):
    raise SystemExit(code)

  # Without it the end of a program that loaded JAX would end the tests.
  monkeypatch.setattr(os, '_exit', end)
  monkeypatch.setattr(
    report, 'write_report', lambda _: signal.raise_signal(signal.SIGINT)
  )
  with pytest.raises(SystemExit) as stop:
    program.main(['report', str(tmp_path)])
  assert stop.value.code == 130
  assert capsys.readouterr().err.startswith('Stopped. To resume: ')


@pytest.mark.integration
def test_no_bound_that_assumes_a_shape_violates_a_claim(capsys, tmp_path):
  # Randomized response: ε = log 3, and nothing of a Gaussian.
  path = tmp_path / 'responses.csv'
  rows = ['1,0'] * 750 + ['0,1'] * 250
  path.write_text('\n'.join(['in,out', *rows]))
  code, out, _ = run(
    capsys, 'estimate', path, '--delta=1e-5', '--simultaneous', '--claim=1.2'
  )
  assert code == 0
  assert 'Claim ε ≤ 1.2: not contradicted' in out


@pytest.mark.parametrize(
  ('claim', 'status', 'output'),
  [(1, 1, '| :'), (1, 1, '>&- 2>&-'), (100, 0, '>&-')],
)
def test_a_verdict_does_not_depend_on_whether_somebody_reads_it(
  csv, claim, status, output
):
  command = f'{sys.executable} -m epe_jax estimate {csv} --delta=1e-5'
  shell = f'set -o pipefail; {command} --claim={claim} {output}'
  done = subprocess.run(
    ['bash', '-c', shell], capture_output=True, text=True, check=False
  )
  assert (done.returncode, done.stderr) == (status, '')


@pytest.mark.skipif(not os.path.exists('/dev/full'), reason='no /dev/full')
@pytest.mark.parametrize(
  ('arguments', 'unbuffered'),
  [('--help', ''), ('estimate {} --delta=1e-5', '1')],
)
def test_output_for_which_there_is_no_room_is_refused(
  csv, monkeypatch, arguments, unbuffered
):
  monkeypatch.setenv('PYTHONUNBUFFERED', unbuffered)
  command = f'{sys.executable} -m epe_jax {arguments.format(csv)} > /dev/full'
  done = subprocess.run(
    command, shell=True, capture_output=True, text=True, check=False
  )
  assert done.returncode == 2
  assert done.stderr == (
    'error: stdout: No space left on device; give another path.\n'
  )


@pytest.mark.integration
def test_a_second_run_prints_nothing_of_the_log_of_the_compiler(tmp_path):
  # Without what these tests have set, and JAX in this process.
  own = {'JAX_COMPILATION_CACHE_DIR', 'TF_CPP_MIN_LOG_LEVEL'}
  env = {name: x for name, x in os.environ.items() if name not in own}
  for name in ('first', 'second'):
    done = subprocess.run(
      [
        *(sys.executable, '-m', 'epe_jax', 'run', 'digits:smoke'),
        *('--config.rounds=1', f'--workdir={tmp_path / name}'),
      ],
      capture_output=True,
      env=env | {'XDG_CACHE_HOME': str(tmp_path / 'cache')},
      text=True,
      check=True,
    )
    assert not re.search(r'^[DIWE]\d{4} ', done.stderr, re.MULTILINE)
  assert [*tmp_path.glob('cache/epe_jax/compiled/*')]


@pytest.mark.integration
def test_the_package_is_the_program():
  done = subprocess.run(
    [sys.executable, '-m', 'epe_jax', '--version'],
    capture_output=True,
    text=True,
    check=True,
  )
  assert done.stdout.startswith('epe_jax 0.')


@pytest.mark.integration
def test_help_and_estimates_load_no_jax(csv):
  for argv in (
    *([name, '--help'] for name in program.COMMANDS),
    ['estimate', str(csv), '--delta=1e-5'],
  ):
    code = (
      'import sys\nfrom epe_jax.cli import program\n'
      f'assert program.main({argv!r}) == 0\n'
      'assert not {"filelock", "jax", "matplotlib", "ml_collections"} & sys.modules.keys()'
    )
    subprocess.run([sys.executable, '-c', code], check=True)


# Configs.


def parse(*argv):
  values = flags.FlagValues()
  command_flags.define(values, command_flags.CONFIG, command_flags.WORKDIR)
  return config_flags.parse(values, ['program', *argv])


@pytest.mark.parametrize(
  'argv',
  [
    ['digits:smoke', '--config.rounds=7'],
    ['--config', 'digits:smoke', '--config.rounds', '7'],
    ['--workdir=x', 'digits:smoke', '-config.rounds=7'],
  ],
)
def test_a_config_is_named_with_and_without_its_flag(argv):
  name, config, rest = parse(*argv)
  assert name == 'digits:smoke'
  assert (config.rounds, config.canaries.observed) == (7, 20)
  assert rest == []


def test_fields_are_set_by_their_type():
  _, config, _ = parse(
    *('digits', '--config.audit.delta=1e-6', '--noconfig.simulation'),
    '--config.server.optimizer=adam',
  )
  assert config.audit.delta == 1e-6
  assert config.simulation is False
  assert config.server.optimizer == 'adam'
