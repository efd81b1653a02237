"""Runs rounds of a mechanism; releases are in units of one client's influence."""

from collections.abc import (
  Callable,
  Hashable,
  Iterator,
  Mapping,
  Sequence,
)
import contextlib
import dataclasses
import hashlib
import math
import signal
import threading
import time
from typing import Any, NamedTuple, NoReturn

from jaxtyping import Bool, Float
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


FIRST, LATER = 'the first round', 'later rounds'
EARLY = 'calls before the last'
"""Where what should be constant has moved."""
OUT_OF_TIME = 'out of time'


class OutOfTime(Exception):
  """The time of a check is spent. Not a `NotChecked`, as it is no refusal of input."""


class NeverEnds(NotChecked):
  """A round takes much longer than any other."""


class _Alarm(BaseException):
  """Time is up. A mechanism that catches every `Exception` does not catch it."""


class Cohort(NamedTuple):
  """Updates in clip norms, some of which may be one array, and weights of clients."""

  updates: Sequence[Vector]
  weights: Sequence[float]


class Session:
  """Starts runs of a mechanism and counts their rounds, within a time limit.

  Attributes:
    claim: of the coordinates that rules see.
    tensors: numbers of the tensors that these are of.
    is_constant: [D] coordinates of the mechanism that rules do not see.
    seen: index of the others.
    rates: [d] public factors of coordinates, by which releases are divided.
    moves: which of `FIRST`, `LATER` and `EARLY` have differed between runs alike.
    name: by which another process imports the factory; None if it cannot.
    rounds: that were run.
    seconds: that they may take.
  """

  def __init__(self, make: Make, claim: Claim, *, seconds: float):
    if not callable(make):
      raise TypeError(
        f'make is a {type(make).__name__}; give a function that makes a mechanism of a '
        'claim, such as its class.'
      )
    self._make = make
    self.name = python_path.name_function(make)
    self.claim, self.full_claim = claim, claim
    self.tensors = tuple(range(len(claim.sizes)))
    self.is_constant = np.zeros(claim.dim, bool)
    self.seen: slice | Bool[np.ndarray, 'D'] = slice(None)
    self.rates: Vector = np.ones(claim.dim)
    self.moves: set[str] = set()
    self._watched: dict[tuple[Hashable, ...], bytes] = {}
    self.rounds = 0
    self._start = time.perf_counter()
    self.seconds = seconds
    # Timers of the system have a maximum.
    self._max_seconds = min(max(_MAX_SECONDS, seconds), 1e6)
    self._is_first = True
    # What did not end, so that more time would be spent alike.
    self._hung = ''

  def leave_out(self, is_constant: Bool[np.ndarray, 'D']) -> None:
    """Sends zeros in such coordinates from now on, and releases the others alone."""
    full = self.full_claim
    nums = [int(np.sum(x)) for x in split(1.0 - is_constant, full.sizes)]
    self.tensors = tuple(k for k, num in enumerate(nums) if num)
    shapes = [
      full.shapes[k] if nums[k] == full.sizes[k] else (nums[k],)
      for k in self.tensors
    ]
    self.claim = dataclasses.replace(full, shapes=tuple(shapes))
    self.is_constant, self.seen = is_constant, ~is_constant
    self.rates = np.ones(self.claim.dim)

  def watch(self, what: str, values: Vector, *settings: Hashable) -> None:
    """Notes if values differ between runs of the same settings, which should not."""
    # Not the values themselves, as a frozen model may be large.
    # Zeros of both signs are equal.
    digest = hashlib.sha256((values + 0.0).tobytes()).digest()
    if self._watched.setdefault((what, *settings), digest) != digest:
      self.moves.add(what)

  def check_constants(self) -> None:
    """Raises NotChecked if coordinates that are left out move in later rounds."""
    if LATER in self.moves:
      raise NotChecked(
        'coordinates that are constant in the first round move in later ones; let each '
        'round release all that is trained, or check each stage by itself'
      )

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

  def start(self, claim: Claim) -> 'Run':
    """Makes a fresh mechanism; raises as `spend` and `call`."""
    self.spend(0)
    given = claim
    if claim.shapes != self.full_claim.shapes:
      given = dataclasses.replace(claim, shapes=self.full_claim.shapes)
    with self.call(f'make({_changes(self.claim, claim)})'):
      mechanism = self._make(given)
      if not callable(getattr(mechanism, 'aggregate', None)):
        raise TypeError(
          f'make(claim) returned {type(mechanism).__name__}, which has no method '
          'aggregate(updates, weights). Return a Mechanism.'
        )
    return Run(self, mechanism, claim)

  def spend(self, rounds: int) -> None:
    """Counts rounds; raises OutOfTime if time is up, or NotChecked if all is waiting."""
    # The first round is run however long the factory takes.
    if self.rounds and self.elapsed > self.seconds:
      if self._hung:
        raise NotChecked(f'{self.seconds:g} s are spent: {self._hung}')
      raise OutOfTime(f'{OUT_OF_TIME}: {self.seconds:g} s are spent')
    self.rounds += rounds

  @contextlib.contextmanager
  def call(self, what: str = 'the mechanism') -> Iterator[None]:
    """Within it code of the mechanism runs, in limited time.

    The first round has the time of the whole check, and what follows it many times
    as much as that took. Only in the main thread of POSIX systems can code be
    interrupted.

    Raises:
      NeverEnds: it takes longer.
      NotChecked: it raises something; up to the end of the first round that itself.
    """
    start = time.perf_counter()
    # However long the factory takes, the first round is run.
    limit = self._max_seconds if self.rounds else math.inf
    try:
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
    except NeverEnds as error:
      self._hung = str(error)
      raise
    if self._is_first and self.rounds:
      self._is_first = False
      took = _TIMES_AS_LONG * (time.perf_counter() - start)
      self._max_seconds = min(max(_MAX_SECONDS, took), self._max_seconds)


