"""What scores tell beyond a baseline that has never seen the model.

Where members and others are different people, newer or of another source, anything that
sees the examples tells them apart, and an ε from their scores is not one of leakage. A
baseline b, such as the score of a model that was trained on neither, is blind to
membership. If members and others with the same b are alike, then among pairs of
neighbours in the order of b, one of each group, only the model makes scores differ.

Which examples are paired follows from labels and b alone. In a pair b is equal but for
the gap between neighbours, whose sign is as likely either way, so that both groups
are draws from one law of b. As b moves both scores of a pair together, counts of the
ranks of one group in the other vary less than those of independent draws, and rank bounds
stay valid. It is not assumed that b is the best of all baselines: what it does not see
stays in ε.

References: Rosenbaum and Rubin 1983, "The Central Role of the Propensity Score in
Observational Studies for Causal Effects"; Das, Zhang and Tramèr 2024, "Blind Baselines
Beat Membership Inference Attacks for Foundation Models".
"""

from collections.abc import Mapping
import dataclasses

from jaxtyping import Float, Int, Real
import numpy as np

from epe_jax.audit import failed_checks
from epe_jax.epsilon import lower_bounds, registry
from epe_jax.epsilon.types import Scores
from epe_jax.fact import Fact

_DIFFER_BELOW = 1e-3
# Nobody has asked about these columns, of which there may be several.
_SUSPICIOUS_BELOW = 1e-6


def keep_neighbors(
  scores: Scores, baseline: Scores, *, delta: float, name: str
) -> tuple[Scores, Fact]:
  """Scores of the pairs of neighbours in the order of a baseline.

  Args:
    scores: of an attack on the model.
    baseline: of the same examples, in the same order. Its sign does not matter.
    delta: δ of the ε in the fact.
    name: of the baseline.

  Returns:
    As many scores of either group, and whether the baseline by itself tells the groups
    apart, with what it and all scores show: a fact for `report.checks`.

  Raises:
    ValueError: these are not of the same examples, inclusion was decided by coins, or
      fewer than two pairs are left.
  """
  if scores.design == 'coin_flip' or scores.has_known_null:
    raise ValueError(
      f"baseline={name}, but scores with design='coin_flip' or dim are of canaries, both "
      'groups of which are of one population; leave it out.'
    )
  sizes = [(x.observed.size, x.unobserved.size) for x in (scores, baseline)]
  if sizes[0] != sizes[1]:
    raise ValueError(
      f'baseline={name} has {sizes[1][0]:,} and {sizes[1][1]:,} scores, and the attack '
      f'{sizes[0][0]:,} and {sizes[0][1]:,}; give one of each for an example.'
    )
  inside, outside = pair_neighbors(baseline.observed, baseline.unobserved)
  if inside.size < 2:
    raise ValueError(
      f'baseline={name} separates the groups, and leaves {inside.size} pair of '
      'neighbours to compare, so that nothing follows about the model. Score members '
      f'and others that overlap in {name}.'
    )
  kept = dataclasses.replace(
    scores,
    observed=scores.observed[inside],
    unobserved=scores.unobserved[outside],
  )
  p_value = compare_groups(baseline.observed, baseline.unobserved)
  blind = _bound_either_way(baseline, delta)
  values = {
    'name': name,
    'blind': blind,
    'p_value': p_value,
    'pairs': int(inside.size),
    'epsilon': float(registry.BAND(scores, delta=delta).epsilon),
  }
  if blind > 0 or p_value < _DIFFER_BELOW:
    return kept, Fact('populations_differ', values)
  return kept, Fact('populations_alike', values)


def pair_neighbors(
  inside: Float[np.ndarray, ' n1'], outside: Float[np.ndarray, ' n0']
) -> tuple[Int[np.ndarray, ' pairs'], Int[np.ndarray, ' pairs']]:
  """Indices of one of each group, neighbours in the order of both together.

  Equal values are in a random order, the same in every call.
  """
  values = np.concatenate([inside, outside])
  ties = np.random.default_rng(0).random(values.size)
  order = np.lexsort([ties, values])
  is_inside = order < inside.size
  pairs, i = [], 1
  while i < order.size:
    if is_inside[i] != is_inside[i - 1]:
      pairs.append(
        order[i - 1 : i + 1] if is_inside[i - 1] else order[i - 1 : i + 1][::-1]
      )
      i += 1
    i += 1
  paired = np.array(pairs, np.intp).reshape(-1, 2)
  return paired[:, 0], paired[:, 1] - inside.size


def compare_groups(
  inside: Float[np.ndarray, ' n1'], outside: Float[np.ndarray, ' n0']
) -> float:
  """Two-sided p-value of "neither group tends to be higher", by ranks."""
  p = failed_checks.rank_sum_p_value
  return min(1.0, 2 * min(p(inside, outside), p(outside, inside)))


def suspect(
  columns: Mapping[str, Real[np.ndarray, ' n']],
  is_inside: Real[np.ndarray, ' n'],
) -> Fact | None:
  """That columns of a file, such as an index, differ between the groups, if some do.

  One that numbers the lines does not say how groups were drawn.
  """
  took_part, p_values, pairs = is_inside == 1, {}, {}
  for name, values in columns.items():
    if values.shape != is_inside.shape or not np.all(np.isfinite(values)):
      continue
    groups = values[took_part], values[~took_part]
    p_value = compare_groups(*groups)
    if p_value < _SUSPICIOUS_BELOW and not np.all(np.diff(values) == 1):
      p_values[name] = p_value
      pairs[name] = pair_neighbors(*groups)[0].size
  if not p_values:
    return None
  best = max(pairs, key=lambda name: pairs[name])
  return Fact(
    'groups_differ',
    {
      'names': ', '.join(p_values),
      'p_value': max(p_values.values()),
      'baseline': best if pairs[best] > 1 else '',
    },
  )


def _bound_either_way(scores: Scores, delta: float) -> float:
  """Lower bound of ε, 95 %, of an attack of which nobody says which sign it has."""
  negated = dataclasses.replace(
    scores, observed=-scores.observed, unobserved=-scores.unobserved
  )
  return max(
    float(
      lower_bounds.lower_bound(
        x, delta=delta, significance=0.025, multiplicity=lower_bounds.Band()
      ).epsilon
    )
    for x in (scores, negated)
  )
