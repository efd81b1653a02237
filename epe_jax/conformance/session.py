"""Runs rounds of a mechanism; releases are in units of one client's influence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import math
import signal
import threading
import time
from typing import Any, NamedTuple

from jaxtyping import Float
import numpy as np

from epe_jax import python_path
from epe_jax.conformance.claim import Claim, Mechanism, Refused
from epe_jax.conformance.noise import split

# Of one round, unless the first one, which takes milliseconds as a rule, takes long.
_MAX_SECONDS = 20.0
_TIMES_AS_LONG = 20.0

Make = Callable[[Claim], Mechanism]
Vector = Float[np.ndarray, 'd']


class NotChecked(Exception):
  """A rule needs a measurement that cannot be made; the message says why."""


OUT_OF_TIME = 'out of time'


class OutOfTime(Exception):
  """The time of a check is spent, which says nothing of the mechanism.

  It is no `NotChecked`, which some rules take for a refusal of what they send.
  """


class NeverEnds(NotChecked):
  """A round takes much longer than any other."""


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
    try:
      mechanism = self._make(claim)
    except (Exception, SystemExit) as error:
      if self.rounds == 0:
        raise
      changes = _changes(self.claim, claim)
      raise NotChecked(f'make({changes}): {error!r}') from error
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
  def limit_round(self) -> Iterator[None]:
    """Ends a round that takes too long, where the system can interrupt it.

    The first one has the time of the whole check, and later ones many times as much
    as that took.

    Raises:
      NeverEnds: the round takes longer.
    """
    start = time.perf_counter()
    with _limit_time(self._max_seconds):
      yield
    if self.rounds == 1:
      took = time.perf_counter() - start
      self._max_seconds = max(_MAX_SECONDS, _TIMES_AS_LONG * took)


@dataclasses.dataclass(frozen=True)
class Run:
  """A mechanism with its state."""

  session: Session
  mechanism: Mechanism
  claim: Claim

  @property
  def public_clip_norm(self) -> float | None:
    """The clip norm that the mechanism publishes, None if it publishes none."""
    value = getattr(self.mechanism, 'clip_norm', None)
    try:
      return None if value is None else float(value)
    except TypeError as error:
      raise TypeError(
        f'clip_norm={value!r} of the mechanism; let it be a number, or give the '
        'attribute another name if it is no public clip norm.'
      ) from error

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
    self.session.spend(1)
    clip_norm = self.public_clip_norm or self.claim.clip_norm
    tensors: dict[int, list[np.ndarray]] = {}
    for update in cohort.updates:
      if id(update) not in tensors:
        tensors[id(update)] = self._split(update * clip_norm)
    updates = [tensors[id(update)] for update in cohort.updates]
    try:
      with self.session.limit_round():
        released = self.mechanism.aggregate(updates, list(cohort.weights))
      joined = self._join(released)
    except NeverEnds:
      raise
    except Refused as error:
      raise NotChecked(f'the mechanism refuses such input: {error}') from error
    except (Exception, SystemExit) as error:
      if self.session.rounds == 1:
        raise
      raise NotChecked(f'the mechanism raised {error!r}') from error
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


def _end_round(seconds: float, signum: int, frame: Any) -> None:
  raise NeverEnds(f'the round did not end within {seconds:g} s')


@contextlib.contextmanager
def _limit_time(seconds: float) -> Iterator[None]:
  if (
    not hasattr(signal, 'setitimer')
    or threading.current_thread() is not threading.main_thread()
  ):
    yield
    return

  before = signal.signal(signal.SIGALRM, functools.partial(_end_round, seconds))
  signal.setitimer(signal.ITIMER_REAL, seconds)
  try:
    yield
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


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