@dataclasses.dataclass
class Run:
  """A mechanism with its state, and the number of rounds that it has released."""

  session: Session
  mechanism: Mechanism
  claim: Claim
  rounds: int = 0

  @property
  def public_clip_norm(self) -> float | None:
    """The clip norm that the mechanism publishes, None if it publishes none."""
    with self.session.call('clip_norm'):
      value = getattr(self.mechanism, 'clip_norm', None)
      if value is None:
        return None
      with contextlib.suppress(TypeError, ValueError):
        if 0 < float(value) < math.inf:
          return float(value)
      raise ValueError(
        f'the mechanism publishes the clip norm {value!r}; let its attribute '
        'clip_norm be a finite number > 0, or give it another name if it is not a '
        'public clip norm.'
      )

  @property
  def clip_norm(self) -> float:
    """The clip norm of the next round: the public one, or that of the claim."""
    return self.public_clip_norm or self.claim.clip_norm

  def release(self, cohort: Cohort) -> Vector:
    """Runs a round.

    Updates are multiplied by the clip norm, and the release is divided by the
    influence that a client of that norm may have. Updates u_i within the clip norm
    are thus released as Σ u_i with noise of standard deviation z, for any S and n.

    Raises as `Session.spend` and `Session.call`.
    """
    clip_norm = self.clip_norm
    released = self._run_round(cohort, clip_norm) / (
      clip_norm * self.claim.unit
    )
    return released / self.session.rates

  def release_as_is(self, cohort: Cohort) -> Vector:
    """As `release`, in the units of the mechanism, to the last bit."""
    return self._run_round(cohort, self.clip_norm)

  def _run_round(self, cohort: Cohort, clip_norm: float) -> Vector:
    calls, is_constant = self.claim.calls_per_release, self.session.is_constant
    # What neighbours have in common is public.
    alike = self.claim, self.rounds
    if self.claim.adjacency != 'add_or_remove':
      alike += (*cohort.weights,)
    for call in range(calls):
      joined = self._call(cohort, clip_norm, call)
      if call < calls - 1:
        self.session.watch(EARLY, joined, *alike, call)
    if is_constant.any():
      what = LATER if self.rounds else FIRST
      self.session.watch(what, joined[is_constant], *alike)
    self.rounds += 1
    return joined[self.session.seen]

  def _call(
    self, cohort: Cohort, scale: float, call: int
  ) -> Float[np.ndarray, 'D']:
    """All that a call of `aggregate` releases, one of several for a round.

    Each of them has the updates of some clients, and zeros of the others.
    """
    self.session.spend(1)
    num, calls = len(cohort.updates), self.claim.calls_per_release
    zero = np.zeros(self.session.claim.dim)
    vectors = [
      u if i * calls // num == call else zero
      for i, u in enumerate(cohort.updates)
    ]
    distinct = {id(u): u for u in vectors}
    tensors = {k: self._split(u * scale) for k, u in distinct.items()}
    # A mechanism may clip in place: no client may have the arrays of another one.
    updates = [[tensor.copy() for tensor in tensors[id(u)]] for u in vectors]
    with self.session.call():
      # It may compute when it is read.
      return self._join(self.mechanism.aggregate(updates, list(cohort.weights)))

  def release_by_claim(self, cohort: Cohort) -> Vector:
    """As `release`, in units of the claimed clip norm and not the public one."""
    clip_norm = self.clip_norm
    return clip_norm / self.claim.clip_norm * self.release(cohort)

  def _split(self, vector: Vector) -> list[np.ndarray]:
    full = self.session.full_claim
    sent = np.zeros(full.dim, np.float32)
    sent[self.session.seen] = vector
    parts = split(sent, full.sizes)
    return [t.reshape(shape) for t, shape in zip(parts, full.shapes)]

  def _join(self, released: Any) -> Vector:
    if released is None or isinstance(released, Mapping):
      kind = 'None' if released is None else 'a dict'
      raise ValueError(
        f'aggregate returned {kind}; return its tensors in the order of the shapes of '
        'the claim.'
      )
    if hasattr(released, 'shape'):
      raise ValueError(
        f'aggregate returned one array of shape {tuple(released.shape)}; return a list '
        'with a tensor for each shape of the claim.'
      )
    arrays = [np.asarray(tensor, np.float64) for tensor in released]
    shapes = tuple(array.shape for array in arrays)
    claimed = self.session.full_claim.shapes
    if shapes != tuple(map(tuple, claimed)):
      raise ValueError(
        f'aggregate released tensors of shapes {shapes}, the claim has '
        f'{claimed}. Return one tensor for each shape, in their order.'
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
  """Raises NotChecked if round t of ordinary updates releases no finite numbers."""
  if not np.all(np.isfinite(released)):
    raise NotChecked(f'round {t} releases numbers that are not finite')


def _changes(old: Claim, new: Claim) -> str:
  return ', '.join(
    f'{field.name}={getattr(new, field.name)}'
    for field in dataclasses.fields(new)
    if getattr(new, field.name) != getattr(old, field.name)
  )
