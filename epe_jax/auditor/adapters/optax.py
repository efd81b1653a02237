"""Audits optax transformations that add privacy noise, within jit and scan.

`audit` injects canaries before the noise and scores all canaries after it. Scores
are part of the optimizer state, and so of its checkpoints; `collect` gives them to the
auditor when training ends, or earlier.

  noise = audit(noise, steps=..., delta=...)            # A line more,
  ...
  print(noise.collect(opt_state).report())              # and another at the end.
"""

from collections.abc import Callable
import inspect
from typing import Any, NamedTuple

from jaxtyping import Float, Int, UInt32
import numpy as np

from epe_jax import extras

with extras.explain_missing():
  import jax
  from jax.flatten_util import ravel_pytree
  import jax.numpy as jnp
  import optax

from epe_jax import canaries
from epe_jax.audit import audit_step, audited_algorithm, observers
from epe_jax.auditor.adapters import base
from epe_jax.auditor.auditor import Auditor
from epe_jax.parallel import sharding
from epe_jax.types import Array, PyTree


class AuditedState(NamedTuple):
  """The state of a transformation that is audited.

  Attributes:
    step: steps made.
    key: the two words of the canary key, a secret.
    rows: the canaries of each step.
    cosines: [v, T, k] with the vectors of each step; 0 for steps to come.
    norms: [v, T] norms of these vectors.
    dimensions: [T] effective dimension of each release.
    divisors: [T] divisor of each sum of updates.
    inner: the state of the transformation.
  """

  step: Int[Array, '']
  key: UInt32[Array, 'words=2']
  rows: audit_step.CanaryRows
  cosines: Float[Array, 'v T k']
  norms: Float[Array, 'v T']
  dimensions: Float[Array, ' T']
  divisors: Float[Array, ' T']
  inner: Any


class AuditedTransformation(optax.GradientTransformation, base.Audited):
  """A transformation with canaries, whose state is an `AuditedState`; made by `audit`."""

  def collect(self, opt_state: PyTree) -> Auditor:
    """Gives the auditor the scores of all steps since the last call.

    Args:
      opt_state: the state of the optimizer, with an `AuditedState` somewhere in it.

    Returns:
      The auditor.

    Raises:
      ValueError: there is none, several, or that of another audit; more steps were
        made than the auditor has rounds; or a score is not finite.
    """
    auditor = self.auditor
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
    if not np.array_equal(state.key, np.array(auditor.canary_key, np.uint32)):
      raise ValueError(
        'the state has the canaries of another auditor; load the one that was saved '
        'with it, and give it as auditor.'
      )
    config, steps = auditor.config, int(state.step)
    if steps > config.rounds:
      raise ValueError(
        f'{steps} steps were made, but the audit was for rounds={config.rounds}; '
        'make an auditor of as many rounds as training makes steps.'
      )
    planned = auditor.planned
    names = (config.view, 'residual')[: len(state.cosines)]
    for t in range(auditor.num_rounds_observed, steps):
      if not np.isfinite(state.norms[:, t]).all():
        raise ValueError(
          f'what step {t} released is not finite; lower the learning rate.'
        )
      auditor.add_scores(
        t,
        dict(zip(names, state.cosines[:, t])),
        dict(zip(names, map(float, state.norms[:, t]))),
        d_eff=float(state.dimensions[t]),
        divisor=float(state.divisors[t]),
        included=np.flatnonzero(planned[t]),
      )
    return auditor


def audit(
  transformation: optax.GradientTransformation,
  *,
  steps: int | None = None,
  divisor: float = 1.0,
  per_example: bool | None = None,
  mesh: sharding.Mesh | None = None,
  auditor: Auditor | None = None,
  seed: int | None = None,
  **settings: Any,
) -> AuditedTransformation:
  """Wraps a transformation so that canaries are injected and scored.

  Clip norm and noise multiplier are read from
  `optax.contrib.differentially_private_aggregate`; another transformation does not
  say them. The number of parameters is read by `init`.

  Args:
    transformation: takes the sum of clipped gradients and adds noise to it, as
      jax_privacy's `noise_addition_transform` does. With view='server_update' it is a
      whole optimizer, which subtracts what it is given.
    steps: that will be made.
    divisor: what the transformation divides the sum by.
    per_example: gradients have an axis of examples in front, as for
      `optax.contrib.differentially_private_aggregate`, which clips and averages:
      canaries are examples more, the same number of rows in each step, and the
      divisor is the number of rows. None for whether it is that one.
    mesh: devices that share the work of the canaries; None for one.
    **settings: the clip norm is how far one example moves the sum.

  Returns:
    A transformation whose state is an `AuditedState`. If it is given the sum, with
    view='aggregate', it scores the residual too.
  """
  known = base.Settings(
    {**settings, 'steps': steps}, auditor=auditor, seed=seed, rounds='steps'
  )
  is_aggregate = getattr(transformation.update, '__qualname__', '').startswith(
    f'{optax.contrib.differentially_private_aggregate.__name__}.'
  )
  if is_aggregate:
    constants = read_constants(transformation)
    clip_norm = float(constants['l2_norm_clip'])
    known.read(
      'transformation',
      clip_norm=clip_norm,
      noise_multiplier=float(constants['noise_std']) / clip_norm,
    )
  return wrap_transformation(
    transformation,
    known,
    divisor=divisor,
    per_example=is_aggregate if per_example is None else per_example,
    mesh=mesh,
  )


