"""The training loop of a run, from a config to an ε.

A device is idle while its host reads numbers, writes a line and dispatches the next
round. So several rounds may be dispatched as one, a thread gathers their cohorts in
advance, and another one fetches metrics while the next rounds are in flight.
"""

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
import contextlib
import functools
import signal
import sys
import time
from typing import Any, NamedTuple, TypeVar

from absl import logging
import jax
from jaxtyping import Float
import numpy as np
import tqdm

from epe_jax import io, progress
from epe_jax.audit import audited_algorithm, evaluation, release, upper_bounds
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.audit.effective_dimensions import warn_of_low_dimension
from epe_jax.audit.record import Record
from epe_jax.audit.record_file import write_record
from epe_jax.audit.results import Audit
from epe_jax.data import cohort
from epe_jax.experiment import (
  arithmetic,
  checkpoint,
  chunk_size,
  inputs,
  metrics,
  model_evaluation,
  model_file,
  own_attacker_scores,
  programs,
  run_result,
  stopping,
  summary,
  workdirs,
)
from epe_jax.experiment.run_result import RunResult
from epe_jax.experiment.setup import analytic, build, participation, randomness
from epe_jax.experiment.setup.config import Config
from epe_jax.parallel import hosts, sharding
from epe_jax.training import fedavg
from epe_jax.types import Array
from epe_jax.watch import by_round, sequential
from epe_jax.watch.by_round import Rounds

T = TypeVar('T')

NORMS = 'aggregate_norm', 'update_norm'
"""Metrics of a round that are finite as long as training has not diverged."""

Fetched = tuple[dict[str, Float[np.ndarray, ' rounds']], float]


class Group(NamedTuple):
  """Rounds that were dispatched as one, with times by `time.perf_counter`."""

  rounds: range  # From 0.
  request_time: float  # When their cohorts were requested.
  # When the cohorts were ready and the rounds were dispatched.
  start_time: float
  # Their metrics, and when the device had finished them.
  future: futures.Future[Fetched]


