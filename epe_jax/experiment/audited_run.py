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

from absl import logging
import jax
import numpy as np
import tqdm

from epe_jax import io, progress
from epe_jax.audit import (
  attack_scores,
  audited_algorithm,
  effective_dimension,
  evaluation,
  release,
  sequential,
)
from epe_jax.audit.record import write_record
from epe_jax.audit.threat_models import THREAT_MODELS, ThreatModel
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


def run(
  config: build.Config,
  workdir: str | os.PathLike,
  *,
  observers: build.Observe | None = None,
  threat_models: Sequence[ThreatModel] = THREAT_MODELS,
) -> RunResult | None:
  """Trains a model, audits it and writes the results into a workdir.

  A run that was killed resumes from its newest checkpoint; a finished run is not
  repeated, and its result is read. Of the files that `workdirs` describes,
  result.json and model.npz may be published, and those in private/ are for the
  auditor alone. A run without canaries is not audited: it has no scores.npz and
  no estimates, and the analytic ε of canaries is None. All devices share the
  work. Each of several processes must call this function, and the first one
  writes.

  Args:
    config: the config of the run, with every field set, as the files in
      configs/ give it.
    workdir: a folder for this run alone, which is made if it is missing.
    observers: your own observers in addition to those of the package, name ->
      canaries -> `audit.Observer`. Their scores are in the record; unless the run
      is a simulation, these are for the auditor alone. A resumed run needs
      observers of the same names, whose states have arrays of the same shapes
      and dtypes; the caller must see to it that they compute the same.
    threat_models: the attackers that are estimated, ordered by their knowledge,
      such as your own followed by `audit.THREAT_MODELS`. They play no part
      until training has ended. `audit.evaluate` estimates others from the record
      of a finished run.

  Returns:
    The content of result.json; None in all processes but the first.

  Raises:
    ValueError, FileNotFoundError: a field or the data are wrong, see
      `build.build`; or the workdir holds a run of another config, belongs to
      another process, or holds a run that began with other data, observers,
      secret or settings of JAX.
    FloatingPointError: training has diverged.
    stopping.Stopped: Ctrl-C or SIGTERM came, the round was finished and saved.
    OSError: a disk is full or not writable.
  """
  with io.explain_disk_errors(workdir):
    config = config_fields.check_config(config)
    if sharding.is_primary():
      with workdirs.remove_if_refused(workdirs.workdir_at(workdir)):
        return _run_or_read(config, workdir, observers, threat_models)
    # The other processes write the same files, into a temporary folder.
    with tempfile.TemporaryDirectory() as scratch:
      _run_or_read(config, scratch, observers, threat_models)
    return None


