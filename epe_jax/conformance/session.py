"""Runs rounds of a mechanism; releases are in units of one client's influence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import math
import signal
import threading
import time
from typing import Any, NamedTuple, NoReturn

from jaxtyping import Float
import numpy as np

from epe_jax import python_path
from epe_jax.conformance.claim import Claim, Mechanism, Refused
from epe_jax.conformance.noise import split

# Of one round, unless the first one, which takes milliseconds as a rule, takes long.
_MAX_SECONDS = 20.0
_TIMES_AS_LONG = 20.0
# Between two alarms; a mechanism may catch some.
_SECONDS_AGAIN = 0.5

Make = Callable[[Claim], Mechanism]
Vector = Float[np.ndarray, 'd']


class NotChecked(Exception):
  """A rule needs a measurement that cannot be made; the message says why."""


OUT_OF_TIME = 'out of time'


class OutOfTime(Exception):
  """The time of a check is spent, which says nothing of the mechanism.

  It is not a `NotChecked`, which some rules take for a refusal of what they send.
  """


class NeverEnds(NotChecked):
  """A round takes much longer than any other."""


class _Alarm(BaseException):
  """Time is up. A mechanism that catches every `Exception` does not catch it."""


class Cohort(NamedTuple):
  """Clients of a round.

  Attributes:
    updates: of each client present, in clip norms; several clients may share an
      array.
    weights: of each client.
  """

  updates: Sequence[Vector]
  weights: Sequence[float]


class Session:
  """Starts runs of a mechanism and counts their rounds, within a time limit."""

  def __init__(self, make: Make, claim: Claim, *, seconds: float):
    if not callable(make):
      raise TypeError(
        f'make is a {type(make).__name__}; give a function that makes a mechanism of a '
        'claim, such as its class.'
      )
    self._make = make
    # By which another process imports the factory; None if it cannot.
    self.name = python_path.name_function(make)
    self.claim = claim
    self.rounds = 0
    self._start = time.perf_counter()
    self.seconds = seconds
    # Timers of the system end, too.
    self._max_seconds = min(max(_MAX_SECONDS, seconds), 1e6)
    self._is_first = True

  @property
  def elapsed(self) -> float:
    """Seconds since the session began, without pauses."""
    return time.perf_counter() - self._start

  @contextlib.contextmanager
  def pause(self) -> Iterator[None]:
    """Within it no time passes."""
    before = self.elapsed
    try:
      yield
    finally:
      self._start = time.perf_counter() - before

  def start(self, claim: Claim) -> Run:
    """Makes a fresh mechanism.

    Raises:
      OutOfTime: time is up.
      NotChecked: the factory fails for this claim, or not for the first time.
      TypeError: the factory returned something that cannot aggregate.
    """
    self.spend(0)
    with self.call(f'make({_changes(self.claim, claim)})'):
      mechanism = self._make(claim)
    if not callable(getattr(mechanism, 'aggregate', None)):
      raise TypeError(
        f'make(claim) returned {type(mechanism).__name__}, which has no method '
        'aggregate(updates, weights). Return a Mechanism.'
      )
    return Run(self, mechanism, claim)

  def spend(self, rounds: int) -> None:
    """Counts rounds.

    Raises:
      OutOfTime: time is up.
    """
    # The first round is run however long the factory takes.
    if self.rounds and self.elapsed > self.seconds:
      raise OutOfTime(f'{OUT_OF_TIME}: {self.seconds:g} s are spent')
    self.rounds += rounds

  @contextlib.contextmanager
  def call(self, what: str = 'the mechanism') -> Iterator[None]:
    """Within it code of the mechanism runs, in limited time.

    The first round has the time of the whole check, and what follows it many times
    as much as that took. Only in the main thread of POSIX systems can code be
    interrupted.

    Args:
      what: runs, for messages.

    Raises:
      NeverEnds: it takes longer.
      NotChecked: it raises something, but for the first round.
      Exception: whatever is raised up to the end of the first round.
    """
    start = time.perf_counter()
    # However long the factory takes, the first round is run.
    limit = self._max_seconds if self.rounds else math.inf
    with _limit_time(limit, what):
      try:
        yield
      except Refused as error:
        raise NotChecked(
          f'the mechanism refuses such input: {error}'
        ) from error
      except (Exception, SystemExit) as error:
        if self._is_first:
          raise
        raise NotChecked(f'{what} raised {error!r}') from error
    if self._is_first and self.rounds:
      self._is_first = False
      took = _TIMES_AS_LONG * (time.perf_counter() - start)
      self._max_seconds = min(max(_MAX_SECONDS, took), self._max_seconds)


@dataclasses.dataclass(frozen=True)
class Run:
  """A mechanism with its state."""

  session: Session
  mechanism: Mechanism
  claim: Claim

  @property
  def public_clip_norm(self) -> float | None:
    """The clip norm that the mechanism publishes, None if it publishes none."""
    with self.session.call('clip_norm'):
      value = getattr(self.mechanism, 'clip_norm', None)
      if value is None:
        return None
      number = math.nan
      with contextlib.suppress(TypeError, ValueError):
        number = float(value)
      if not 0 < number < math.inf:
        raise ValueError(
          f'the mechanism publishes the clip norm {value!r}; let its attribute '
          'clip_norm be a finite number > 0, or give it another name if it is not a '
          'public clip norm.'
        )
      return number

  def release(self, cohort: Cohort) -> Vector:
    """Runs a round.

    Updates are multiplied by the clip norm, and the release is divided by the
    influence that a client of that norm may have. Updates u_i within the clip norm
    are thus released as Σ u_i with noise of standard deviation z, for any S and n.

    Returns:
      [d] float64.

    Raises:
      OutOfTime: time is up.
      NotChecked: the mechanism refuses this input, fails, or releases no tensors of
        the shapes of the claim.
      NeverEnds: the round does not end.
      Exception: whatever is raised in the very first round.
    """
    clip_norm = self.public_clip_norm or self.claim.clip_norm
    self.session.spend(1)
    tensors: dict[int, list[np.ndarray]] = {}
    for update in cohort.updates:
      if id(update) not in tensors:
        tensors[id(update)] = self._split(update * clip_norm)
    # A mechanism may clip in place: no client may have the arrays of another one.
    updates = [
      [tensor.copy() for tensor in tensors[id(update)]]
      for update in cohort.updates
    ]
    with self.session.call():
      # It may compute when it is read.
      joined = self._join(
        self.mechanism.aggregate(updates, list(cohort.weights))
      )
    return joined / (clip_norm * self.claim.unit)

  def release_by_claim(self, cohort: Cohort) -> Vector:
    """Runs a round, as `release`, in units of the claimed clip norm and not the public one."""
    scale = (
      self.public_clip_norm or self.claim.clip_norm
    ) / self.claim.clip_norm
    return scale * self.release(cohort)

  def _split(self, vector: Vector) -> list[np.ndarray]:
    parts = split(vector.astype(np.float32), self.claim.sizes)
    return [t.reshape(shape) for t, shape in zip(parts, self.claim.shapes)]

  def _join(self, released: Any) -> Vector:
    if released is None:
      raise ValueError(
        'aggregate returned None; return what the round releases, one tensor for '
        'each shape of the claim.'
      )
    if isinstance(released, Mapping):
      raise ValueError(
        'aggregate returned a dict; return its tensors in the order of the shapes of '
        'the claim, such as list(result.values()).'
      )
    arrays = [np.asarray(tensor, np.float64) for tensor in released]
    shapes = tuple(array.shape for array in arrays)
    if shapes != tuple(map(tuple, self.claim.shapes)):
      raise ValueError(
        f'aggregate released tensors of shapes {shapes}, the claim has '
        f'{self.claim.shapes}. Return one tensor for each shape, in their order.'
      )
    return np.concatenate([array.ravel() for array in arrays])


def _raise_alarm(signum: int, frame: Any) -> NoReturn:
  raise _Alarm


@contextlib.contextmanager
def _limit_time(seconds: float, what: str) -> Iterator[None]:
  if (
    math.isinf(seconds)
    or not hasattr(signal, 'setitimer')
    or threading.current_thread() is not threading.main_thread()
    # Python cannot restore a handler that is not its own.
    or signal.getsignal(signal.SIGALRM) is None
  ):
    yield
    return

  # Others may have set a timer, such as that of a test in which this runs.
  start, timer = time.perf_counter(), signal.ITIMER_REAL
  left, interval = signal.setitimer(timer, 0)
  before = signal.signal(signal.SIGALRM, _raise_alarm)
  try:
    try:
      signal.setitimer(timer, seconds, _SECONDS_AGAIN)
      yield
    finally:
      signal.setitimer(timer, 0)
  except _Alarm as error:
    raise NeverEnds(f'{what} did not end within {seconds:g} s') from error
  finally:
    signal.signal(signal.SIGALRM, before)
    if left:
      left = max(left - (time.perf_counter() - start), 1e-6)
    signal.setitimer(timer, left, interval)


def check_finite(released: Vector, t: int) -> None:
  """Checks that round t of ordinary updates releases numbers.

  Raises:
    NotChecked: some are not finite.
  """
  if not np.all(np.isfinite(released)):
    raise NotChecked(f'round {t} releases numbers that are not finite')


def norm(vector: Float[np.ndarray, '...']) -> float:
  """Euclidean norm; inf if an entry is not finite."""
  value = float(np.linalg.norm(vector))
  return value if math.isfinite(value) else math.inf


def _changes(old: Claim, new: Claim) -> str:
  return ', '.join(
    f'{field.name}={getattr(new, field.name)}'
    for field in dataclasses.fields(new)
    if getattr(new, field.name) != getattr(old, field.name)
  )
