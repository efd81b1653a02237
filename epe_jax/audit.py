"""Auditing wraps: canaries go into a training algorithm, cosines come out.

`audited` turns an algorithm into an algorithm. What an attacker would see is
scored by observers, all in one run. Their scores, read by `own_round` and
`maximum`, are what `epe_jax.epsilon` estimates from.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int
import numpy as np

from epe_jax import fedavg
from epe_jax.canaries import Canaries
from epe_jax.types import Array, Params


class Observer(NamedTuple):
  """An attacker's view of a run.

  Attributes:
    init: params -> state.
    update: (state, before, aggregate, after) -> state, once in every round,
      with the parameters [d] before and after it and rho_bar [d].
    scores: (state, final params) -> cosines: [k] for an attacker who looks
      once, [T, k] for one who looks in every round.
  """

  init: Callable[[Params], Any]
  update: Callable[[Any, Array, Array, Array], Any]
  scores: Callable[[Any, Params], Float[Array, '...']]


class AuditState(NamedTuple):
  """State of the algorithm, and of each observer by name."""

  algorithm: fedavg.TrainState
  observers: dict[str, Any]


class Trace(NamedTuple):
  """What `all_iterates` has seen so far.

  Attributes:
    round: rounds seen.
    buffer: the vectors of the rounds that are not scored yet.
    cosines: [T, k]; rows of rounds still to come are 0.
    maximum: [k], the running maximum over scored rounds; -1 before the first.
  """

  round: Int[Array, '']
  buffer: Float[Array, 'r d']
  cosines: Float[Array, 'T k']
  maximum: Float[Array, ' k']


def cosines(
  canaries: Canaries, v: Float[Array, '*r d']
) -> Float[Array, '*r k']:
  """cos(c_j, v) = <c_j, v> / |v| of all canaries; 0 where v = 0.

  A vector of zeros tells an attacker nothing, and a cosine of 0 says so.
  """
  norm = jnp.linalg.norm(v, axis=-1, keepdims=True)
  return canaries.project(v) / jnp.where(norm > 0, norm, 1)


def final_model(
  canaries: Canaries, *, relative_to_init: bool = False
) -> Observer:
  """The attacker who sees the final model alone: cos(c_j, theta_T).

  Args:
    canaries: all canaries, observed and unobserved.
    relative_to_init: look at theta_T - theta_0 instead, for an attacker who
      knows the initial model. The paper looks at theta_T.

  Source: One-shot Empirical Privacy Estimation, Algorithm 2.
  """

  def init(params: Params) -> tuple[Float[Array, ' d'], ...]:
    return (ravel_pytree(params)[0],) if relative_to_init else ()

  def scores(state: tuple[Array, ...], params: Params) -> Float[Array, ' k']:
    theta, _ = ravel_pytree(params)
    return cosines(canaries, theta - state[0] if relative_to_init else theta)

  return Observer(init, lambda state, before, aggregate, after: state, scores)


def all_iterates(
  canaries: Canaries,
  *,
  rounds: int,
  sees: str = 'aggregate',
  buffer: int = 16,
) -> Observer:
  """The attacker who sees every round: the cosines of all rounds, T x k.

  Looking is dear because canaries are generated anew for each look. So the
  vectors of `buffer` rounds are kept, R x d numbers, and scored in one go.

  Args:
    canaries: all canaries, observed and unobserved.
    rounds: T >= 1.
    sees: 'aggregate', rho_bar as the paper has it, or 'delta', the change of
      the model after the server optimizer, as the authors' code has it (with
      momentum it mixes rounds).
    buffer: R >= 1, rounds scored together.

  Raises:
    ValueError: rounds, sees or buffer is out of range.

  Source: One-shot Empirical Privacy Estimation, Algorithm 3.
  """
  if rounds < 1 or buffer < 1:
    raise ValueError(f'rounds={rounds}, buffer={buffer}; give both >= 1.')
  if sees not in ('aggregate', 'delta'):
    raise ValueError(f"sees={sees!r}; give 'aggregate' or 'delta'.")
  buffer = min(buffer, rounds)
  # Whole buffers are scored, so the trace has room for the last one.
  padded = -(-rounds // buffer) * buffer

  def init(params: Params) -> Trace:
    return Trace(
      round=jnp.zeros((), jnp.int32),
      buffer=jnp.zeros((buffer, canaries.dim), jnp.float32),
      cosines=jnp.zeros((padded, canaries.num), jnp.float32),
      maximum=jnp.full(canaries.num, -1, jnp.float32),
    )

  def score(trace: Trace) -> Trace:
    seen = cosines(canaries, trace.buffer)
    start = (trace.round - 1) // buffer * buffer
    live = start + jnp.arange(buffer) < trace.round
    top = jnp.max(jnp.where(live[:, None], seen, -1), axis=0)
    return trace._replace(
      buffer=jnp.zeros_like(trace.buffer),
      cosines=jax.lax.dynamic_update_slice(trace.cosines, seen, (start, 0)),
      maximum=jnp.maximum(trace.maximum, top),
    )

  def update(trace: Trace, before: Array, aggregate: Array, after: Array):
    v = aggregate if sees == 'aggregate' else after - before
    trace = trace._replace(
      buffer=trace.buffer.at[trace.round % buffer].set(v),
      round=trace.round + 1,
    )
    full = trace.round % buffer == 0
    return jax.lax.cond(full, score, lambda trace: trace, trace)

  def scores(trace: Trace, params: Params) -> Float[Array, 'T k']:
    pending = trace.round % buffer != 0
    trace = jax.lax.cond(pending, score, lambda trace: trace, trace)
    return trace.cosines[:rounds]

  return Observer(init, update, scores)


def audited(
  algorithm: fedavg.Algorithm,
  canaries: Canaries,
  participation: Bool[np.ndarray, 'T k'],
  observers: Mapping[str, Observer],
) -> fedavg.Algorithm:
  """The same algorithm with canaries in it and attackers watching.

  Args:
    algorithm: as `fedavg.dp_fedavg` gives it: step(state, cohort, injection,
      training_key, noise_key).
    canaries: k canaries; those in no row of participation are unobserved.
    participation: row t holds the canaries of round t.
    observers: the attackers, by name.

  Returns:
    init(params), and step(state, cohort, training_key, noise_key).

  Raises:
    ValueError: participation is not [rounds, k].
  """
  if participation.ndim != 2 or participation.shape[1] != canaries.num:
    raise ValueError(
      f'participation has shape {participation.shape}; give a row for each '
      f'round and a column for each of the {canaries.num} canaries.'
    )
  ids, weights = _padded_rows(participation)

  def init(params: Params) -> AuditState:
    dim = sum(leaf.size for leaf in jax.tree.leaves(params))
    if dim != canaries.dim:
      raise ValueError(
        f'canaries have dim={canaries.dim}, but the model has {dim} '
        'parameters; make canaries of the size of the model.'
      )
    return AuditState(
      algorithm.init(params),
      {name: observer.init(params) for name, observer in observers.items()},
    )

  def step(state: AuditState, cohort, training_key, noise_key):
    t = state.algorithm.round
    injection = fedavg.Injection(
      direction=canaries.superpose(
        jnp.asarray(ids)[t], jnp.asarray(weights)[t]
      ),
      count=jnp.asarray(weights)[t].sum().astype(jnp.int32),
    )
    before = state.algorithm.params
    new, info = algorithm.step(
      state.algorithm, cohort, injection, training_key, noise_key
    )
    assert info.aggregate is not None, 'the algorithm must show its aggregate'
    seen = (
      ravel_pytree(before)[0],
      info.aggregate,
      ravel_pytree(new.params)[0],
    )
    watched = {
      name: observer.update(state.observers[name], *seen)
      for name, observer in observers.items()
    }
    # The aggregate is for the observers; d numbers a round are no metric.
    return AuditState(new, watched), info._replace(aggregate=None)

  return fedavg.Algorithm(init, step)


def _padded_rows(
  participation: Bool[np.ndarray, 'T k'],
) -> tuple[Int[np.ndarray, 'T m'], Float[np.ndarray, 'T m']]:
  """Ids of each round's canaries, filled up with id 0 at weight 0."""
  most = int(participation.sum(axis=1).max(initial=0))
  # A stable sort puts the canaries of a round first, by id.
  ids = np.argsort(~participation, axis=1, kind='stable')[:, :most]
  weights = np.take_along_axis(participation, ids, axis=1)
  return np.where(weights, ids, 0).astype(np.int32), weights.astype(np.float32)


