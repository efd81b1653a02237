"""The headline of an audit as one line."""

from epe_jax.audit.attack_results import Headline
from epe_jax.text import cells


def format_headline(headline: Headline) -> str:
  """The headline in one line.

  Args:
    headline: of an `Audit`.

  Returns:
    Such as 'ε ≥ 2.00 (95 %, no shape assumed); point estimate 7.06; floor 0-0.31;
    δ = 1e-5'.
  """
  bound, point = headline.bound, headline.point
  assert bound.confidence is not None, 'bounds have one'
  shape = 'no shape assumed' if bound.is_shape_free else 'if of its shape'
  parts = [
    f'ε ≥ {cells.format_epsilon(bound)} '
    f'({100 * bound.confidence:.4g} %, {shape})'
  ]
  if point is None:
    parts.append('no calibrated point estimate')
  else:
    parts.append(f'point estimate {cells.format_epsilon(point)}')
    if floor := cells.format_short_floor(point):
      parts.append(f'floor {floor}')
  return '; '.join([*parts, f'δ = {cells.format_delta(bound.delta)}'])
