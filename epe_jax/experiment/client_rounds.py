"""In which rounds clients of a run take part, and what a linear server leaves of them.

In the final model of a linear server an update of the full clip norm in round t leaves a
shift w_t, in units of the noise (`upper_bounds.expect_shifts`). Those of a client of
rounds B add up to

  Σ w_t   if its updates agree, as a canary's do,   √Σ w_t²   if they are orthogonal.

An attacker who does not know B tells N(0, 1) from the mixture over all rounds that
clients may have.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from jaxtyping import Float, Int
import numpy as np
from scipy import special

from epe_jax.accounting import Mixture

Shifts: TypeAlias = tuple[Mixture, Mixture]
"""Laws of the shift of a client's score: its updates are orthogonal; they agree."""

Schedule: TypeAlias = Sequence[
  tuple[Sequence[int] | Int[np.ndarray, '_'], float]
]
"""Rounds of which a client has one at most, and the probability of each of these: for
each of several independent draws."""

# Points of a law of shifts, and the probability of those beyond the last of them.
_POINTS, _TAIL = 200, 1e-12
_DIGITS = 6


class Participations(NamedTuple):
  """How often canaries and clients of a run take part."""

  canaries: int  # m >= 1, rounds of a canary, at most.
  clients: int  # n >= 1, rounds of a client, at most.
  # Of a client, at the δ of the run, at most; inf without noise.
  analytic_epsilon: float
  # Whether canaries may take part in different numbers of rounds.
  canaries_vary: bool = False
  is_sampled: bool = (
    False  # Whether clients are drawn in secret for each round.
  )
  # Whether `analytic_epsilon` counts on that, and is not that of a Gaussian mechanism.
  is_amplified: bool = False
  is_gaussian: bool = True  # Whether the mechanism is, in known rounds.
  # Of clients in the final model, in units of its noise; None where not known.
  shifts: Shifts | None = None

  @property
  def differ(self) -> bool:
    """Whether canaries show something of other rounds than a client's."""
    return (
      self.canaries_vary or self.is_sampled or self.canaries != self.clients
    )


def check_claim(
  name: str, claim: float, of_canary: float, participations: Participations
) -> None:
  """Refuses a claim about clients that canaries in known rounds cannot test.

  Args:
    name: of the argument that claims it.
    claim: ε >= 0.
    of_canary: the analytic ε of canaries at the same δ.
    participations: of canaries and clients.

  Raises:
    ValueError: canaries may reveal more than is claimed although clients do not.
  """
  canaries, n = participations.canaries, participations.clients
  if participations.is_sampled and claim < of_canary:
    raise ValueError(
      f'{name}={claim:g} cannot be tested: rounds of clients are drawn in secret, '
      f'while attackers know those of canaries, who are allowed ε = {of_canary:.6g}. '
      'Claim no less, as of a client whose rounds are known, or leave out the claim.'
    )
  if canaries > n and not participations.is_sampled:
    raise ValueError(
      f'{name}={claim:g} cannot be tested: it is of a client, who takes part in '
      f'{n} rounds at most, but canaries take part in {canaries} and are allowed '
      'more. Give canaries no more (canaries.repetitions), or leave out the claim.'
    )


def find_shifts(
  of_rounds: Float[np.ndarray, ' T'], schedules: Sequence[Schedule]
) -> Shifts:
  """Finds the laws of √Σ w_t² and of Σ w_t over the rounds of a client.

  Args:
    of_rounds: w_t >= 0, as `upper_bounds.expect_shifts` gives them.
    schedules: of clients, each as likely as the others.

  Returns:
    Laws on a grid of at most `_POINTS` numbers.
  """
  squares = _sum_rounds(of_rounds**2, schedules)
  return (
    squares._replace(shifts=tuple(_round(np.sqrt(squares.shifts)))),
    _sum_rounds(of_rounds, schedules),
  )


def _sum_rounds(
  values: Float[np.ndarray, ' T'], schedules: Sequence[Schedule]
) -> Mixture:
  laws = [_sum_draws(values, schedule) for schedule in schedules]
  points = np.concatenate([points for points, _ in laws])
  law = np.concatenate([law for _, law in laws]) / len(laws)
  kept, index = np.unique(points, return_inverse=True)
  if kept.size > _POINTS:
    grid = np.linspace(kept[0], kept[-1], _POINTS)
    law, kept = _share((points - grid[0]) / (grid[1] - grid[0]), law), grid
  else:
    law = np.bincount(index, law)
  likely = law > _TAIL
  return Mixture(tuple(_round(kept[likely])), tuple(_round(law[likely])))


def _sum_draws(
  values: Float[np.ndarray, ' T'], schedule: Schedule
) -> tuple[Float[np.ndarray, '_'], Float[np.ndarray, '_']]:
  """Points and probabilities of the sum of independent draws."""
  draws, least = [], 0.0
  for rounds, probability in schedule:
    of_draw, out = values[rounds], 1 - probability * len(rounds)
    if out < 1e-9:
      least, of_draw, out = least + of_draw.min(), of_draw - of_draw.min(), 0.0
    draws.append((of_draw, probability, out))
  # The largest sum, or one that is exceeded next to never where some may have none.
  tops = np.sort([of_draw.max() for of_draw, _, _ in draws])[::-1]
  most_likely = max((1 - out for _, _, out in draws), default=0.0)
  beyond = special.bdtrc(np.arange(len(tops) + 1), len(tops), most_likely)
  largest = float(tops[: max(1, int(np.argmax(beyond <= _TAIL)))].sum())
  if largest == 0:
    return np.array([least]), np.array([1.0])
  # Whole steps to the largest of a round, so that equal ones are on the grid.
  whole = max(1, int((_POINTS - 1) * tops[0] / largest))
  step = max(tops[0] / whole, largest / (_POINTS - 1))
  law = np.eye(1, _POINTS)[0]
  for of_draw, probability, out in draws:
    one = _share(of_draw / step, np.full(of_draw.size, probability))
    one[0] += out
    law = np.convolve(law, one)
    law[_POINTS - 1] += law[_POINTS:].sum()
    law = law[:_POINTS]
  return np.minimum(least + step * np.arange(_POINTS), least + largest), law


def _share(
  cells: Float[np.ndarray, ' n'], mass: Float[np.ndarray, ' n']
) -> Float[np.ndarray, '_']:
  """Mass on a grid: what lies between two points goes to both, and keeps its mean."""
  below = np.minimum(cells.astype(int), _POINTS - 2)
  above = mass * (cells - below)
  law = np.bincount(below, mass - above, minlength=_POINTS)
  return law + np.bincount(below + 1, above, minlength=_POINTS)


def _round(x: Float[np.ndarray, ' n']) -> list[float]:
  """Numbers with the digits that a file keeps of them."""
  return [float(f'{number:.{_DIGITS}g}') for number in x]
