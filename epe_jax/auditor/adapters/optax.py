"""Audits of optax transformations that add privacy noise, within jit and scan.

`audited` puts canaries in before the noise and scores all of them behind it. What
was scored is in the state of the optimizer, and so in its checkpoints;
`collect_scores` takes it to the auditor when training ends, or before.

  noise = audited(noise, auditor)                       # A line more,
  ...
  collect_scores(auditor, opt_state)                    # and another at the end.
  print(auditor.report())
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
from jaxtyping import Float, Int, UInt32
import numpy as np
import optax

from epe_jax import canaries
from epe_jax.audit import audited_algorithm, observers
from epe_jax.auditor.adapters import versions
from epe_jax.auditor.auditor import Auditor
from epe_jax.parallel import sharding
from epe_jax.types import Array, PyTree

versions.check_version('optax', first='0.2', last='0.2')


class AuditedState(NamedTuple):
  """The state of a transformation that is audited.

  Attributes:
    step: steps made.
    key: the two words of the canary key: a secret, as the rest of an audit is.
    ids: [T, m] the canaries of each step, filled up with 0.
    weights: [T, m] 1 for a canary of the step, 0 where the row is filled up.
    cosines: [v, T, k] with what is scored of each step; 0 of steps to come.
    norms: [v, T] of these vectors.
    dimensions: [T] effective dimensions of what a step releases.
    divisors: [T] what the sum of the updates was divided by.
    inner: the state of the transformation.
  """

  step: Int[Array, '']
  key: UInt32[Array, 'words=2']
  ids: Int[Array, 'T m']
  weights: Float[Array, 'T m']
  cosines: Float[Array, 'v T k']
  norms: Float[Array, 'v T']
  dimensions: Float[Array, ' T']
  divisors: Float[Array, ' T']
  inner: Any


def audited(
  transformation: optax.GradientTransformation,
  auditor: Auditor,
  *,
  divisor: float = 1.0,
  per_example: bool = False,
  mesh: sharding.Mesh | None = None,
) -> optax.GradientTransformation:
  """The same transformation with canaries in it, and an attacker watching.

  Args:
    transformation: takes the sum of clipped gradients and adds noise to it, as
      jax_privacy's `noise_addition_transform` does. With sees='delta' it may be a
      whole optimizer.
    auditor: the rounds of its config are the steps; its clip norm is how far one
      example moves the sum.
    divisor: what the transformation divides the sum by.
    per_example: gradients have an axis of examples in front, as for
      `optax.contrib.differentially_private_aggregate`, which clips and averages:
      canaries are examples more, the same number of rows in each step, and the
      divisor is the number of rows.
    mesh: devices that share the work of the canaries; None for one.

  Returns:
    A transformation whose state is an `AuditedState`. With sees='aggregate' and the
    sum in its hands it scores what is left without all that was put in, too.
  """
  config, planned = auditor.config, auditor.planned
  # At least one, so that rows have an axis of canaries.
  width = max(1, int(planned.sum(axis=1).max()))
  rows = audited_algorithm.canary_rows(planned, width=width)
  is_sum = not per_example and config.sees == 'aggregate'
  make_canaries = canaries.family(config.family, mesh=mesh)

  def init(params: PyTree) -> AuditedState:
    dim = sum(leaf.size for leaf in jax.tree.leaves(params))
    if dim != config.dim:
      raise ValueError(
        f'the parameters have {dim:,} numbers, but dim={config.dim:,}; give the '
        'auditor the dim of what is trained.'
      )
    views, steps = 1 + is_sum, config.rounds
    return AuditedState(
      step=jnp.zeros((), jnp.int32),
      key=jnp.asarray(np.array(auditor.canary_key, np.uint32)),
      ids=jnp.asarray(rows.ids),
      weights=jnp.asarray(rows.weights),
      cosines=jnp.zeros((views, steps, config.num_canaries), jnp.float32),
      norms=jnp.zeros((views, steps), jnp.float32),
      dimensions=jnp.zeros(steps, jnp.float32),
      divisors=jnp.zeros(steps, jnp.float32),
      inner=transformation.init(params),
    )

  def update(updates: PyTree, state: Any, params: PyTree = None):
    key = jax.random.wrap_key_data(state.key, impl='threefry2x32')
    all_canaries = make_canaries(key, config.num_canaries, config.dim)
    t = state.step
    ids, weights = state.ids[t], config.clip_norm * state.weights[t]
    if per_example:
      put_in, count = _append_examples(updates, all_canaries, ids, weights)
    else:
      total, unravel = ravel_pytree(updates)
      total = total + all_canaries.superpose(ids, weights).astype(total.dtype)
      put_in, count = unravel(total), divisor
    release, inner = transformation.update(put_in, state.inner, params)
    seen = ravel_pytree(release)[0].astype(jnp.float32)[None]
    if is_sum:
      left = seen[0] - ravel_pytree(put_in)[0] / divisor
      seen = jnp.stack([seen[0], left])
    return release, state._replace(
      step=t + 1,
      cosines=state.cosines.at[:, t].set(
        observers.compute_cosines(all_canaries, seen)
      ),
      norms=state.norms.at[:, t].set(jnp.linalg.norm(seen, axis=-1)),
      dimensions=state.dimensions.at[t].set(
        canaries.effective_dimension(seen[0])
      ),
      divisors=state.divisors.at[t].set(count),
      inner=inner,
    )

  return optax.GradientTransformation(init, update)


def collect_scores(auditor: Auditor, opt_state: PyTree) -> None:
  """Gives the auditor the scores of all steps that it has not yet.

  Args:
    auditor: the one that was given to `audited`.
    opt_state: the state of the optimizer, with an `AuditedState` somewhere in it.

  Raises:
    ValueError: there is none, or several; more steps were made than the auditor has
      rounds; or a score is not finite.
  """
  is_audited = lambda x: isinstance(x, AuditedState)
  found = [
    leaf
    for leaf in jax.tree.leaves(opt_state, is_leaf=is_audited)
    if is_audited(leaf)
  ]
  if len(found) != 1:
    raise ValueError(
      f'the state has {len(found)} audited transformations; give the state of an '
      'optimizer with one.'
    )
  state = jax.device_get(found[0])
  config, steps = auditor.config, int(state.step)
  if steps > config.rounds:
    raise ValueError(
      f'{steps} steps were made, but the audit was for rounds={config.rounds}; '
      'make an auditor of as many rounds as training makes steps.'
    )
  noise, planned = config.noise_multiplier, auditor.planned
  names = (config.sees, 'residual')[: len(state.cosines)]
  for t in range(auditor.num_rounds_observed, steps):
    if not np.isfinite(state.norms[:, t]).all():
      raise ValueError(
        f'what step {t} released is not finite; lower the learning rate.'
      )
    share = config.clip_norm / state.divisors[t]
    auditor.add_scores(
      t,
      dict(zip(names, state.cosines[:, t])),
      {
        'clip_norm': config.clip_norm,
        'canary_norm': share,
        'noise_std': np.nan if noise is None else noise * share,
        'num_canaries': planned[t].sum(),
        'aggregate_norm': state.norms[0, t],
        'effective_dimension': state.dimensions[t],
        'residual_norm': state.norms[1, t] if len(names) > 1 else np.nan,
      },
      included=np.flatnonzero(planned[t]),
    )


def _append_examples(
  gradients: PyTree,
  all_canaries: canaries.Canaries,
  ids: Int[Array, ' m'],
  weights: Float[Array, ' m'],
) -> tuple[PyTree, int]:
  """Gradients with a row for each canary, and the number of rows."""
  first = jax.tree.map(lambda leaf: leaf[0], gradients)
  unravel: Callable = ravel_pytree(first)[1]
  one = lambda x: unravel(all_canaries.superpose(x[0][None], x[1][None]))
  rows = jax.lax.map(one, (ids, weights))
  put_in = jax.tree.map(
    lambda leaf, row: jnp.concatenate([leaf, row.astype(leaf.dtype)]),
    gradients,
    rows,
  )
  return put_in, len(jax.tree.leaves(put_in)[0])
