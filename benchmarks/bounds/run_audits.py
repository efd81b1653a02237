"""Audits of simulated runs whose ε is known.

Canaries of one run share its noise and rounds and add to one another's scores; those of
a Hadamard matrix are orthogonal, those of a sphere are not.
"""

import collections
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Float
import numpy as np

from benchmarks.bounds import simulated_runs
from benchmarks.bounds.laws import Audits, describe
from benchmarks.bounds.simulated_runs import SimulatedRun
from epe_jax import canaries
from epe_jax.audit import attackers
from epe_jax.audit.attack_scores import AttackScores, ThreatModel
from epe_jax.audit.record import Record
from epe_jax.epsilon import tradeoff
from epe_jax.epsilon.types import Scores
from epe_jax.report import words
from epe_jax.types import Array, Key

ROUNDS = 4
CLIENTS = 3.0
# ε at δ = 1e-5 for an attacker who knows the round of a canary.
EPSILON_OF_A_ROUND = 5.0

READINGS: tuple[ThreatModel, ...] = (
  attackers.CHANGE,
  attackers.MAXIMUM,
  attackers.LIKELIHOOD,
  attackers.OWN,
  attackers.RESIDUAL,
)
# Scores of observed canaries are Gaussian with a common shift.
_GAUSSIAN = {attackers.CHANGE, attackers.OWN, attackers.RESIDUAL}
# Attacker -> rounds of noise in its score, and the squared norm of what others add.
_OTHERS = {
  attackers.CHANGE: (ROUNDS, lambda num: num + (ROUNDS * CLIENTS) ** 2),
  attackers.OWN: (1, lambda num: num / ROUNDS + CLIENTS**2),
}


def simulate(
  rng: np.random.Generator,
  directions: str,
  dim: int,
  num: int,
  *,
  delta: float,
  audits: int,
) -> list[Audits]:
  """Audits of runs, as each attacker reads them.

  Args:
    rng: source of all of it.
    directions: 'sphere' or 'orthogonal', as in `simulated_runs.simulate`; or
      'hadamard' or 'hadamard2' for the canaries of this package.
    dim: d.
    num: observed canaries, and as many unobserved.
    delta: in (0, 1).
    audits: runs of fixed numbers, and as many again by coins.

  Returns:
    The audits of each of `READINGS`.
  """
  noise = 1 / tradeoff.mu_of_epsilon(EPSILON_OF_A_ROUND, delta)

  def run(coins: bool) -> SimulatedRun:
    return simulated_runs.simulate(
      rng,
      observed=num,
      unobserved=num,
      rounds=ROUNDS,
      dim=dim,
      noise=noise,
      clients=CLIENTS,
      coins=coins,
      delta=delta,
      canaries=_draw_canaries(rng, directions, 2 * num, dim),
    )

  fixed: dict[ThreatModel, list[AttackScores]] = {r: [] for r in READINGS}
  by_coins: dict[ThreatModel, list[Scores]] = {r: [] for r in READINGS}
  record = run(coins=False).record
  for _ in range(audits):
    chosen, flipped = run(coins=False).record, run(coins=True).record
    for reading in READINGS:
      fixed[reading].append(_score(reading, chosen))
      by_coins[reading].append(_score(reading, flipped).scores)
  several = []
  for reading, scored in fixed.items():
    analytic = reading.analytic_epsilon(record, record.delta)
    assert analytic is not None, 'the noise of the run is known'
    # The usual null law; a test rejects it in some audits by chance.
    nulls = collections.Counter(one.scores.null for one in scored)
    is_gaussian, scale, beyond = reading in _GAUSSIAN, scored[0].scale, None
    if directions == 'sphere' and reading in _OTHERS:
      # The others are noise to an attacker who does not remove them.
      rounds, count_others = _OTHERS[reading]
      variance = rounds * noise**2 + count_others(num) / dim
      beyond = float(tradeoff.epsilon_gdp(1 / float(np.sqrt(variance)), delta))
    audits_of = Audits(
      title=f'{directions}, d = {dim:,}: {describe(num, delta, audits)}',
      law=words.spell_statistic(reading),
      epsilon=analytic.epsilon,
      delta=delta,
      # In units of the null's standard deviation.
      fixed=Scores(
        scale * np.stack([one.scores.observed for one in scored]),
        scale * np.stack([one.scores.unobserved for one in scored]),
      ),
      by_coins=by_coins[reading],
      null=nulls.most_common(1)[0][0],
      shifted=[one.scores for one in scored] if is_gaussian else (),
      epsilon_of_scores=beyond,
      has_gaussian_scores=is_gaussian,
      has_gaussian_curve=is_gaussian,
    )
    several.append(audits_of)
  return several


def _draw_canaries(
  rng: np.random.Generator, directions: str, num: int, dim: int
) -> simulated_runs.Canaries:
  if directions == 'sphere' or directions == 'orthogonal':
    return directions
  key = jax.random.key(int(rng.integers(2**31)))
  return np.asarray(make_rows(directions, key, num, dim), np.float64)


@functools.partial(jax.jit, static_argnames=('family', 'num', 'dim'))
def make_rows(
  family: str, key: Key, num: int, dim: int
) -> Float[Array, 'num dim']:
  """The canaries of a family as rows of a matrix."""
  made = canaries.family(family)(key, num, dim)
  one = jnp.ones(1)
  return jax.vmap(lambda i: made.superpose(i[None], one))(jnp.arange(num))


def _score(reading: ThreatModel, record: Record) -> AttackScores:
  scored = reading.score(record)
  assert scored is not None, 'a simulated run has all that can be seen'
  return scored
