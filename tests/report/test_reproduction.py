"""The command to repeat a run is the one that made it."""

import dataclasses
import shlex

import pytest

from epe_jax.audit import results
from epe_jax.cli import run as command
from epe_jax.report import page, report
from tests import recorded_runs


@pytest.mark.parametrize(
  'place',
  [
    [],
    ['--workdir=runs/a', '--num_processes=2', '--process_id', '1'],
    ['-workdir', '/home/ada/runs', '--coordinator=host:1234'],
  ],
)
def test_the_command_is_the_one_that_was_typed_but_for_its_place(place):
  typed = ['digits:smoke', '--config.seed', '-3', '--config.x=a b', '--nox']
  argv = command._leave_out_places([typed[0], *place, *typed[1:]])
  assert argv == typed
  result = dataclasses.replace(recorded_runs.result(), argv=argv)
  (text, code), _ = report.list_commands(result)
  assert text == 'To repeat the run in a new directory:'
  words = shlex.split(code.replace('\\\n', ''))
  assert words == ['epe-jax', 'run', *typed, '--workdir=NEW']
  assert code.startswith('epe-jax run digits:smoke \\\n  --config.seed')


def test_a_run_that_no_command_made_is_read_from_its_workdir():
  result = recorded_runs.result(audit=results.Audit(()))
  (text, code), _ = report.list_commands(result)
  assert 'the config in its workdir' in text
  compile(code, 'code', 'exec')
  assert f'```python\n{code}' in page.render_markdown(
    report.make_page(result, {})
  )
