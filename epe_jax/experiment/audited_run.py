"""One audited run, from a config to an ε."""

import collections
from collections.abc import Callable, Sequence
from concurrent import futures
import contextlib
import functools
import os
import sys
import tempfile
import time
from typing import Any

from absl import logging
import jax
import numpy as np
import tqdm

from epe_jax import io, progress
from epe_jax.audit import (
  audited_algorithm,
  effective_dimension,
  evaluation,
  release,
  sequential,
)
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.audit.record import write_record
from epe_jax.audit.threat_models import THREAT_MODELS
from epe_jax.experiment import (
  analytic,
  build,
  checkpoint,
  chunk_size,
  config_fields,
  dispatch,
  event_files,
  inputs,
  metrics,
  model_evaluation,
  model_file,
  programs,
  randomness,
  run_result,
  stopping,
  summary,
  watch,
  workdirs,
)
from epe_jax.experiment.run_result import RunResult
from epe_jax.parallel import in_flight, sharding
from epe_jax.types import Array


def run(
  config: build.Config,
  workdir: str | os.PathLike,
  *,
  observers: build.Observe | None = None,
  threat_models: Sequence[ThreatModel] = THREAT_MODELS,
) -> RunResult | None:
  """Trains a model, audits it and writes what it finds into a workdir.

  A run that was killed resumes from its newest checkpoint; a finished run is
  not made again, and its result is read back. Of the files that `workdirs`
  describes, result.json and model.npz may be published, and those in private/
  are for the auditor alone. A run without any canaries is not audited: it has
  no scores.npz and no estimates, and the analytic ε of canaries is None. All
  devices share the work. Of several processes each has to call this function,
  and the first one writes.

  Args:
    config: the config of the run, with every field set, as the files in
      configs/ give it.
    workdir: a folder for this run alone, which is made if it is missing.
    observers: your own observers beside those of the package, name -> canaries
      -> `audit.Observer`. Their scores are in the record; unless the run is a
      simulation, these are for the auditor alone. A run that is resumed needs
      observers of the same names, whose states have arrays of the same shapes
      and dtypes; that they also compute the same is for the caller to see to.
    threat_models: the attackers that are estimated, ordered by their knowledge,
      such as your own followed by `audit.THREAT_MODELS`. They play no part
      until training has ended. Of a finished run `audit.evaluate` estimates
      others from its record.

  Returns:
    What result.json says; None in all processes but the first.

  Raises:
    ValueError, FileNotFoundError: a field or the data are wrong, as
      `build.build` has it; or the workdir holds a run of another config,
      belongs to another process, or is of a run that began with other data,
      observers, secret or settings of JAX.
    FloatingPointError: training has diverged.
    stopping.Stopped: Ctrl-C or SIGTERM came, the round was finished and saved.
    OSError: a disk is full or may not be written.
  """
  with io.explain_disk_errors(workdir):
    config = config_fields.check_config(config)
    if sharding.is_primary():
      with workdirs.remove_if_refused(workdirs.workdir_at(workdir)):
        return _run_or_read(config, workdir, observers, threat_models)
    # The others write the same files, into a folder that is thrown away.
    with tempfile.TemporaryDirectory() as scratch:
      _run_or_read(config, scratch, observers, threat_models)
    return None


def _run_or_read(
  config: build.Config,
  workdir: str | os.PathLike,
  observers: build.Observe | None,
  threat_models: Sequence[ThreatModel],
) -> RunResult | None:
  """Makes the run of a checked config unless it is finished, or reads it."""
  files, result = workdirs.workdir_at(workdir), None
  workdirs.claim(files.folder, config)
  if not _is_finished(files):
    with workdirs.lock(files):
      # Another process may have had it until now.
      workdirs.claim(files.folder, config)
      if workdirs.clear_failed_start(files, config):
        _say(
          f'{files.folder} had a run of another config without a finished round; '
          'this run replaces it.'
        )
      if not _is_finished(files):
        workdirs.remove_drafts(files)
        with stopping.listen(
          'Finishing the round. A second signal stops at once, without saving.'
        ) as requests:
          result = _train(config, files, observers, threat_models, requests)
  # Noise and sampling of a run that has ended are nobody's business.
  workdirs.remove_secrets(files)
  if result is None and sharding.is_primary():
    logging.info('%s is finished; reading its result.', files.folder)
    result = run_result.load_result(files.result)
  return result