def train(
  config: Config,
  files: workdirs.Workdir,
  observers: build.Observe | None,
  threat_models: Sequence[ThreatModel],
  *,
  argv: Sequence[str] | None = None,
) -> RunResult | None:
  """Trains, records and estimates: config -> setup -> rounds -> record -> result.

  It is one long function, to be read from top to bottom. Its arguments are those of
  `audited_run.run`, of a checked config and a locked workdir.

  Returns:
    The content of result.json; None in all processes but the first.
  """
  mesh = sharding.mesh()

  # 1. Build and check. Every error of config or data comes before the first
  # round.
  secret = randomness.load_or_draw_secret(config, files)
  with _phase('loading data and model'):
    setup = build.build(config, secret=secret, mesh=mesh, observers=observers)
  setup = chunk_size.set_chunk_size(config, setup, mesh=mesh)
  with _phase('computing the analytic ε'):
    privacy = analytic.analyze_privacy(config, setup)
  with _phase('checking the arithmetic of the devices'):
    checked = arithmetic.check_arithmetic(config, setup, mesh)

  # 2. Write down what will be run, or check that it is what the run began with.
  identity = ''
  if hosts.is_primary():
    identity = inputs.write_inputs(config, files, setup, secret)

  # 3. Start, or resume from the newest good checkpoint.
  draws = programs.replicate_draws(setup.draws, mesh)
  init_program = programs.make_init(setup)
  init = lambda: init_program(draws, hosts.replicate(mesh, setup.params))
  state = init()
  jitted = programs.make_programs(setup, state, mesh)
  if chunk_size.is_tried():
    # The trial needs all the memory that training will have.
    del state
    advance = lambda cohorts: jitted.advance(draws, init(), cohorts)
    setup = chunk_size.halve_until_it_fits(config, setup, advance, mesh=mesh)
    state = init()
  evaluate = model_evaluation.evaluator(setup.task, mesh=mesh)
  watch_claim, flush_every = None, [config.checkpoint_every]
  if config.audit.claim is not None and setup.is_audited:
    watch_claim = make_watch(config, setup, jitted, draws)
    flush_every.append(config.evaluate_every)
  checkpoints = checkpoint.Checkpoints(files.checkpoints, of=identity)
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
    log_stderr(
      f'Continuing from round {start} of {config.rounds}, {files.folder}.'
    )

  # 4. Train, audited. Metrics come back while the next rounds are in flight.
  queue: collections.deque[Group] = collections.deque()
  idle_since, test_metrics = time.perf_counter(), {}
  bar, shown, stops = progress.bar(disable=True), {}, False
  scoring: futures.Future[None] | None = None
  with contextlib.ExitStack() as stack:
    # From here on a request to stop finishes the round and saves.
    requests = stack.enter_context(stopping.listen())
    stack.enter_context(_stop_if_stalled(files))
    # However training ends, the checkpoint that is being written is completed.
    stack.callback(checkpoints.close)
    add_events = lambda line: None
    if config.tensorboard:
      events = metrics.open_event_files(files.events, start=start)
      add_events = stack.enter_context(events)
    fetching = futures.ThreadPoolExecutor(1, 'fetch')
    stack.callback(fetching.shutdown, wait=False)
    groups = iterate_groups(config, setup, start, mesh)
    for request_time, (rounds, cohorts) in time_requests(groups):
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
          compiling = futures.ThreadPoolExecutor(1, 'compile')
          scoring = compiling.submit(compile_score)
          compiling.shutdown(wait=False)
        # Only now, so that its times are those of rounds.
        bar = stack.enter_context(_progress_bar(config, start))
      else:
        state, round_metrics = jitted.advance(draws, state, cohorts)
      del cohorts
      requests.announcement = _announce_stop(setup, checkpoints.find_saved())
      future = fetching.submit(fetch_metrics, round_metrics)
      queue.append(Group(rounds, request_time, start_time, future))
      is_last = rounds.stop == config.rounds
      evaluates = is_last or rounds.stop % config.evaluate_every == 0
      saves = is_last or rounds.stop % config.checkpoint_every == 0
      stops = _agree_to_stop(requests, queue, drains=evaluates or saves)
      saves = saves or stops
      test_metrics = {}
      if evaluates:
        test_metrics = evaluate(state.algorithm.params, setup.test)
        shown['accuracy'] = f'{test_metrics["test_accuracy"]:.3f}'
        bar.set_postfix(shown, refresh=False)
      # Nothing of a round that diverged is ever saved.
      for group in programs.pop_due(queue, drain=evaluates or saves):
        lines, idle_since = collect(group, idle_since)
        for line in lines:
          t = line['round'] - 1
          check_finite(config, line, f'round {line["round"]}')
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
          with _phase('scoring rounds before the stop', shows=stops):
            state = jitted.flush(draws, state)
            if stops:
              jax.block_until_ready(state)
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
  if scoring is not None:
    scoring.result()
  if stops:
    raise stopping.Stopped(
      f'Stopped after round {rounds.stop} of {config.rounds}, which is saved in '
      f'{files.folder}.',
      requests.signum,
    )
  # A run that was killed after its last round has made no evaluation here.
  test_metrics = test_metrics or evaluate(state.algorithm.params, setup.test)
  cosines = hosts.copy_to_host(jitted.score(draws, state))
  scalars = hosts.copy_to_host(state.rounds)
  params = hosts.copy_to_host(state.algorithm.params)
  # Of correlated noise the state is vectors, which no record has.
  wrapped = int(state.algorithm.noise_state) if setup.aggregation else 0
  if not hosts.is_primary():
    return None

  audit, leaks_by_round, dimension, claim = Audit(()), None, None, None
  record_sha256 = clients_shifts = None
  if setup.is_audited:
    # 5. Write the record: all that estimates need, without the model.
    record = build.make_run_record(
      config, setup, cosines, scalars, wrapped=wrapped
    )
    write_record(files.scores, record)
    record_sha256 = release.hash_record(record)

    # 6. Estimate each ε, and its floor. If the model will be released, only what
    # may be published too is estimated.
    if not config.simulation:
      record = release.redact_record(record)
    with _phase('estimating ε, and what estimators report without a leak'):
      audit, leaks_by_round = stopping.wait_for(
        functools.partial(_evaluate, record, threat_models),
        f'Stopped after the last round, which is saved in {files.folder}.',
      )
    own_attacker_scores.add_attack_scores(files.scores, audit)
    if (claimed := config.audit.claim) is not None:
      claim = sequential.judge_claim(record, claimed)
    of_rounds = upper_bounds.expect_shifts(record)
    if of_rounds is not None:
      clients_shifts = participation.find_client_shifts(
        config, setup.train, setup.participants.clients, of_rounds
      )
    dimension = summary.summarize_dimension(
      config, setup, params, scalars.effective_dimension
    )
    if warning := warn_of_low_dimension(dimension):
      logging.warning('%s', warning)

  # 7. Write the model and the result, which ends the run.
  model_file.write_params(files.model, params)
  if not config.simulation:
    # Its time would tell when the run began.
    io.write_json(files.config, config.to_dict())
  result = RunResult(
    **summary.describe_run(config, setup, privacy),
    **(summary.describe_times(setup, *times) if config.simulation else {}),
    argv=argv and [io.hide_word(x) for x in argv],
    audit=audit,
    leaks_by_round=leaks_by_round,
    claim=claim,
    effective_dimension=dimension,
    accuracy=test_metrics['test_accuracy'],
    loss=test_metrics['test_loss'],
    arithmetic=[*checked],
    model_sha256=io.hash_file(files.model),
    record_sha256=record_sha256,
    clients_shifts=clients_shifts,
  )
  run_result.write_result(files.result, result)
  return result


