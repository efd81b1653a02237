"""Observers: they score what attackers see of a run while it trains."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
from jaxtyping import Float, Int

from epe_jax.audit.audit_step import divide_by_norm
from epe_jax.canaries import Canaries
from epe_jax.parallel import sharding
from epe_jax.parallel.sharding import fusion_barrier
from epe_jax.types import Array, Params


class RoundView(NamedTuple):
  """The vectors of a round that observers may score, each [d].

  Attributes:
    before: the parameters before the round.
    after: the parameters after the round.
    aggregate: ρ̄, the noisy mean.
    noiseless: ρ̄ without its noise, the part of the clients and canaries.
  """

  before: Float[Array, ' d']
  after: Float[Array, ' d']
  aggregate: Float[Array, ' d']
  noiseless: Float[Array, ' d']


class Observer(NamedTuple):
  """An attacker's view of a run.

  Attributes:
    init: params -> state.
    update: (state, view) -> state, called once in every round.
    scores: (state, final params) -> cosines of all canaries, [k] or [T, k], by
      name. `record.Record` has them under these names.
    flush: state -> state whose buffered vectors have been scored.
  """

  init: Callable[[Params], Any]
  update: Callable[[Any, RoundView], Any]
  scores: Callable[[Any, Params], dict[str, Float[Array, '... k']]]
  flush: Callable[[Any], Any] = lambda state: state


VIEWS: dict[str, Callable[[RoundView], Float[Array, ' d']]] = {
  'aggregate': lambda view: view.aggregate,
  'server_update': lambda view: view.after - view.before,
  'residual': lambda view: view.aggregate - view.noiseless,
}
"""The vectors that can be scored in a round, by name.