def maximum(trace: Float[np.ndarray, 'T k']) -> Float[np.ndarray, ' k']:
  """g_j = max_t cos(c_j, rho_bar_t): for one who does not know the rounds.

  Source: One-shot Empirical Privacy Estimation, Algorithm 3.
  """
  return np.max(np.asarray(trace, np.float64), axis=0)


def own_round(
  trace: Float[np.ndarray, 'T k'], participation: Bool[np.ndarray, 'T k']
) -> Float[np.ndarray, ' k']:
  """Cosine in a canary's own rounds: for one who knows when it took part.

  With n rounds of its own it is their sum over sqrt(n). For n = 1 a canary that
  took no part has the exact null law; for n > 1 its variance is 1/d only if the
  aggregates of those rounds are orthogonal, and client updates seldom are.

  Args:
    trace: cosines [T, k].
    participation: 0/1 matrix [T, k]; each canary takes part at least once. Use
      `lent` to read unobserved canaries too.

  Raises:
    ValueError: a canary has no round of its own.
  """
  own = np.asarray(participation, bool)
  n = own.sum(axis=0)
  if not np.all(n > 0):
    raise ValueError(
      f'participation has no round for canary {int(np.argmin(n))}; lend it '
      "another's, with `lent`, or read observed canaries only."
    )
  return np.sum(np.asarray(trace, np.float64) * own, axis=0) / np.sqrt(n)


def lent(
  participation: Bool[np.ndarray, 'T k'],
) -> Bool[np.ndarray, 'T k']:
  """The same matrix, with rounds lent to the canaries that have none.

  Unobserved canaries are read in the rounds of the observed ones in turn, so
  that the two groups differ in nothing but in having taken part.

  Raises:
    ValueError: no canary takes part in any round.
  """
  own = np.asarray(participation, bool)
  observed = own.any(axis=0)
  if not observed.any():
    raise ValueError(
      'participation is all zeros; no canary has rounds to lend.'
    )
  whose = np.arange(own.shape[1])
  whose[~observed] = np.resize(
    np.flatnonzero(observed), np.count_nonzero(~observed)
  )
  return own[:, whose]
