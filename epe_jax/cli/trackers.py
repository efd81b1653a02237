"""A finished run in an experiment tracker: its ε as metrics, result.json as an artifact.

What is sent is what may be published, once the run has ended: the numbers of rounds, and
how long a run took, are for the auditor alone. Where it is sent is for
the environment to say, such as MLFLOW_TRACKING_URI or WANDB_PROJECT.
"""

from collections.abc import Mapping, Sequence
import importlib
import math
import pathlib

from epe_jax import extras
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import leaks

# Names of metrics stay, whatever the rows of a page are called.
_ROWS = 'final_model', 'every_round', 'worst_case'


def check(names: Sequence[str]) -> None:
  """Raises a ModuleNotFoundError if the package of a tracker is not installed."""
  with extras.explain_missing():
    for name in names:
      importlib.import_module(name)


def log(names: Sequence[str], result: RunResult, path: pathlib.Path) -> None:
  """Logs a finished run as one run of each tracker.

  Args:
    names: of `TRACKERS`.
    result: of the run.
    path: its result.json.
  """
  metrics = list_metrics(result)
  for name in names:
    TRACKERS[name](metrics, path)


def list_metrics(result: RunResult) -> dict[str, float]:
  """epsilon/WHO/at_least, .../about and .../at_most, of each attacker of the report.

  They are of a canary; epsilon/client/at_most is of a client who takes part as often
  as any. What was not measured or is not known has none.
  """
  metrics = {'epsilon/client/at_most': result.clients_analytic_epsilon}
  for who, leak in zip(_ROWS, leaks.find_leaks(result)):
    values = {
      'at_least': leak.at_least and float(leak.at_least.epsilon),
      'about': leak.about and float(leak.about.epsilon),
      'at_most': None if math.isnan(leak.at_most) else leak.at_most,
    }
    metrics |= {
      f'epsilon/{who}/{key}': x for key, x in values.items() if x is not None
    }
  return metrics


def _log_to_mlflow(metrics: Mapping[str, float], path: pathlib.Path) -> None:
  mlflow = importlib.import_module('mlflow')
  with mlflow.start_run():
    mlflow.log_metrics(dict(metrics))
    mlflow.log_artifact(str(path))


def _log_to_wandb(metrics: Mapping[str, float], path: pathlib.Path) -> None:
  wandb = importlib.import_module('wandb')
  # Without what is printed, and statistics of the machine.
  settings = wandb.Settings(console='off', x_disable_stats=True)
  with wandb.init(settings=settings) as run:
    run.log(dict(metrics))
    artifact = wandb.Artifact('result', type='privacy-audit')
    artifact.add_file(str(path))
    run.log_artifact(artifact)


TRACKERS = {'mlflow': _log_to_mlflow, 'wandb': _log_to_wandb}
"""The name of a package, of its extra and of its flag -> what logs a run to it."""