'aggregate' is ρ̄, as in the paper. 'server_update' is the change of the model, as in
the authors' code; with momentum it mixes rounds. 'residual' is ρ̄ less the part of all clients and
canaries. The analytic ε is of an attacker who knows all updates but one, and that one
is added back later, by `attackers.score_others_removed`."""


class Trace(NamedTuple):
  """The state of `all_iterates`.

  Attributes:
    round: number of rounds so far.
    pending: number of the latest rounds whose vectors are not scored yet.
    skipped: number of pending rounds, the first ones, that were scored before the run
      was stopped. Their slots stay empty, so that every vector has the slot, and its
      scores the bits, of a run that was never stopped.
    buffer: the pending vectors in the first slots; None if each round is scored
      immediately.
    cosines: [views, T, k], 0 for rounds to come.
  """

  round: Int[Array, '']
  pending: Int[Array, '']
  skipped: Int[Array, '']
  buffer: Float[Array, 'v r d'] | None
  cosines: Float[Array, 'v T k']


def compute_cosines(
  canaries: Canaries, v: Float[Array, '*r d']
) -> Float[Array, '*r k']:
  """Returns cos(c_j, v) = <c_j, v> / |v| of all canaries; 0 if v = 0."""
  norm = jnp.linalg.norm(v, axis=-1, keepdims=True)
  return divide_by_norm(canaries.project(v), norm)


def final_model(
  canaries: Canaries, *, mesh: sharding.Mesh | None = None
) -> Observer:
  """The attacker who sees the final model: cosines with θ_T and θ_T - θ_0.

  The paper scores θ_T, 'final'; θ_T - θ_0, 'change', is for an attacker who also
  knows the initial model. Canaries are generated once for both.

  Args:
    mesh: devices that share θ_0, if they divide d; None for one device.

  References:
    One-shot Empirical Privacy Estimation, Algorithm 2.
  """

  def init(params: Params) -> Float[Array, ' d']:
    # A copy, because a caller may donate the parameters.
    start = jnp.copy(ravel_pytree(params)[0])
    return sharding.shard_if_divisible(mesh, start, axes=(0,))

  def scores(
    start: Float[Array, ' d'], params: Params
  ) -> dict[str, Float[Array, ' k']]:
    theta, _ = ravel_pytree(params)
    final, change = compute_cosines(canaries, jnp.stack([theta, theta - start]))
    return {'final': final, 'change': change}

  return Observer(init, lambda start, view: start, scores)


def all_iterates(
  canaries: Canaries,
  *,
  rounds: int,
  views: Sequence[str] = ('aggregate',),
  buffer: int = 16,
  mesh: sharding.Mesh | None = None,
) -> Observer:
  """The attacker who sees every round: the cosines of all rounds.

  Canaries that are generated again for each projection make scoring expensive, so
  the vectors of R = `buffer` rounds are kept, V x R x d numbers, and scored
  together. With R = 1 none are kept.

  Args:
    rounds: T >= 1.
    views: names of the V of `VIEWS` to score; each has scores [T, k].
    buffer: R >= 1, rounds scored together; `audit_step.choose_buffer` chooses one.
    mesh: devices that share the state, vectors by views or rounds and cosines by
      views or canaries, if they divide these; None for one device.

  Raises:
    ValueError: rounds, views or buffer is out of range.

  References:
    One-shot Empirical Privacy Estimation, Algorithm 3.
  """
  if rounds < 1 or buffer < 1:
    raise ValueError(f'rounds={rounds}, buffer={buffer}; give both >= 1.')
  _check_views(views)
  buffer = min(buffer, rounds)
  # Whole buffers are scored, so the trace has room for one after its end.
  padded = rounds + buffer - 1

  def init(params: Params) -> Trace:
    kept = (len(views), buffer, canaries.dim)
    return Trace(
      round=jnp.zeros((), jnp.int32),
      pending=jnp.zeros((), jnp.int32),
      skipped=jnp.zeros((), jnp.int32),
      buffer=None
      if buffer == 1
      else sharding.shard_if_divisible(
        mesh, jnp.zeros(kept, jnp.float32), axes=(0, 1)
      ),
      cosines=sharding.shard_if_divisible(
        mesh,
        jnp.zeros((len(views), padded, canaries.num), jnp.float32),
        axes=(0, 2),
      ),
    )

  def score(trace: Trace, new: Float[Array, 'v r k']) -> Trace:
    place = jnp.arange(buffer)[:, None]
    start = trace.round - trace.pending
    old = jax.lax.dynamic_slice(trace.cosines, (0, start, 0), new.shape)
    new = jnp.where(place < trace.pending, new, 0)
    return trace._replace(
      pending=jnp.zeros((), jnp.int32),
      skipped=jnp.zeros((), jnp.int32),
      cosines=jax.lax.dynamic_update_slice(
        trace.cosines,
        jnp.where(place < trace.skipped, old, new),
        (0, start, 0),
      ),
    )

  def scored_if(due: Array, trace: Trace) -> Trace:
    held = trace.buffer
    assert held is not None, 'each round was scored at once'
    # Not returned by the branches, which would copy the buffer.
    scored = jax.lax.cond(
      due,
      lambda rest: score(rest, compute_cosines(canaries, held)),
      lambda rest: rest,
      trace._replace(buffer=None),
    )
    return scored._replace(buffer=held)

  def update(trace: Trace, view: RoundView) -> Trace:
    stack = lambda: jnp.stack([VIEWS[name](view) for name in views])
    advanced = trace._replace(round=trace.round + 1, pending=trace.pending + 1)
    if trace.buffer is None:
      # Materialize; otherwise XLA:CPU keeps the words of the noise until stacked.
      new = fusion_barrier(
        trace.round >= 0, lambda: compute_cosines(canaries, stack())
      )
      return score(advanced, new[:, None])
    trace = advanced._replace(
      buffer=trace.buffer.at[:, trace.pending].set(stack())
    )
    return scored_if(trace.pending == buffer, trace)

  def flush(trace: Trace) -> Trace:
    if trace.buffer is None:
      return trace
    return scored_if(trace.pending > 0, trace)

  def scores(trace: Trace, params: Params) -> dict[str, Float[Array, 'T k']]:
    del params
    return dict(zip(views, flush(trace).cosines[:, :rounds]))

  return Observer(init, update, scores, flush)


def running_maximum(
  canaries: Canaries, *, views: Sequence[str] = ('aggregate',)
) -> Observer:
  """The attacker who sees every round, with k numbers of state.

  It keeps the largest cosine of each canary so far, for audits whose T x k trace
  would not fit. The paper's statistic needs nothing else, and no other statistic can
  be computed from it. Each round is scored immediately.

  Args:
    views: names of `VIEWS` to score; each has scores [k] under the name 'max_...',
      which are -1 before the first round.

  Raises:
    ValueError: views is out of range.

  References:
    One-shot Empirical Privacy Estimation, Algorithm 3.
  """
  _check_views(views)

  def init(params: Params) -> Float[Array, 'v k']:
    del params
    return jnp.full((len(views), canaries.num), -1, jnp.float32)

  def update(
    largest: Float[Array, 'v k'], view: RoundView
  ) -> Float[Array, 'v k']:
    score = lambda: compute_cosines(
      canaries, jnp.stack([VIEWS[name](view) for name in views])
    )
    # Materialize; otherwise XLA:CPU keeps the words of the noise until stacked.
    return jnp.maximum(largest, fusion_barrier(largest[0, 0] >= -1, score))

  def scores(
    largest: Float[Array, 'v k'], params: Params
  ) -> dict[str, Float[Array, ' k']]:
    del params
    return {f'max_{name}': x for name, x in zip(views, largest)}

  return Observer(init, update, scores)


def _check_views(views: Sequence[str]) -> None:
  unknown = [name for name in views if name not in VIEWS]
  if unknown or not views:
    raise ValueError(f'views={views!r}; give some of {tuple(VIEWS)}.')