def _is_finished(files: workdirs.Workdir) -> bool:
  """Says in all processes whether the first one has a result."""
  return bool(sharding.broadcast_from_primary(int(files.result.exists())))


def _train(
  config: build.Config,
  files: workdirs.Workdir,
  observers: build.Observe | None,
  threat_models: Sequence[ThreatModel],
  requests: stopping.Requests,
) -> RunResult | None:
  """Makes a run: the one long function, to be read from top to bottom."""
  mesh = sharding.mesh()

  # 1. Build and check. Every error of config or data comes before the first
  # round.
  secret = randomness.load_or_draw_secret(config, files)
  with _phase('loading data and model'):
    setup = build.build(config, secret=secret, mesh=mesh, observers=observers)
  setup = chunk_size.set_chunk_size(config, setup, mesh=mesh)
  with _phase('computing the analytic ε'):
    privacy = analytic.analyze_privacy(config, setup)

  # 2. Write down what will be run, or check that it is what the run began with.
  identity = ''
  if sharding.is_primary():
    identity = inputs.write_inputs(config, files, setup, secret)

  # 3. Start, or resume from the newest good checkpoint. The initial state is
  # made by one program, so that no array of the model's size is made on the
  # way.
  init = jax.jit(setup.algorithm.init)
  state = init(sharding.replicate(mesh, setup.params))
  jitted = programs.make_programs(setup, state, mesh)
  draws = programs.replicate_draws(setup.draws, mesh)
  training_key = sharding.replicate_key(mesh, setup.randomness.training)
  noise_key = sharding.replicate_key(mesh, setup.randomness.noise)
  if chunk_size.is_tried(config):
    # What is tried has the memory that training will have, and its own state.
    del state
    setup = chunk_size.halve_until_it_fits(
      config,
      setup,
      lambda cohorts: jitted.advance(
        draws,
        init(sharding.replicate(mesh, setup.params)),
        cohorts,
        training_key,
        noise_key,
      ),
      mesh=mesh,
    )
    state = init(sharding.replicate(mesh, setup.params))
  evaluate = model_evaluation.evaluator(setup.task, mesh=mesh)
  claims = config.audit.claim is not None and bool(setup.observers)
  watch_claim = watch.make_watch(config, setup, state) if claims else None
  checkpoints = checkpoint.checkpoints(files.checkpoints, of=identity)
  # The seconds that each round took, and those that it waited for its cohort.
  times = np.zeros((2, config.rounds), np.float32)
  fresh = (audited_algorithm.drop_buffers(state), times)
  start, (without_buffers, times) = checkpoints.restore(fresh) or (0, fresh)
  flushes = _list_flushes(config, claims)
  state = audited_algorithm.restore_buffers(
    without_buffers, state, since_flush=min(start % n for n in flushes)
  )
  # What observers of a user keep, nobody else knows.
  buffer = None if observers else audited_algorithm.count_places(state)
  del fresh, without_buffers
  if start == 0:
    files.metrics.unlink(missing_ok=True)
    with _phase('evaluating the initial model'):
      test_metrics = evaluate(state.algorithm.params, setup.test)
    metrics.append_line(files.metrics, {'round': 0, **test_metrics})
  else:
    metrics.rewind_to(files.metrics, start)
    _say(f'Continuing from round {start} of {config.rounds}, {files.folder}.')

  events = event_files.no_event_files()
  if config.tensorboard:
    events = event_files.open_event_files(files.events, start=start)

  # 4. Train, audited. Metrics come back while the next rounds are in flight.
  groups = dispatch.iterate_groups(config, setup, start, mesh)
  queue: collections.deque[dispatch.Group] = collections.deque()
  idle_since, test_metrics = time.perf_counter(), {}
  # Waits for the program that scores, which is compiled beside the rounds.
  wait_for_score = lambda message: None
  # What the progress bar shows, and whether it was told of a rejected claim.
  shown, alarmed = {}, False
  bar, stops = progress.bar(disable=True), False
  # From here on a request to stop finishes the round and saves.
  requests.can_defer = True
  with (
    futures.ThreadPoolExecutor(1, 'fetch') as fetching,
    contextlib.ExitStack() as stack,
  ):
    # However training ends, the checkpoint that is being written is completed.
    stack.callback(checkpoints.close)
    stack.callback(events.close)
    for request_time, (rounds, cohorts) in dispatch.time_requests(groups):
      start_time = time.perf_counter()
      if rounds.start == start:
        (state, round_metrics), wait_for_score = _compile_and_advance(
          requests,
          start,
          jitted,
          draws,
          state,
          cohorts,
          training_key,
          noise_key,
        )
        # What it says of time is about rounds, without compiling.
        bar = stack.enter_context(_progress_bar(config, start))
      else:
        state, round_metrics = jitted.advance(
          draws, state, cohorts, training_key, noise_key
        )
      del cohorts
      future = fetching.submit(dispatch.fetch_metrics, round_metrics)
      queue.append(dispatch.Group(rounds, request_time, start_time, future))
      is_last = rounds.stop == config.rounds
      evaluates = is_last or rounds.stop % config.evaluate_every == 0
      saves = is_last or rounds.stop % config.checkpoint_every == 0
      stops = _agree_to_stop(requests, drains=evaluates or saves)
      saves = saves or stops
      test_metrics = {}
      if evaluates:
        test_metrics = evaluate(state.algorithm.params, setup.test)
        shown['accuracy'] = f'{test_metrics["test_accuracy"]:.3f}'
        bar.set_postfix(shown, refresh=False)
      # Nothing of a round that diverged is ever saved.
      for group in in_flight.pop_due(queue, drain=evaluates or saves):
        lines, idle_since = dispatch.collect(group, idle_since)
        for line in lines:
          t = line['round'] - 1
          dispatch.check_finite(config, line, f'round {t}')
          times[:, t] = line['seconds'], line['waited']
          if t + 1 == rounds.stop:
            line |= test_metrics
          metrics.append_line(files.metrics, line)
          events.add_line(line)
          bar.update()
      if saves or (evaluates and watch_claim is not None):
        # Vectors of rounds are scored, and never written.
        if buffer is None or _count_waiting(rounds.stop, flushes, buffer):
          state = jitted.flush(draws, state)
        if watch_claim is not None:
          alarmed |= _tell_claim(
            watch_claim(state, rounds.stop), alarmed, shown
          )
          bar.set_postfix(shown, refresh=False)
      if saves:
        checkpoints.save(
          rounds.stop, (audited_algorithm.drop_buffers(state), times)
        )
      if evaluates or saves:
        idle_since = time.perf_counter()
      if stops:
        break
  wait_for_score(None)
  if stops:
    raise stopping.Stopped(
      f'Stopped after round {rounds.stop} of {config.rounds}, which is saved in '
      f'{files.folder}.',
      requests.signum,
    )
  # A run that was killed behind its last round has made no evaluation here.
  test_metrics = test_metrics or evaluate(state.algorithm.params, setup.test)
  cosines = sharding.copy_to_host(jitted.score(draws, state))
  scalars = sharding.copy_to_host(state.rounds)
  params = sharding.copy_to_host(state.algorithm.params)
  if not sharding.is_primary():
    return None

  audit, dimension, claim = evaluation.Audit(()), None, None
  if setup.observers:
    # 5. Write the record: all that estimates need, without the model.
    record = build.make_run_record(config, setup, cosines, scalars)
    write_record(files.scores, record)

    # 6. Estimate, each ε beside its floor. Of a model that will be released
    # only what may be published too is estimated.
    if not config.simulation:
      record = release.redact_record(record)
    with _phase('estimating ε, and what estimators report without a leak'):
      audit = requests.wait_for(
        functools.partial(
          evaluation.evaluate, record, threat_models=threat_models
        ),
        f'Stopped behind the last round, which is saved in {files.folder}.',
      )
    if claims:
      bounds = sequential.bound_sequentially(record, claim=config.audit.claim)
      claim = None if bounds is None else bounds.test_claim()
    dimension = summary.summarize_dimension(
      config, setup, params, scalars.effective_dimension
    )
    if warning := effective_dimension.warn_if_low(dimension):
      logging.warning('%s', warning)

  # 7. Write the model and the result, with which the run has ended.
  model_file.write_params(files.model, params)
  result = summary.summarize_run(
    config,
    setup,
    privacy=privacy,
    audit=audit,
    claim=claim,
    dimension=dimension,
    evaluation=test_metrics,
    times=times,
  )
  run_result.write_result(files.result, result)
  return result


