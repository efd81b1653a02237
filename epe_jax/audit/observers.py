"""Observers: what attackers see of a run, scored while it trains."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
from jaxtyping import Float, Int

from epe_jax.audit.audit_step import divide_by_norm
from epe_jax.canaries import Canaries
from epe_jax.parallel import sharding
from epe_jax.parallel.barrier import fusion_barrier
from epe_jax.types import Array, Params


class RoundView(NamedTuple):
  """What a round shows to those who watch it, each [d].

  Attributes:
    before: the parameters before it.
    after: the parameters after it.
    aggregate: rho_bar, the noisy mean.
    noiseless: rho_bar without its noise: what real clients and canaries put
      in.
  """

  before: Float[Array, ' d']
  after: Float[Array, ' d']
  aggregate: Float[Array, ' d']
  noiseless: Float[Array, ' d']


class Observer(NamedTuple):
  """An attacker's view of a run.

  Attributes:
    init: params -> state.
    update: (state, view) -> state, once in every round.
    scores: (state, final params) -> cosines of all canaries, [k] or [T, k], by
      the name of what they are with. `record.Record` has these names.
    flush: state -> state in which no vector of a round waits to be scored. Only
      an observer that keeps some has anything to do.
  """

  init: Callable[[Params], Any]
  update: Callable[[Any, RoundView], Any]
  scores: Callable[[Any, Params], dict[str, Float[Array, '... k']]]
  flush: Callable[[Any], Any] = lambda state: state


VIEWS: dict[str, Callable[[RoundView], Float[Array, ' d']]] = {
  'aggregate': lambda view: view.aggregate,
  'delta': lambda view: view.after - view.before,
  'residual': lambda view: view.aggregate - view.noiseless,
}
"""What can be scored in a round: rho_bar, as the paper has it; the change of
the model by the server optimizer, as the authors' code has it (with momentum it
mixes rounds); and what is left of rho_bar for one who knows all that was put in
and removes it. The analytic bound assumes an attacker who knows all but the one
canary that is asked about; that one is added again afterwards, as it is known
too: `statistics.score_residual`."""


class Trace(NamedTuple):
  """What `all_iterates` has seen so far.

  Attributes:
    round: rounds seen.
    pending: of them the latest, whose vectors are not scored yet.
    skipped: of those that pend, the first, which were scored before a run was
      stopped; their places stay empty, so that each vector has the place that it
      has in a run that is not stopped, and its scores have the same bits.
    buffer: these vectors, and behind them room or what is scored already; None
      where each round is scored at once.
    cosines: [views, T, k]; those of rounds still to come are 0.
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
  """The attacker of the final model: cosines with theta_T and theta_T - theta_0.

  The paper scores theta_T, 'final'; theta_T - theta_0, 'change', is for one who
  knows the initial model too. Canaries are generated once for both.

  Args:
    canaries: all canaries, observed and unobserved.
    mesh: devices that share theta_0, if they divide d; None for one device.

  Source: One-shot Empirical Privacy Estimation, Algorithm 2.
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
  sees: Sequence[str] = ('aggregate',),
  buffer: int = 16,
  mesh: sharding.Mesh | None = None,
) -> Observer:
  """The attacker who sees every round: the cosines of all rounds.

  Scoring is dear where canaries are generated anew each time. So the
  vectors of `buffer` rounds are kept, views x R x d numbers, and scored in one
  go. With R = 1 none are kept.

  Args:
    canaries: all canaries, observed and unobserved.
    rounds: T >= 1.
    sees: what is scored in a round, names of `VIEWS`; scores have a [T, k] of
      each name.
    buffer: R >= 1, rounds scored together; `buffers.choose_buffer` chooses one.
    mesh: devices that share what is kept, vectors by views or rounds and cosines
      by views or canaries, where they divide these; None for one device.

  Raises:
    ValueError: rounds, sees or buffer is out of range.

  Source: One-shot Empirical Privacy Estimation, Algorithm 3.
  """
  if rounds < 1 or buffer < 1:
    raise ValueError(f'rounds={rounds}, buffer={buffer}; give both >= 1.')
  _check_views(sees)
  views = len(sees)
  buffer = min(buffer, rounds)
  # Whole buffers are scored, so the trace has room for one behind its end.
  padded = rounds + buffer - 1

  def init(params: Params) -> Trace:
    kept = (views, buffer, canaries.dim)
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
        jnp.zeros((views, padded, canaries.num), jnp.float32),
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
    # The buffer is not among what the branches return: it would be copied.
    scored = jax.lax.cond(
      due,
      lambda rest: score(rest, compute_cosines(canaries, held)),
      lambda rest: rest,
      trace._replace(buffer=None),
    )
    return scored._replace(buffer=held)

  def update(trace: Trace, view: RoundView) -> Trace:
    stack = lambda: jnp.stack([VIEWS[name](view) for name in sees])
    advanced = trace._replace(round=trace.round + 1, pending=trace.pending + 1)
    if trace.buffer is None:
      # Apart, or XLA:CPU would keep what noise is made of until it is stacked.
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
    return dict(zip(sees, flush(trace).cosines[:, :rounds]))

  return Observer(init, update, scores, flush)


def running_maximum(
  canaries: Canaries, *, sees: Sequence[str] = ('aggregate',)
) -> Observer:
  """The attacker who sees every round, with k numbers of state.

  The largest cosine of each canary so far: for audits whose trace of T x k would
  not fit. It is all that the paper's statistic reads, and nothing else can be
  read of it. Each round is scored at once.

  Args:
    canaries: all canaries, observed and unobserved.
    sees: what is scored in a round, names of `VIEWS`; scores have a [k] of each
      name behind 'max_', -1 before the first round.

  Raises:
    ValueError: sees is out of range.

  Source: One-shot Empirical Privacy Estimation, Algorithm 3.
  """
  _check_views(sees)

  def init(params: Params) -> Float[Array, 'v k']:
    del params
    return jnp.full((len(sees), canaries.num), -1, jnp.float32)

  def update(
    largest: Float[Array, 'v k'], view: RoundView
  ) -> Float[Array, 'v k']:
    score = lambda: compute_cosines(
      canaries, jnp.stack([VIEWS[name](view) for name in sees])
    )
    # Or XLA:CPU would keep what noise is made of until it is stacked.
    return jnp.maximum(largest, fusion_barrier(largest[0, 0] >= -1, score))

  def scores(
    largest: Float[Array, 'v k'], params: Params
  ) -> dict[str, Float[Array, ' k']]:
    del params
    return {f'max_{name}': x for name, x in zip(sees, largest)}

  return Observer(init, update, scores)


def _check_views(sees: Sequence[str]) -> None:
  unknown = [name for name in sees if name not in VIEWS]
  if unknown or not sees:
    raise ValueError(f'sees={sees!r}; give some of {tuple(VIEWS)}.')
