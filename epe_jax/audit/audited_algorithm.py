"""`audited` wraps a training algorithm: it injects canaries and scores them.

The result is again an algorithm, so a training loop need not know that it is audited.
Observers score all canaries within the same run for every attacker; `make_record`
turns their scores into the record that estimates are made from.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int
import numpy as np

from epe_jax.audit.audit_step import CanaryRows, canary_rows
from epe_jax.audit.observers import VIEWS, Observer, RoundView, Trace
from epe_jax.canaries import Canaries, effective_dimension
from epe_jax.parallel.sharding import fusion_barrier
from epe_jax.training import algorithms
from epe_jax.training.round_scalars import RoundScalars
from epe_jax.types import Array, Params


class AuditState(NamedTuple):
  """The state of an audited run.

  Attributes:
    algorithm: state of the algorithm, with fields `round` and `params`.
    observers: state of each observer, by name.
    rounds: scalars of the rounds so far, 0 for rounds to come; None if nothing is
      observed.
  """

  algorithm: Any
  observers: dict[str, Any]
  rounds: RoundScalars | None


def audited(
  algorithm: algorithms.Algorithm,
  canaries: Canaries,
  participation: Bool[np.ndarray, 'T k'] | CanaryRows,
  observers: Mapping[str, Observer],
) -> algorithms.Algorithm:
  """Wraps an algorithm so that canaries are injected and scored in every round.

  Args:
    algorithm: a training algorithm such as `fedavg.dp_fedavg` or `dpsgd.dpsgd`, with
      step(state, cohort, injection, training_key, noise_key).
    canaries: k canaries; those in no row of participation are unobserved.
    participation: row t holds the canaries of round t; a 0/1 matrix, or the
      `canary_rows` of one, which may be traced.

  Returns:
    init(params), and step(state, cohort, training_key, noise_key). The state keeps
    the `RoundScalars` of all rounds.

  Raises:
    ValueError: participation is not [rounds, k]; from init, the model does not have
      the dimension of the canaries, or two observers score the same name.
  """
  if isinstance(participation, CanaryRows):
    rows = participation
  else:
    if participation.ndim != 2 or participation.shape[1] != canaries.num:
      raise ValueError(
        f'participation has shape {participation.shape}; give a row for each '
        f'round and a column for each of the {canaries.num} canaries.'
      )
    rows = canary_rows(participation)

  def init(params: Params) -> AuditState:
    dim = sum(leaf.size for leaf in jax.tree.leaves(params))
    if dim != canaries.dim:
      raise ValueError(
        f'canaries have dim={canaries.dim}, but the model has {dim} '
        'parameters; make canaries of the size of the model.'
      )
    observer_states = {
      name: observer.init(params) for name, observer in observers.items()
    }
    # Names are checked before training, although the scores come last.
    jax.eval_shape(lambda: _merge_scores(observer_states, params, observers))
    return AuditState(
      algorithm.init(params),
      observer_states,
      RoundScalars(
        *(jnp.zeros(len(rows.ids), jnp.float32) for _ in RoundScalars._fields)
      ),
    )

  def step(state: AuditState, cohort, training_key, noise_key):
    t = state.algorithm.round
    injection = make_injection(canaries, rows, t)
    before = state.algorithm.params
    new, round = algorithm.step(
      state.algorithm, cohort, injection, training_key, noise_key
    )
    assert round.aggregate is not None, (
      'the algorithm must return its aggregate'
    )
    assert round.client_part is not None, (
      'the algorithm must return the part of its clients'
    )
    # Superposed again, not as the algorithm added them: that is audited too.
    injected = fusion_barrier(new.round >= 0, injection.direction)
    view = RoundView(
      before=ravel_pytree(before)[0],
      after=ravel_pytree(new.params)[0],
      aggregate=round.aggregate,
      noiseless=round.client_part + round.scalars.canary_norm * injected,
    )
    observer_states = {
      name: observer.update(state.observers[name], view)
      for name, observer in observers.items()
    }
    scalars = round.scalars._replace(
      residual_norm=jnp.linalg.norm(VIEWS['residual'](view)),
      effective_dimension=effective_dimension(round.aggregate),
    )
    assert state.rounds is not None
    rounds = jax.tree.map(
      lambda x, scalar: x.at[t].set(scalar), state.rounds, scalars
    )
    return AuditState(new, observer_states, rounds), _drop_vectors(
      round._replace(scalars=scalars)
    )

  return algorithms.Algorithm(init, step)


def make_injection(
  canaries: Canaries, rows: CanaryRows, t: Int[Array, '']
) -> algorithms.Injection:
  """Makes the injection of a round."""
  ids, weights = jnp.asarray(rows.ids)[t], jnp.asarray(rows.weights)[t]
  count = weights.sum().astype(jnp.int32)

  def sum_messages(encode: Callable[..., Array]) -> Array:
    def message(j: Int[Array, '']) -> Array:
      one = jax.lax.dynamic_slice(ids, (j,), (1,))
      return encode(canaries.superpose(one, jnp.ones(1)), j)

    like = jax.eval_shape(message, count)
    # Those of the round come first.
    return jax.lax.fori_loop(
      0,
      count,
      lambda j, total: total + message(j),
      jnp.zeros(like.shape, like.dtype),
    )

  return algorithms.Injection(
    direction=lambda: canaries.superpose(ids, weights),
    count=count,
    messages=sum_messages,
  )


def unaudited(algorithm: algorithms.Algorithm) -> algorithms.Algorithm:
  """Gives an algorithm the interface of `audited` without any canaries.

  Training is that of the algorithm itself, bit for bit.

  Returns:
    init(params), and step(state, cohort, training_key, noise_key).
  """

  def init(params: Params) -> AuditState:
    return AuditState(algorithm.init(params), {}, None)

  def step(state: AuditState, cohort, training_key, noise_key):
    new, round = algorithm.step(
      state.algorithm, cohort, algorithms.no_canaries(), training_key, noise_key
    )
    return AuditState(new, {}, None), _drop_vectors(round)

  return algorithms.Algorithm(init, step)


def _drop_vectors(round: algorithms.Round) -> algorithms.Round:
  """A round to return from a step: vectors are for the observers alone."""
  return round._replace(aggregate=None, client_part=None)


def flush(state: AuditState, observers: Mapping[str, Observer]) -> AuditState:
  """Scores all buffered vectors of a state."""
  flushed = {
    name: observer.flush(state.observers[name])
    for name, observer in observers.items()
  }
  return state._replace(observers=flushed)


def score_observers(
  state: AuditState, observers: Mapping[str, Observer]
) -> dict[str, Float[Array, '... k']]:
  """Returns the scores of all observers, by their names.

  Returns:
    Cosines of all canaries, [T, k] for every round or [k], for `make_record`.
  """
  params = state.algorithm.params
  return _merge_scores(state.observers, params, observers)


def _merge_scores(
  states: Mapping[str, Any],
  params: Params,
  observers: Mapping[str, Observer],
) -> dict[str, Float[Array, '... k']]:
  merged: dict[str, Float[Array, '... k']] = {}
  for name, observer in observers.items():
    scores = observer.scores(states[name], params)
    if doubled := scores.keys() & merged.keys():
      raise ValueError(
        f'observer {name!r} scores {sorted(doubled)}, as another one does; give '
        'what it scores names of their own.'
      )
    merged |= scores
  return merged


def drop_buffers(state: AuditState) -> AuditState:
  """Returns a flushed state without its buffers, to be saved.

  Buffers are gigabytes, and not to be written: an aggregate less its residual is the
  sum of the client updates without any noise.
  """
  return _replace_buffers(state, lambda name: None)


def restore_buffers(
  saved: AuditState, like: AuditState, *, since_flush: int = 0
) -> AuditState:
  """Returns a state from which training resumes.

  Args:
    saved: what `drop_buffers` returned.
    like: a state of the same run, whose buffers are used.
    since_flush: rounds since the last one at which a run that is never stopped
      flushes; 0 if the state was saved at such a round.
  """
  state = _replace_buffers(saved, lambda name: like.observers[name].buffer)
  observers = {
    name: _skip_places(x, since_flush) if isinstance(x, Trace) else x
    for name, x in state.observers.items()
  }
  return state._replace(observers=observers)


def _skip_places(trace: Trace, since_flush: int) -> Trace:
  """Moves the next vector to its slot in a run that was never stopped."""
  if trace.buffer is None:
    return trace
  places = since_flush % trace.buffer.shape[1]
  # Added rather than replaced, to keep their sharding.
  return trace._replace(
    pending=trace.pending + places, skipped=trace.skipped + places
  )


def _replace_buffers(
  state: AuditState, buffer: Callable[[str], Array | None]
) -> AuditState:
  observers = {
    name: x._replace(buffer=buffer(name)) if isinstance(x, Trace) else x
    for name, x in state.observers.items()
  }
  return state._replace(observers=observers)