def read_constants(
  transformation: optax.GradientTransformation,
) -> dict[str, Any]:
  """Returns what a transformation closes over, which is where optax has settings."""
  if not inspect.isfunction(transformation.update):
    return {}
  return dict(inspect.getclosurevars(transformation.update).nonlocals)


def wrap_transformation(
  transformation: optax.GradientTransformation,
  settings: base.Settings,
  *,
  divisor: float = 1.0,
  per_example: bool = False,
  mesh: sharding.Mesh | None = None,
) -> AuditedTransformation:
  """Does what `audit` does, with settings that another adapter has read."""
  settings.require('dim')
  view = settings.find('view', 'aggregate')
  is_sum = not per_example and view == 'aggregate'

  def init(params: PyTree) -> AuditedState:
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    sizes = {f'params{jax.tree_util.keystr(k)}': x.size for k, x in leaves}
    settings.read_dim('model', sizes)
    auditor = settings.make()
    config, planned = auditor.config, auditor.planned
    # At least one, so that rows have an axis of canaries.
    width = max(1, int(planned.sum(axis=1).max()))
    rows = audit_step.canary_rows(planned, width=width)
    views, steps = 1 + is_sum, config.rounds
    return AuditedState(
      step=jnp.zeros((), jnp.int32),
      key=jnp.asarray(np.array(auditor.canary_key, np.uint32)),
      rows=jax.tree.map(jnp.asarray, rows),
      cosines=jnp.zeros((views, steps, config.num_canaries), jnp.float32),
      norms=jnp.zeros((views, steps), jnp.float32),
      dimensions=jnp.zeros(steps, jnp.float32),
      divisors=jnp.zeros(steps, jnp.float32),
      inner=transformation.init(params),
    )

  def update(updates: PyTree, state: Any, params: PyTree = None):
    config = audited.auditor.config
    make_canaries = canaries.family(config.family, mesh=mesh)
    key = jax.random.wrap_key_data(state.key, impl='threefry2x32')
    all_canaries = make_canaries(key, config.num_canaries, config.dim)
    t, examples = state.step, 1
    if per_example:
      examples = jax.tree.leaves(updates)[0].shape[0]
    size = sum(x.size for x in jax.tree.leaves(updates))
    if size != examples * config.dim:
      rows = ', with an axis of examples in front' * per_example
      raise ValueError(
        f'updates have {size:,} numbers{rows}, and the model {config.dim:,}; give '
        f'per_example={not per_example} if gradients have '
        f'{"no axis" if per_example else "an axis"} of examples in front, such as for a '
        'chain with differentially_private_aggregate in it.'
      )
    if per_example:
      inputs, count = _append_examples(
        updates,
        all_canaries,
        state.rows.ids[t],
        config.clip_norm * state.rows.weights[t],
      )
    else:
      total, unravel = ravel_pytree(updates)
      injection = audited_algorithm.make_injection(all_canaries, state.rows, t)
      canary_sum = config.clip_norm * injection.direction()
      inputs, count = unravel(total + canary_sum.astype(total.dtype)), divisor
    release, inner = transformation.update(inputs, state.inner, params)
    # An optimizer subtracts what it is given.
    sign = 1.0 if view == 'aggregate' else -1.0
    vectors = sign * ravel_pytree(release)[0].astype(jnp.float32)[None]
    if is_sum:
      residual = vectors[0] - ravel_pytree(inputs)[0] / divisor
      vectors = jnp.stack([vectors[0], residual])
    return release, state._replace(
      step=t + 1,
      cosines=state.cosines.at[:, t].set(
        observers.compute_cosines(all_canaries, vectors)
      ),
      norms=state.norms.at[:, t].set(jnp.linalg.norm(vectors, axis=-1)),
      dimensions=state.dimensions.at[t].set(
        canaries.effective_dimension(vectors[0])
      ),
      divisors=state.divisors.at[t].set(count),
      inner=inner,
    )

  audited = AuditedTransformation(init, update)
  audited._settings = settings
  return audited


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
  inputs = jax.tree.map(
    lambda leaf, row: jnp.concatenate([leaf, row.astype(leaf.dtype)]),
    gradients,
    rows,
  )
  return inputs, len(jax.tree.leaves(inputs)[0])
