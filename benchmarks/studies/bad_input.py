"""Values that no field of a config and no argument of a function may have."""

import functools
import reprlib

from epe_jax import io
from epe_jax.experiment.setup import config_checks, config_files
from studies import trials
from studies.trials import Trial
from tests import test_arguments

_VALUES = (
  *('', 'x', '1', -1, 0, 1, 1.5, 10**30, float('nan'), float('inf'), None),
  *(True, [], [1], {}),
)


def try_config_checks(name: str) -> list[Trial]:
  """Sets each field of a config to values of all kinds.

  Args:
    name: of a config.
  """
  done = []
  fields = io.flatten(config_files.load_config(name).to_dict())
  for field in fields:
    for value in _VALUES:
      config = config_files.load_config(name)
      *outer, last = field.split('.')
      group = functools.reduce(lambda x, part: x[part], outer, config)
      with config.ignore_type():
        group[last] = value
      call = functools.partial(config_checks.check_config, config)
      done.append(_try(f'config {name}', field, value, call))
  return done


def try_arguments() -> list[Trial]:
  """Calls every public function of `epsilon` and `accounting` with wrong numbers."""
  return [
    _try(
      'epsilon, accounting',
      argument,
      wrong,
      functools.partial(
        test_arguments.FUNCTIONS[name],
        **{**test_arguments.CALLS[name], argument: wrong},
      ),
      detail=f'{name}({argument}={reprlib.repr(wrong)})',
      is_wrong=True,
    )
    for name, argument, wrong in test_arguments.cases()
  ]


def _try(
  subject: str, name: str, value, call, *, detail: str = '', is_wrong=False
) -> Trial:
  detail = detail or f'{name}={reprlib.repr(value)}'
  outcome, reason = trials.SAME, ''
  try:
    call()
    if is_wrong:
      outcome, reason = trials.LOST, 'it is accepted'
  except (TypeError, ValueError) as error:
    reason = str(error)[:200]
    # The group names the field of a value that is itself a group.
    is_named = name in str(error)
    outcome = trials.REFUSED if is_named else trials.LOST
  except Exception as error:
    outcome, reason = trials.LOST, repr(error)[:200]
  return Trial('bad input', subject, detail, outcome, reason)