def _tell_claim(
  bounds: sequential.SequentialBounds | None,
  alarmed: bool,
  shown: dict[str, str],
) -> bool:
  """Shows how a claim stands, and warns if it is rejected; returns whether it is."""
  claim = None if bounds is None else bounds.test_claim()
  if claim is None:
    return False
  shown['ε'] = f'≥{claim.epsilon_gdp:.3g} (claimed {claim.epsilon:g})'
  if claim.rejected_after is None:
    return False
  if not alarmed and sharding.is_primary():
    logging.warning('%s', watch.describe_alarm(claim))
  return True


def _list_flushes(config: build.Config, claims: bool) -> list[int]:
  """Every how many rounds what waits is scored, in a run that is not stopped."""
  every = [config.checkpoint_every]
  return [*every, config.evaluate_every] if claims else every


def _count_waiting(stop: int, flushes: Sequence[int], buffer: int) -> int:
  """Counts the rounds that wait to be scored, which a full buffer is by itself.

  Args:
    stop: rounds that were made, >= 1.
    flushes: as `_list_flushes` gives them.
    buffer: rounds that are scored together.
  """
  last_flush = max((stop - 1) // n * n for n in flushes)
  return (stop - last_flush) % buffer


def _compile_and_advance(
  requests: stopping.Requests,
  start: int,
  jitted: programs.Programs,
  draws: build.CanaryDraws,
  state: audited_algorithm.AuditState,
  *arguments: Any,
) -> tuple[
  tuple[audited_algorithm.AuditState, dict[str, Array]],
  Callable[[str | None], None],
]:
  """Makes the first rounds, whose program is compiled for that.

  The program that scores is compiled beside the next rounds, by a thread, for which
  the function that is returned waits.
  """
  compile_score = programs.compile_for_later(jitted.score, draws, state)
  arguments = draws, state, *arguments

  kept = f'round {start} stays saved' if start else 'nothing is saved yet'
  with _phase('compiling the round'):
    advanced = requests.wait_for(
      functools.partial(jitted.advance, *arguments),
      f'Stopped while the round was compiled; {kept}.',
    )
  if jax.process_count() > 1:
    # Several processes compile in one order, when it is time to.
    return advanced, lambda message: None
  return advanced, requests.start(compile_score)


def _agree_to_stop(requests: stopping.Requests, *, drains: bool) -> bool:
  """Says in all processes whether the first one was asked to stop.

  Of several processes only at rounds whose results are awaited anyway: what
  processes agree on is sent between them, behind all rounds in flight.
  """
  asked = requests.signum is not None
  if jax.process_count() == 1:
    return asked
  return drains and bool(sharding.broadcast_from_primary(int(asked)))


def _progress_bar(config: build.Config, start: int) -> tqdm.tqdm:
  return progress.bar(
    total=config.rounds,
    initial=start,
    unit=' rounds',
    desc=config.task,
    disable=not sharding.is_primary(),
    # A log says at once that rounds begin, of which the first may be a long one.
    delay=0,
  )


def _phase(text: str) -> contextlib.AbstractContextManager[None]:
  return progress.phase(text, disable=not sharding.is_primary())


def _say(text: str) -> None:
  if sharding.is_primary():
    print(text, file=sys.stderr, flush=True)