def _evaluate(
  record: Record, threat_models: Sequence[ThreatModel]
) -> tuple[Audit, Rounds | None]:
  """The audit, and ε after rounds."""
  audit = evaluation.evaluate(record, threat_models=threat_models)
  return audit, by_round.evaluate_rounds(record, audit)


# Rounds, and the numbers that come back of them.


def group_rounds(
  start: int, stop: int, *, max_size: int, ends: Sequence[int]
) -> Iterator[range]:
  """Divides rounds into groups that are dispatched as one.

  A group has at most max_size rounds, and ends at every multiple of `ends`, where
  the state is needed on the host.

  >>> list(group_rounds(0, 7, max_size=3, ends=(4,)))
  [range(0, 3), range(3, 4), range(4, 7)]
  """
  while start < stop:
    next_ends = ((start // n + 1) * n for n in ends)
    end = min(start + max_size, stop, *next_ends)
    yield range(start, end)
    start = end


def iterate_groups(
  config: Config, setup: build.Setup, start: int, mesh: sharding.Mesh | None
) -> Iterator[tuple[range, fedavg.Cohort]]:
  """Iterates over groups of rounds, with cohorts that a thread makes in advance."""
  groups = {
    group.start: group
    for group in group_rounds(
      start,
      config.rounds,
      max_size=config.rounds_per_dispatch,
      ends=(config.evaluate_every, config.checkpoint_every),
    )
  }

  def gather(t: int) -> fedavg.Cohort:
    return cohort.gather(
      setup.train,
      setup.participants.clients(t),
      setup.plan,
      seed=setup.randomness.order,
      round=t,
      parts=hosts.local_devices_of(mesh),
      of=sharding.num_devices(mesh),
    )

  def assemble(first: int) -> fedavg.Cohort:
    cohorts = cohort.stack_rounds([gather(t) for t in groups[first]])
    return hosts.assemble_global(mesh, cohorts, axis=1)

  # By map: a local name would keep a cohort alive while the next round runs.
  return map(
    lambda item: (groups[item[0]], item[1]), cohort.prefetch(assemble, groups)
  )


def time_requests(items: Iterable[T]) -> Iterator[tuple[float, T]]:
  """Iterates over items, each with the time when it was requested.

  >>> [item for _, item in time_requests('ab')]
  ['a', 'b']
  """
  items = iter(items)
  while True:
    request_time = time.perf_counter()
    try:
      # Without a local name, which would keep a cohort alive for a round.
      yield request_time, next(items)
    except StopIteration:
      return


def fetch_metrics(round_metrics: dict[str, Array]) -> Fetched:
  """Waits for the metrics of a group, and tells when they arrived."""
  return jax.device_get(round_metrics), time.perf_counter()


def name_group(group: Group) -> str:
  """What a message calls a group: its rounds, numbered from 1."""
  first, last = group.rounds.start + 1, group.rounds.stop
  return (
    f'Round {first}' if first == last else f'Work on rounds {first} to {last}'
  )


def collect(
  group: Group, idle_since: float
) -> tuple[list[dict[str, Any]], float]:
  """Collects the metrics of each round of a group, and waits for the group.

  'seconds' is the time that the device spent on the group, divided by its
  rounds: from its dispatch, or the end of the previous group if that is later, to
  its end. 'waited' is the time for which the device was idle because the cohorts
  were not ready; it is attributed to the first round of the group.

  Returns:
    A line for each round, and when the device had finished them.

  Raises:
    progress.Stalled: the group does not end.
  """
  values, end_time = progress.await_result(group.future, name_group(group))
  seconds = (end_time - max(group.start_time, idle_since)) / len(group.rounds)
  waited = max(0.0, group.start_time - max(group.request_time, idle_since))
  lines = [
    {
      'round': t + 1,
      **{name: float(x[i]) for name, x in values.items()},
      'seconds': seconds,
      'waited': 0.0 if i else waited,
    }
    for i, t in enumerate(group.rounds)
  ]
  return lines, end_time


def check_finite(
  config: Config, round_metrics: Mapping[str, float], name: str
) -> None:
  """Raises a FloatingPointError if training has diverged in a round of this name."""
  # With exact noise, a client that has diverged leaves the aggregate finite.
  if not np.isfinite(sum(round_metrics[norm] for norm in NORMS)):
    raise FloatingPointError(
      f'{name}: updates or their aggregate are not finite, training has diverged. Lower '
      f'client.learning_rate={config.client.learning_rate} or '
      f'server.learning_rate={config.server.learning_rate}, or '
      f'canaries.observed={config.canaries.observed} if a round has more canaries than '
      'clients.'
    )


def make_watch(
  config: Config,
  setup: build.Setup,
  jitted: programs.Programs,
  draws: build.RunKeys,
) -> Callable[[audited_algorithm.AuditState, int], str | None]:
  """Makes a function that tests the claim of a run by its rounds so far.

  It reads what observers scored round by round, and projects nothing, so it costs
  next to nothing. It warns once, when the claim is rejected. All processes must
  call it.

  Returns:
    (flushed state, rounds so far) -> how the claim stands; None if it is too early.
  """
  is_rejected = False

  def watch(state: audited_algorithm.AuditState, rounds: int) -> str | None:
    nonlocal is_rejected
    cosines = hosts.copy_to_host(jitted.score_rounds(draws, state))
    scalars = hosts.copy_to_host(state.rounds)
    record = build.make_run_record(config, setup, cosines, scalars)
    if not config.simulation:
      record = release.redact_record(record)
    claim = sequential.judge_claim(record, config.audit.claim, rounds=rounds)
    if claim is None:
      return None
    if claim.rejected_after is not None and not is_rejected:
      is_rejected = True
      if hosts.is_primary():
        logging.warning(
          'The claimed ε = %g is rejected after round %d: of Gaussian mechanisms '
          'with this ε at most %g %% of runs ever are. %s canaries show ε ≥ %.3g.',
          claim.epsilon,
          claim.rejected_after,
          100 * claim.significance,
          f'{claim.num_canaries:,}',
          claim.epsilon_gdp,
        )
    return f'≥{claim.epsilon_gdp:.3g} (claimed {claim.epsilon:g})'

  return watch


# Stopping, and what a person sees.


def _agree_to_stop(
  requests: stopping.Requests, queue: Sequence[Group], *, drains: bool
) -> bool:
  """Says in all processes whether the first one was asked to stop.

  Several processes agree only at rounds whose results they wait for anyway: no
  other program may be in flight when they send each other messages.
  """
  asked = requests.signum is not None
  if jax.process_count() == 1:
    return asked
  if not drains:
    return False
  for group in queue:
    progress.await_result(group.future, name_group(group))
  return bool(hosts.broadcast_from_primary(int(asked)))


@contextlib.contextmanager
def _stop_if_stalled(files: workdirs.Workdir) -> Iterator[None]:
  """Ends the process, however deep it waits, if rounds end no more."""
  try:
    yield
  except progress.Stalled as error:
    raise stopping.Stopped(
      f'{error} The rounds that are saved in {files.folder} are kept.',
      signal.SIGALRM,
      is_abrupt=True,
    ) from error


def _announce_stop(setup: build.Setup, saved: int) -> str:
  """What a request to stop does: it may take long, and a second one costs rounds."""
  work = 'Finishing the round'
  if setup.is_audited:
    work += ', and scoring those that are not scored yet'
  kept = f'round {saved} stays saved' if saved else 'nothing is saved yet'
  return f'{work}. A second signal stops at once; {kept}.'


def _progress_bar(config: Config, start: int) -> tqdm.tqdm:
  return progress.bar(
    total=config.rounds,
    initial=start,
    unit=' rounds',
    desc=config.task,
    disable=not hosts.is_primary(),
    # The first round may be a long one; a log says at once that rounds begin.
    delay=0,
  )


def _phase(
  text: str, *, shows: bool = True
) -> contextlib.AbstractContextManager[None]:
  return progress.phase(text, disable=not (shows and hosts.is_primary()))


def log_stderr(text: str) -> None:
  """Prints a line to stderr, in the first process."""
  if hosts.is_primary():
    print(text, file=sys.stderr, flush=True)
