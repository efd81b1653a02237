"""What a mechanism is sent, and how far one client moves what it releases.

Influences are read with a tiny noise multiplier: the release of a round with the
client less that of a round without it, in units of the largest influence that the
claim allows a client.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import functools
import math
from typing import Any, NamedTuple, TypeVar

from jaxtyping import Bool, Float
import numpy as np

from epe_jax.conformance import laws
from epe_jax.conformance.claim import Claim
from epe_jax.conformance.laws import TOLERANCE
from epe_jax.conformance.noise import Layout, norm
from epe_jax.conformance.session import (
  LATER,
  Cohort,
  Make,
  NotChecked,
  Run,
  Session,
  Vector,
)

T = TypeVar('T')

HUGE = 1e6
"""Norm of an update that has to be clipped, in clip norms."""
HEAVY = 1000.0
"""Weight, relative to the other clients, of one that must count as they do."""
MIN_RUNS = 6

# Rounds in which a coordinate is the same that is taken for a constant.
_MAX_LOOKS = 40
# Rounds in which such a coordinate may move, as of layers that are trained in turns.
_LOOKED_AT = 4

_READABLE = 1e-3
# Whose influences are compared.
_MAX_PLACES = 1024
# Rounding to float32 must not lift an update of norm S above S.
_BELOW = 1 - 1e-6
# Rounds of a long run, and numbers in the influences of a client on all of them.
_MAX_ROUNDS, _MAX_NUMBERS = 32, 20_000_000


class Probe(NamedTuple):
  """Two neighbouring rounds, which differ in one client.

  Its influence is the difference of releases over the distance of its two updates.
  """

  cohort: Cohort
  baseline: Cohort
  distance: float = 1


class Measurements:
  """A mechanism that is measured, with all that rules share.

  Attributes:
    claim: of the coordinates that are not constant; see `leave_out_constants`.
    layout: of these coordinates of an update and of a release.
    zero: an update without effect: zeros, or next to them if zeros fail.
    zero_error: what zeros lead to if they fail, else None.
    place: of the client in question among those of a round.
    step: of the grid to which updates are rounded, over S; that of the claim, or the one
      that `find_grid` finds. 0 if there is none.
    uniform: an update of norm S, of equal size in all coordinates.
    equal: the same, of equal norm in all tensors.
    background: three updates of half the clip norm, for the other clients.
    made: measurements by the function that made them; see `measured`.
  """

  def __init__(
    self, make: Make, claim: Claim, *, budget: float, rng: np.random.Generator
  ):
    self.session = Session(make, claim, seconds=budget)
    self.budget, self.rng = budget, rng
    self.zero_error = None
    self.place = 0
    self.made: dict[Callable, Any] = {}
    self._set_claim(claim)

  def _set_claim(self, claim: Claim, step: float = 0.0) -> None:
    self.claim = claim
    self.step = step or claim.step
    self.layout = Layout(claim.sizes, claim.order, claim.granularity > 0)
    self._signs = self.rng.choice([-1.0, 1.0], claim.dim)
    self.uniform = self._scale(self._signs)
    self.zero = 0 * self.uniform
    if self.zero_error is not None:
      self.zero = 1e-12 * self.uniform
    tensors = self.layout.split(self._signs)
    self.equal = self._scale(
      np.concatenate([t / claim.measure(t) for t in tensors])
    )
    vectors = self.rng.standard_normal((3, claim.dim))
    self.background = [v / claim.measure(v) / 2 for v in vectors]

  def leave_out_constants(self) -> None:
    """Leaves out coordinates that are released without noise whatever clients send.

    Nobody's update enters them: a frozen tensor, a counter, what a public mask hides.
    """
    claim, zeros = self.claim, self.cohort(self.zero)
    rounds = min(_LOOKED_AT, claim.max_rounds or _LOOKED_AT)
    usual = self.session.start(claim)
    first, later = usual.release(zeros), []
    is_constant = np.ones(claim.dim, bool)
    moves_later = np.zeros(claim.dim, bool)
    num_equal, looks = np.zeros(claim.dim), 0
    tensors = np.repeat(np.arange(len(claim.sizes)), claim.sizes)
    # Noise on a coarse grid is equal now and then.
    for i in range(self.plan(0.02, max_runs=_MAX_LOOKS)):
      sent, others = self._disturb(i, is_constant)
      with contextlib.suppress(NotChecked):
        cohort, run = self.cohort(sent, others), self.session.start(claim)
        is_equal = run.release(cohort) == first
        is_constant &= is_equal
        num_equal += is_equal
        looks += 1
        if is_constant.any():
          later = later or [usual.release(zeros) for _ in range(rounds - 1)]
          for expected in later:
            moves_later |= run.release(cohort) != expected
        is_alone = np.count_nonzero(sent) == 1
        if is_alone and not is_constant[k := int(np.argmax(sent))]:
          # What holds for one holds for its tensor.
          is_constant[tensors == tensors[k]] = False
      if not is_constant.any():
        return
    if not looks or is_constant.all():
      return
    # Where coordinates are left out at random, some are left out each time.
    share = float(np.mean(num_equal[~is_constant])) / looks
    if claim.dim * share**looks > 1e-3:
      return
    self.session.leave_out(is_constant)
    if np.any(moves_later & is_constant):
      self.session.moves.add(LATER)
    self._set_claim(self.session.claim)

  def _disturb(
    self, i: int, where: Bool[np.ndarray, 'd']
  ) -> tuple[Vector, Sequence[Vector]]:
    """The i-th kind of what clients send to move coordinates, and other clients."""
    # Also in these coordinates alone, and in one of them, whatever size moves them.
    alone = self._signs * where
    alone = alone / self.claim.measure(alone)
    k = int(self.rng.choice(np.flatnonzero(where)))
    kinds = (
      (self.uniform, self.background),
      (HUGE * self.uniform, ()),
      (alone, ()),
      (-HUGE * alone, ()),
      (self.in_coordinate(k), ()),
    )
    return kinds[i % len(kinds)]

  def try_zeros(self) -> None:
    """Runs a round of zeros; if it fails, other rounds have tiny updates instead."""
    try:
      (released,) = self.release_afresh(self.cohort(self.zero), 1)
      if np.all(np.isfinite(released)):
        return
      self.zero_error = 'numbers are released that are not finite'
    except NotChecked as error:
      self.zero_error = str(error)
    self.zero = 1e-12 * self.uniform

  def find_place(self) -> None:
    """Puts the client in question at the position of least nonzero influence."""
    if self.claim.num_clients > 1:
      counts = {place: size for place, size in self.counts.items() if size > 0}
      self.place = min(
        counts, key=lambda place: (counts[place], place), default=0
      )

  def find_grid(self) -> None:
    """Sends updates on a grid if updates, or sums, are rounded before the noise."""
    if self.step or not self.is_readable:
      return
    nothing = self.quiet().release(self.cohort(self.zero))
    move = lambda u: self.quiet().release(self.cohort(u)) - nothing
    moved = np.stack([move(u) for u in self.background])
    # Small numbers may all be rounded to zero, and few have other divisors.
    if norm(moved) < _READABLE or self.claim.dim < laws.FEW_DIMS:
      large = [x * self.in_coordinate(0) for x in self.rng.uniform(0.2, 1, 8)]
      moved = np.stack([move(u) for u in large])
    step = laws.find_divisor(moved)
    (noisy,) = self.release_afresh(self.cohort(self.zero), 1)
    steps = (noisy - nothing) / (step or 1.0)
    if 1e-3 < step <= 1 and np.abs(steps - np.rint(steps)).max() > 0.1:
      self._set_claim(self.claim, step)

  def divide_by_rates(self) -> None:
    """Divides releases by factors of coordinates, if these differ within a tensor.

    Sum and noise are multiplied with them, such as with a public rate for each row.
    """
    self.check_quiet()
    if self.step:
      return  # What is half of an update on a grid is rounded.
    nothing, found = self.quiet().release(self.cohort(self.zero)), []
    for signs, size in (
      (self._signs, 0.5),
      (self.rng.permutation(self._signs), 0.3),
    ):
      sent = size * self._scale(signs)
      released = self.quiet().release(self.cohort(sent))
      found.append((released - nothing) / np.where(sent, sent, math.inf))
    first, second = found
    if not (first.min() > 0 and np.allclose(first, second, rtol=1e-3, atol=0)):
      return
    tensors = self.layout.split(first)
    rates = np.concatenate([t / math.sqrt(np.mean(t**2)) for t in tensors])
    if np.ptp(rates) > 0.02:
      self.session.rates = rates

  def name_tensor(self, k: int) -> str:
    """Names a tensor by its place in the claim that was given."""
    return f'tensor {self.session.tensors[k]}'

  # What is sent.

  def in_coordinate(self, k: int) -> Vector:
    """An update of norm S that is zero outside one coordinate."""
    vector = np.zeros(self.claim.dim)
    vector[k] = _BELOW
    return vector

  def in_tensor(self, k: int) -> Vector:
    """An update of norm S that is zero outside one tensor."""
    parts = self.layout.split(np.zeros(self.claim.dim))
    parts[k] = self.layout.split(self._signs)[k]
    return self._scale(np.concatenate(parts))

  def _scale(self, vector: Vector) -> Vector:
    """Scales an update to norm S, with numbers on the claimed grid if there is one."""
    step, p = self.step, self.claim.norm
    vector = vector / self.claim.measure(vector)
    if not 0 < step <= 1:
      return vector * _BELOW
    # To a step below, then as many to the next as the norm allows. A grid that is not
    # claimed may be one to which numbers are rounded towards zero.
    factor = _BELOW if self.claim.step else 1 + 1e-5
    steps, used = np.floor(np.abs(vector) / step + 1e-6), vector != 0
    if math.isfinite(p):
      costs = ((steps + 1) ** p - steps**p) * used
      left = (max(1.0, factor) * step) ** -p - np.sum(steps**p)
      steps += used * (np.cumsum(costs) <= left)
    return step * np.sign(vector) * steps * factor

  def cohort(
    self,
    update: Vector | None,
    others: Sequence[Vector] = (),
    *,
    present: int | None = None,
    weight: float = 1.0,
    claim: Claim | None = None,
    place: int | None = None,
  ) -> Cohort:
    """The clients of a round: the one in question, and others of weight 1.

    Args:
      update: of the client; None if it is absent.
      others: updates that the others send in turn; zeros by default.
      present: number of clients, with the one in question; n by default.
      weight: of the client.
      claim: the claim that gives n.
      place: of the client; `self.place` by default.
    """
    num = (present or (claim or self.claim).num_clients) - 1
    options = list(others) or [self.zero]
    updates = [options[i % len(options)] for i in range(num)]
    weights = [1.0] * num
    if update is None:
      return Cohort(updates, weights)
    place = min(self.place if place is None else place, num)
    updates.insert(place, update)
    weights.insert(place, weight)
    return Cohort(updates, weights)

  def probe(
    self, update: Vector, others: Sequence[Vector] = (), **given: Any
  ) -> Probe:
    """A client against one that sends zeros; `given` is that of `cohort`.

    With adjacency 'replace' it is against the opposite update, and counts half.
    """
    replaces = self.claim.adjacency == 'replace'
    without = -update if replaces else self.zero
    cohort = functools.partial(self.cohort, others=others, **given)
    return Probe(cohort(update), cohort(without), self.claim.distance)

  # What is run.

  def quiet(self, claim: Claim | None = None) -> Run:
    """A fresh run with next to no noise."""
    claim = claim or self.claim
    tiny = min(1e-8, 1e-5 / math.sqrt(claim.dim))
    return self.session.start(dataclasses.replace(claim, noise_multiplier=tiny))

  def release_afresh(self, cohort: Cohort, runs: int) -> Iterator[Vector]:
    """Releases of the first round of fresh runs under the claim."""
    for _ in range(runs):
      yield self.session.start(self.claim).release(cohort)

  def sample_rounds(
    self, runs: int, rounds: int, cohort: Cohort, claim: Claim | None = None
  ) -> Float[np.ndarray, 'R T k']:
    """Noise of the first rounds of fresh runs: releases less the quiet release."""
    claim = claim or self.claim
    keep = self.layout.keep
    run = self.quiet(claim)
    expected = np.stack([keep(run.release(cohort)) for _ in range(rounds)])
    if not self.is_readable:
      expected = np.zeros_like(expected)
    sampled = np.empty((runs, *expected.shape))
    for i in range(runs):
      run = self.session.start(claim)
      for t in range(rounds):
        released = keep(run.release(cohort))
        # A round that releases nothing has no noise.
        sampled[i, t] = released if released.any() else expected[t]
    return sampled - expected

  @functools.cached_property
  def publishes(self) -> bool:
    """Whether the mechanism has a public clip norm."""
    return self.quiet().public_clip_norm is not None

  @functools.cached_property
  def seconds_per_round(self) -> float:
    """Seconds to make a mechanism and run a round of zero updates."""
    times = [self.session.elapsed]
    for _ in self.release_afresh(self.cohort(self.zero), 3):
      times.append(self.session.elapsed)
    # The least of three, as the machine may do something else.
    return float(np.diff(times).min())

  def plan(self, share: float, *, rounds: int = 1, max_runs: int) -> int:
    """Number of runs that fit into a share of the budget."""
    seconds = self.seconds_per_round * rounds
    return max(MIN_RUNS, min(max_runs, int(share * self.budget / seconds)))

  @property
  def max_rounds(self) -> int:
    """Maximum number of rounds of a long run."""
    allowed = self.claim.max_rounds or _MAX_ROUNDS
    in_time = int(0.3 * self.budget / (5 * self.seconds_per_round))
    in_space = _MAX_NUMBERS // self.claim.dim
    return min(allowed, in_time, in_space, _MAX_ROUNDS)

  # What one client changes.

  @property
  def unit(self) -> str:
    """The unit of influences, as text."""
    return 'S / n' if self.claim.release == 'mean' else 'S'

  @functools.cached_property
  def floor(self) -> float:
    """Norm of the difference of two quiet releases of the same updates."""
    cohorts = [
      self.cohort(self.zero),
      # Randomness may multiply updates, so zeros are not enough; nor is a sum of 0.
      self.cohort(0.3 * self.uniform, self.background),
    ]
    # Few coordinates, or clients, may agree by accident if some are left out at random.
    fewest = min(self.claim.dim / 128, self.claim.num_clients / 20)
    repeats = math.ceil(1 / fewest)
    return max(
      norm(self.quiet().release(cohort) - self.quiet().release(cohort))
      for cohort in cohorts * repeats
    )

  @property
  def is_readable(self) -> bool:
    """Whether a tiny noise multiplier leaves next to no noise."""
    return self.floor < _READABLE

  def check_quiet(self) -> None:
    """Raises NotChecked unless a tiny noise multiplier leaves next to no noise."""
    if not self.is_readable:
      raise NotChecked(
        'influences cannot be read: with next to no noise claimed, releases of '
        f'the same updates still differ by {self.floor:.2g} clients. If they are '
        'rounded at random, or clients are drawn, leave that out for the check'
      )

  @functools.cached_property
  def rounding(self) -> float:
    """Norm of the rounding of a release by the type of its numbers, such as of a model."""
    run = self.quiet()
    clip_norm = run.clip_norm
    # Of updates that leave digits in every number of a model.
    released = run.release_as_is(
      self.cohort(0.3 * self.uniform, self.background)
    )
    kinds = (np.float16, np.float32, np.float64)
    kind = next(
      x for x in kinds if np.array_equal(released, released.astype(x))
    )
    last = np.spacing(released.astype(kind)).astype(float)
    single = released.astype(np.float32)
    if kind is not np.float64 and not np.any(single.view(np.uint32) & 0xFFFF):
      last = np.spacing(single).astype(float) * 2**16  # bfloat16.
    return norm(last) / abs(clip_norm * self.claim.unit)

  def influence(self, probe: Probe, claim: Claim | None = None) -> Vector:
    """Influence of a probe, nearly without noise; raises as `check_quiet`."""
    self.check_quiet()
    released = self.quiet(claim).release(probe.cohort)
    moved = released - self.quiet(claim).release(probe.baseline)
    return moved / probe.distance

  def influences(self, probes: Sequence[Probe]) -> list[Vector]:
    """Influences of several probes; equal baselines are run once."""
    self.check_quiet()
    moved, baselines = [], {}
    for cohort, baseline, distance in probes:
      key = (*map(id, baseline.updates), *baseline.weights)
      if key not in baselines:
        baselines[key] = self.quiet().release(baseline)
      released = self.quiet().release(cohort)
      moved.append((released - baselines[key]) / distance)
    return moved

  def influence_of(
    self, update: Vector, others: Sequence[Vector] = (), **given: Any
  ) -> Vector:
    """Influence of a client, as of its `probe`."""
    return self.influence(
      self.probe(update, others, **given), given.get('claim')
    )

  @functools.cached_property
  def exact(self) -> Sequence[tuple[Vector, Vector]]:
    """(update, influence) of updates of norm S, spread over tensors in many ways."""
    some = range(min(len(self.claim.sizes), 8))
    updates = [self.uniform, self.equal, *map(self.in_tensor, some)]
    if self.claim.norm < self.claim.order:
      # Longest in the norm of the noise if it is in one coordinate.
      updates.append(self.in_coordinate(0))
    # If tensors have clip norms of their own, an update arrives whole only if it is
    # spread as an update that is clipped in every tensor arrives.
    clipped = self.influence_of(HUGE * self.equal) * np.sign(self.claim.unit)
    if 0 < norm(clipped) < math.inf:
      updates.append(self._scale(clipped))
    return [(u, self.influence_of(u)) for u in updates]

  @functools.cached_property
  def _best(self) -> int:
    lengths = [self.layout.length(influence) for _, influence in self.exact]
    is_best = np.array(lengths) >= (1 - TOLERANCE) * max(lengths)
    return int(np.argmax(is_best))

  @property
  def base(self) -> Vector:
    """Largest influence of an ordinary client whose update has norm S."""
    return self.exact[self._best][1]

  @property
  def base_update(self) -> Vector:
    """The update that has this influence."""
    return self.exact[self._best][0]

  @functools.cached_property
  def counts(self) -> dict[int, float]:
    """`count` of clients at the start, in the middle, at the end, and of suspects.

    They are equal to the precision of arithmetic, or not equal at all; two digits
    say how much less than the largest they are.
    """
    places = self.find_suspects(0.5) | {self.claim.num_clients // 2}
    sizes = {place: self.count(place) for place in sorted(places)}
    most = max(sizes.values())
    if not 0 < most < math.inf:
      return sizes
    return {
      place: most * float(f'{size / most:.2g}') for place, size in sizes.items()
    }

  def count(self, place: int) -> float:
    """Influence of an update of half the clip norm in a place of the round, over it."""
    make = functools.partial(self.cohort, place=place)
    moved = self.influence(Probe(make(self.uniform / 2), make(self.zero)))
    size = norm(moved) / norm(self.uniform / 2)
    return size if size > _READABLE else 0.0

  def find_suspects(self, size: float) -> set[int]:
    """The first and the last place, and those that may count for more, or less.

    In one round each client sends an update of this norm in a coordinate of its own.
    """
    n, dim = self.claim.num_clients, self.claim.dim
    nothing = self.quiet().release(self.cohort(self.zero))
    moved = np.zeros(min(n, _MAX_PLACES, 16 * dim))
    for start in range(0, moved.size, dim):
      some = range(start, min(start + dim, moved.size))
      updates = [self.zero] * n
      for i in some:
        updates[i] = size * self.in_coordinate(i - start)
      released = self.quiet().release(Cohort(updates, [1.0] * n)) - nothing
      moved[start : start + dim] = np.abs(released[: len(some)])
    extremes = {int(np.argmax(moved)), int(np.argmin(moved))}
    usual = float(np.median(moved))
    return {0, n - 1} | {
      i for i in extremes if abs(moved[i] - usual) > 0.01 * usual
    }

  @property
  def count_alike(self) -> bool:
    """Whether clients count alike, wherever they are in a round."""
    return max(self.counts.values()) <= 1.02 * min(self.counts.values())


def measured(
  measure: Callable[[Measurements], T],
) -> Callable[[Measurements], T]:
  """Makes a measurement of a mechanism once, when it is first needed."""

  @functools.wraps(measure)
  def measure_once(m: Measurements) -> T:
    if measure not in m.made:
      m.made[measure] = measure(m)
    return m.made[measure]

  return measure_once