def _run_or_read(
  config: build.Config,
  workdir: str | os.PathLike,
  observers: build.Observe | None,
  threat_models: Sequence[ThreatModel],
) -> RunResult | None:
  """Makes the run of a checked config, or reads it if it is finished."""
  files, result = workdirs.workdir_at(workdir), None
  workdirs.claim(files.folder, config)
  if not _is_finished(files):
    with workdirs.lock(files):
      # Another process may have changed it before it released the lock.
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
  # A finished run needs the secrets of its noise and sampling no more.
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

  # 3. Start, or resume from the newest good checkpoint.
  draws = programs.replicate_draws(setup.draws, mesh)
  init_program = programs.make_init(setup)
  init = lambda: init_program(draws, sharding.replicate(mesh, setup.params))
  state = init()
  jitted = programs.make_programs(setup, state, mesh)
  if chunk_size.is_tried(config):
    # The trial needs all the memory that training will have.
    del state
    advance = lambda cohorts: jitted.advance(draws, init(), cohorts)
    setup = chunk_size.halve_until_it_fits(config, setup, advance, mesh=mesh)
    state = init()
  evaluate = model_evaluation.evaluator(setup.task, mesh=mesh)
  watch_claim, flush_every = None, [config.checkpoint_every]
  if config.audit.claim is not None and setup.is_audited:
    watch_claim = watch.make_watch(config, setup, jitted, draws)
    flush_every.append(config.evaluate_every)
  checkpoints = checkpoint.checkpoints(files.checkpoints, of=identity)
  # The seconds that each round took, and those that it waited for its cohort.
  times = np.zeros((2, config.rounds), np.float32)
  fresh = (audited_algorithm.drop_buffers(state), times)
  start, (without_buffers, times) = checkpoints.restore(fresh) or (0, fresh)
  state = audited_algorithm.restore_buffers(
    without_buffers, state, since_flush=min(start % n for n in flush_every)
  )
  del fresh, without_buffers
  if start == 0:
    files.metrics.unlink(missing_ok=True)
    with _phase('evaluating the initial model'):
      test_metrics = evaluate(state.algorithm.params, setup.test)
    metrics.append_line(files.metrics, {'round': 0, **test_metrics})
  else:
    metrics.rewind_to(files.metrics, start)
    _say(f'Continuing from round {start} of {config.rounds}, {files.folder}.')

  # 4. Train, audited. Metrics come back while the next rounds are in flight.
  queue: collections.deque[dispatch.Group] = collections.deque()
  idle_since, test_metrics = time.perf_counter(), {}
  bar, shown, stops = progress.bar(disable=True), {}, False
  wait_for_score: Callable[[str | None], None] = lambda message: None
  # From here on a request to stop finishes the round and saves.
  requests.can_defer = True
  with contextlib.ExitStack() as stack:
    # However training ends, the checkpoint that is being written is completed.
    stack.callback(checkpoints.close)
    add_events = lambda line: None
    if config.tensorboard:
      events = event_files.open_event_files(files.events, start=start)
      add_events = stack.enter_context(events)
    fetching = stack.enter_context(futures.ThreadPoolExecutor(1, 'fetch'))
    groups = dispatch.iterate_groups(config, setup, start, mesh)
    for request_time, (rounds, cohorts) in dispatch.time_requests(groups):
      start_time = time.perf_counter()
      if rounds.start == start:
        compile_score = programs.compile_for_later(jitted.score, draws, state)
        with _phase('compiling the round'):
          state, round_metrics = requests.wait_for(
            functools.partial(jitted.advance, draws, state, cohorts),
            'Stopped while the round was compiled; '
            f'{f"round {start} stays saved" if start else "nothing is saved yet"}.',
          )
        # While rounds are made. Several processes must compile in one order.
        if jax.process_count() == 1:
          wait_for_score = requests.start(compile_score)
        # Only now, so that its times are those of rounds.
        bar = stack.enter_context(_progress_bar(config, start))
      else:
        state, round_metrics = jitted.advance(draws, state, cohorts)
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
          add_events(line)
          bar.update()
      if saves or (evaluates and watch_claim is not None):
        # Vectors of rounds are scored, and never written. Observers of a user may
        # keep some that the package cannot count.
        if observers or programs.has_waiting(state):
          state = jitted.flush(draws, state)
        if watch_claim and (claim := watch_claim(state, rounds.stop)):
          shown['ε'] = claim
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
  # A run that was killed after its last round has made no evaluation here.
  test_metrics = test_metrics or evaluate(state.algorithm.params, setup.test)
  cosines = sharding.copy_to_host(jitted.score(draws, state))
  scalars = sharding.copy_to_host(state.rounds)
  params = sharding.copy_to_host(state.algorithm.params)
  if not sharding.is_primary():
    return None

  audit, dimension, claim = evaluation.Audit(()), None, None
  if setup.is_audited:
    # 5. Write the record: all that estimates need, without the model.
    record = build.make_run_record(config, setup, cosines, scalars)
    write_record(files.scores, record)

    # 6. Estimate each ε, and its floor. If the model will be released, only what
    # may be published too is estimated.
    if not config.simulation:
      record = release.redact_record(record)
    with _phase('estimating ε, and what estimators report without a leak'):
      audit = requests.wait_for(
        functools.partial(
          evaluation.evaluate, record, threat_models=threat_models
        ),
        f'Stopped after the last round, which is saved in {files.folder}.',
      )
    attack_scores.write_attack_scores(files.attack_scores, audit)
    if watch_claim is not None:
      bounds = sequential.bound_sequentially(record, claim=config.audit.claim)
      claim = None if bounds is None else bounds.test_claim()
    dimension = summary.summarize_dimension(
      config, setup, params, scalars.effective_dimension
    )
    if warning := effective_dimension.warn_if_low(dimension):
      logging.warning('%s', warning)

  # 7. Write the model and the result, which ends the run.
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


def _agree_to_stop(requests: stopping.Requests, *, drains: bool) -> bool:
  """Says in all processes whether the first one was asked to stop.

  Several processes agree only at rounds whose results they wait for anyway: the
  message between them is queued after all rounds in flight.
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
    # The first round may be a long one; a log says at once that rounds begin.
    delay=0,
  )


def _phase(text: str) -> contextlib.AbstractContextManager[None]:
  return progress.phase(text, disable=not sharding.is_primary())


def _say(text: str) -> None:
  if sharding.is_primary():
    print(text, file=sys.stderr, flush=True)
