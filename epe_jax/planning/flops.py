"""Counts the arithmetic of training from its program, without running it."""

from collections.abc import Mapping
import math
from typing import Any

from epe_jax import extras
from epe_jax.types import Task, weighted

with extras.explain_missing():
  import jax
  import jax.numpy as jnp


def count_parameters(task: Task) -> int:
  """d, the number of parameters of a model."""
  return sum(x.size for x in jax.tree.leaves(_trace_params(task)))


def count_flops(
  task: Task, example: Mapping[str, jax.ShapeDtypeStruct], *, batch_size: int
) -> float:
  """Counts the flops of an example's matrix products, forward and backward.

  Of kernels with a form for each backend, that with the most products counts, which
  is the textbook's. Products that only a derivative by the inputs needs do not.

  Args:
    task: the model.
    example: column -> shape and dtype of one example.
    batch_size: of a local step, >= 1.

  >>> from epe_jax.tasks import digits
  >>> shapes = {'pixels': ((8, 8), 'float32'), 'label': ((), 'int32')}
  >>> example = {k: jax.ShapeDtypeStruct(*x) for k, x in shapes.items()}
  >>> # Two products of the first layer, three of the others.
  >>> layers = 2 * 64 * 200 + 3 * 200 * 200 + 3 * 200 * 10
  >>> count_flops(digits.task(200), example, batch_size=8) / (2 * layers)
  1.0
  """
  batch = {
    name: jax.ShapeDtypeStruct((batch_size, *x.shape), x.dtype)
    for name, x in example.items()
  }

  def loss(params: Any, batch: Any, key: Any) -> Any:
    return jnp.sum(weighted(task.loss(params, batch, key)).total)

  key = jax.eval_shape(lambda: jax.random.key(0))
  traced = jax.make_jaxpr(jax.grad(loss))(_trace_params(task), batch, key)
  return _count(traced.jaxpr, [True] * len(traced.jaxpr.outvars)) / batch_size


def _trace_params(task: Task) -> Any:
  return jax.eval_shape(lambda: task.init(jax.random.key(0)))


def _count(jaxpr: Any, wanted: list[bool]) -> float:
  """The flops of the products that the wanted results need."""
  needed = {id(v) for v, is_wanted in zip(jaxpr.outvars, wanted) if is_wanted}
  total = 0.0
  for equation in reversed(jaxpr.eqns):
    used = [id(v) in needed for v in equation.outvars]
    if any(used):
      needed |= {id(v) for v in equation.invars}
      total += _count_equation(equation, used)
  return total


def _count_equation(equation: Any, wanted: list[bool]) -> float:
  name, params = equation.primitive.name, equation.params
  if name == 'dot_general':
    (summed, _), _ = params['dimension_numbers']
    shape = equation.invars[0].aval.shape
    terms = math.prod(shape[axis] for axis in summed)
    return 2.0 * equation.outvars[0].aval.size * terms
  if name == 'conv_general_dilated':
    kernel, spec = equation.invars[1].aval, params['dimension_numbers'].rhs_spec
    # Every output is a sum over the kernel but for its axis of output channels.
    return (
      2.0 * equation.outvars[0].aval.size * kernel.size / kernel.shape[spec[0]]
    )
  if name == 'cond':
    return max(_count(x.jaxpr, wanted) for x in params['branches'])
  total = 0.0
  for value in params.values():
    # Of calls, loops and derivatives; what they give is taken to be needed.
    inner = getattr(value, 'jaxpr', value)
    if hasattr(inner, 'eqns'):
      total += _count(inner, [True] * len(inner.outvars))
  # A while loop counts once, so that a floor remains one.
  return params.get('length', 1) * total if name == 'scan' else total
