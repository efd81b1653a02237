"""The commands that reproduce a run and its report."""

from collections.abc import Sequence
import shlex

from epe_jax.experiment.run_result import RunResult


def list_commands(result: RunResult) -> list[tuple[str, str]]:
  """The purpose and the text of each command that reproduces a run."""
  again = 'To repeat the run in a new directory'
  if not result.is_simulation:
    again += ' (with new noise and clients)'
  if result.argv is None:
    training = (
      f'{again}, from the config in its workdir:',
      'import json\n'
      'from ml_collections import config_dict\n'
      'from epe_jax.experiment import audited_run\n\n'
      "with open('WORKDIR/config.json') as file:\n"
      '  config = config_dict.ConfigDict(json.load(file))\n'
      "audited_run.run(config, 'NEW')",
    )
  else:
    training = f'{again}:', _write_command(result.argv)
  return [
    training,
    (
      'To write this page and its figures again, without training:',
      'epe-jax report WORKDIR',
    ),
  ]


def _write_command(argv: Sequence[str]) -> str:
  """The command line of a run, with a line per flag."""
  text = 'epe-jax run'
  for word in (*argv, '--workdir=NEW'):
    text += (' \\\n  ' if word.startswith('-') else ' ') + shlex.quote(word)
  return text
