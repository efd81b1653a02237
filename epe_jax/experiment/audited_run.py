"""One audited run: who may make it, in which folder, and whether it is finished."""

from collections.abc import Sequence
import os
import tempfile

from absl import logging

from epe_jax import io
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.audit.attackers import THREAT_MODELS
from epe_jax.experiment import loop, run_result, workdirs
from epe_jax.experiment.run_result import RunResult
from epe_jax.experiment.setup import build
from epe_jax.experiment.setup.config import Config
from epe_jax.parallel import hosts


def run(
  config: Config,
  workdir: str | os.PathLike,
  *,
  observers: build.Observe | None = None,
  threat_models: Sequence[ThreatModel] = THREAT_MODELS,
  argv: Sequence[str] | None = None,
) -> RunResult | None:
  """Trains a model, audits it and writes the results into a workdir.

  A run that was killed resumes from its newest checkpoint; a finished run is not
  repeated, and its result is read. Of its files, those in private/ are for the
  auditor alone. A run without canaries is not audited. `report.write_report(workdir)`
  writes the report. All devices share the work. Each of several processes must call
  this function, and the first one writes.

  Args:
    config: every field of the config, as the files in configs/ give it.
    workdir: a folder for this run alone, which is made if it is missing.
    observers: your own observers in addition to those of the package, name ->
      canaries -> `audit.Observer`. Their scores are in the record. A resumed run
      needs the same, of which only names, shapes and dtypes can be checked.
    threat_models: the attackers that are estimated, ordered by their knowledge,
      such as your own followed by `audit.THREAT_MODELS`.
    argv: the words of the command line that make this run, for its report.

  Returns:
    The content of result.json; None in all processes but the first.

  Raises:
    ValueError, FileNotFoundError: a field or the data are wrong; or the workdir
      belongs to another process, or holds a run of another config, or one that
      began with other data, observers, secret or settings of JAX.
    FloatingPointError: training has diverged; or, as `arithmetic.Miscomputed`, the
      devices compute wrong numbers.
    stopping.Stopped: Ctrl-C or SIGTERM came, the round was finished and saved.
    OSError: a disk is full or not writable.
  """
  with io.name_disk_errors(workdir):
    config = build.check_fields(config)
    if hosts.is_primary():
      return _run_or_read(config, workdir, observers, threat_models, argv)
    # The other processes write the same files, into a temporary folder.
    with tempfile.TemporaryDirectory() as scratch:
      _run_or_read(config, scratch, observers, threat_models, argv)
    return None


def _run_or_read(
  config: Config,
  workdir: str | os.PathLike,
  observers: build.Observe | None,
  threat_models: Sequence[ThreatModel],
  argv: Sequence[str] | None,
) -> RunResult | None:
  """Makes the run of a checked config, or reads it if it is finished."""
  files, result = workdirs.workdir_at(workdir), None
  workdirs.reserve(files.folder, config)
  if not _is_finished(files):
    with workdirs.lock(files):
      # Another process may have changed it before it released the lock.
      workdirs.reserve(files.folder, config)
      if workdirs.clear_other_run(files, config):
        loop.log_stderr(
          f'{files.folder} had a run of another config without a saved round; '
          'this run replaces it.'
        )
      if not _is_finished(files):
        result = loop.train(config, files, observers, threat_models, argv=argv)
  # A finished run needs the secrets of its noise and sampling no more.
  workdirs.remove_secrets(files)
  if result is None and hosts.is_primary():
    logging.info('%s is finished; reading its result.', files.folder)
    result = run_result.load_result(files.result)
    known = {*THREAT_MODELS, *(x.threat_model for x in result.audit.attacks)}
    if others := [x.key for x in threat_models if x not in known]:
      loop.log_stderr(
        f'{files.folder} is finished and has nothing of the attackers {others}; '
        'audit.evaluate(audit.load_record(...), threat_models=...) scores its record '
        'for others.'
      )
  return result


def _is_finished(files: workdirs.Workdir) -> bool:
  """Says in all processes whether the first one has a result."""
  return bool(hosts.broadcast_from_primary(int(files.result.exists())))
