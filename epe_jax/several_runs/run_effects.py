"""Several runs of one config: the shift of each, their mean, and one more run."""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
from typing import NamedTuple

from jaxtyping import Float
import numpy as np

from epe_jax.audit import attackers
from epe_jax.audit.attack_scores import AttackScores, ThreatModel
from epe_jax.audit.record import Record
from epe_jax.epsilon import tradeoff
from epe_jax.epsilon.types import Estimate, Scores, Unknown
from epe_jax.fact import Facts
from epe_jax.several_runs import over_runs

# By how much the correlation of runs falls short of 1 if one is a copy: in the order
# of canaries, in increasing order times their number, and of a few scores.
_COPIED, _COPIED_IN_ORDER, _COPIED_FEW = 1e-3, 5e-3, 1e-9
_FEW = 8


class RunShift(NamedTuple):
  """The shift of the scores of one run.

  Attributes:
    run: its name.
    num_observed: canaries that took part, >= 2.
    mu: the shift, in standard deviations of the null.
    standard_error: of mu, likewise.
    epsilon: ε of a Gaussian mechanism with this shift.
  """

  run: str
  num_observed: int
  mu: float
  standard_error: float
  epsilon: float


class OverRuns(NamedTuple):
  """Random effects over runs of one attack statistic.

  Attributes:
    threat_model: the attacker.
    view: the key of what is seen and known in these runs.
    delta: of every ε.
    effects: the law of the shift over runs.
    spread: of ε over runs by this law, without the scatter of canaries: the empirical
      privacy variance.
    runs: each of them.
    mean: ε of the mean shift.
    bound: lower bound of it.
    new_run: the same ε with the interval that predicts that of one more run.
    failed_checks: name of a run -> what speaks against its scores.
  """

  threat_model: ThreatModel
  view: str
  delta: float
  effects: over_runs.RandomEffects
  spread: over_runs.EpsilonSpread
  runs: Sequence[RunShift]
  mean: Estimate
  bound: Estimate
  new_run: Estimate
  failed_checks: Mapping[str, Facts]


def evaluate_runs(
  runs: Mapping[str, Record | Scores], *, delta: float | None = None
) -> list[OverRuns]:
  """Estimates random effects of each attack statistic that all runs have.

  Args:
    runs: name -> what the run recorded, or external scores; all of one kind.
    delta: δ, in (0, 1); None for that of the runs.

  Returns:
    One value for each attack statistic.

  Raises:
    ValueError: as `over_runs.estimate_shifts`; recorded runs mixed with external
      scores; scores of which the order alone is known; runs of several δ, or external
      scores, without delta; two runs with the same scores, up to units and rounding,
      or recorded runs of other sizes.
  """
  by_run = [_score_attackers(scores) for scores in runs.values()]
  if len({isinstance(scores, Scores) for scores in runs.values()}) > 1:
    raise ValueError(
      'some files are runs of epe_jax and others external scores; give one kind.'
    )
  for name, scores in runs.items():
    if isinstance(scores, Scores) and scores.is_ordinal:
      raise ValueError(
        f'{name} has the order of scores and no values, as one is infinite or they are '
        'of a ROC, and effects of runs are shifts of values; give it alone.'
      )
  if delta is None:
    delta = _find_delta(list(runs.values()))
  _check_distinct(runs)
  return [
    _estimate_effects(
      list(runs), [scores[attacker] for scores in by_run], delta
    )
    for attacker in by_run[0]
    if all(attacker in scores for scores in by_run)
  ]


def _check_distinct(runs: Mapping[str, Record | Scores]) -> None:
  """Checks that runs are of one kind, and that none is a copy of another."""
  sizes = {
    name: (run.num_rounds, run.dim, run.included.shape[1], run.noise_multiplier)
    for name, run in runs.items()
    if isinstance(run, Record)
  }
  if len(set(sizes.values())) > 1:
    listed = ', '.join(
      f'{name}: {rounds} rounds, d = {dim}, {num} canaries, noise {noise}'
      for name, (rounds, dim, num, noise) in sizes.items()
    )
    raise ValueError(
      f'runs differ in more than their seeds ({listed}); give runs of one config.'
    )
  for (name, run), (other, its) in itertools.combinations(runs.items(), 2):
    if are_copies(run, its):
      raise ValueError(
        f'{name} and {other} have the same scores, up to units and rounding, but '
        'runs must be independent; give one of them.'
      )


def are_copies(run: Record | Scores, other: Record | Scores) -> bool:
  """Whether two runs have the same scores, up to units, rounding and order.

  Those of independent runs differ by chance: n of them in increasing order, with
  equal means and spreads, by about 1/√n of their spread. What is equal in all runs, as
  the shifts of canaries without noise, is not so of those that took no part: all
  groups of a copy are copied.
  """
  groups, others = _list_groups(run), _list_groups(other)
  if [x.size for x in groups] != [x.size for x in others]:
    return False
  pairs = sorted(zip(groups, others), key=lambda pair: pair[0].size)
  return all(_is_copied(*pair) for pair in pairs)


def _list_groups(run: Record | Scores) -> list[np.ndarray]:
  """Scores of canaries that took part, and of others, by each observer."""
  if isinstance(run, Scores):
    return [run.observed, run.unobserved]
  return [
    np.ravel(x[..., group])
    for _, x in sorted(run.cosines.items())
    for group in (run.observed, ~run.observed)
  ]


def _is_copied(
  group: Float[np.ndarray, ' n'], other: Float[np.ndarray, ' n']
) -> bool:
  in_order, its = np.sort(group), np.sort(other)
  if group.size < 3 or np.ptp(group) == 0 or np.ptp(other) == 0:
    return np.allclose(in_order, its, rtol=1e-6, atol=0)
  is_few = group.size < _FEW
  limit = _COPIED_FEW if is_few else _COPIED_IN_ORDER / group.size
  # A few values, such as guesses, have the same counts by chance.
  distinct = min(np.unique(x).size for x in (group, other))
  has_many = distinct >= min(_FEW, group.size)
  if has_many and 1 - np.corrcoef(in_order, its)[0, 1] <= limit:
    return True
  limit = _COPIED_FEW if is_few else _COPIED
  return bool(1 - np.corrcoef(group, other)[0, 1] <= limit)


def _score_attackers(
  scores: Record | Scores,
) -> dict[ThreatModel, AttackScores]:
  """The scores of every attacker for whom taking part is a shift."""
  if isinstance(scores, Scores):
    all_scores = [attackers.score_external(scores)]
  else:
    all_scores = [
      attack_scores
      for attack_scores in attackers.score_all(scores)
      if attack_scores.threat_model.is_shift
    ]
  return {
    attack_scores.threat_model: attack_scores for attack_scores in all_scores
  }


def _find_delta(runs: Sequence[Record | Scores]) -> float:
  deltas = {run.delta for run in runs if isinstance(run, Record)}
  if len(deltas) != 1:
    raise ValueError(
      f'delta=None, and the files name {sorted(deltas) or "none"}; give one δ, '
      'for example --delta=1e-5.'
    )
  return deltas.pop()


def _estimate_effects(
  names: Sequence[str], all_scores: Sequence[AttackScores], delta: float
) -> OverRuns:
  scores = _share_null([attack_scores.scores for attack_scores in all_scores])
  mu, variance = over_runs.estimate_shifts(scores)
  effects = over_runs.random_effects(mu, variance)
  epsilon = np.asarray(tradeoff.epsilon_gdp(np.maximum(mu, 0.0), delta))
  return OverRuns(
    threat_model=all_scores[0].threat_model,
    view=all_scores[0].view,
    delta=delta,
    effects=effects,
    spread=over_runs.compute_epsilon_spread(
      effects.mu, effects.tau, delta=delta
    ),
    runs=[
      RunShift(
        run=name,
        num_observed=of_run.observed.size,
        mu=float(mu[i]),
        standard_error=float(np.sqrt(variance[i])),
        epsilon=float(epsilon[i]),
      )
      for i, (name, of_run) in enumerate(zip(names, scores))
    ],
    mean=over_runs.estimate_epsilon(effects, delta=delta),
    bound=over_runs.mean_shift_bound(effects, delta=delta),
    new_run=over_runs.estimate_epsilon(effects, delta=delta, new_run=True),
    failed_checks={
      name: attack_scores.failed_checks
      for name, attack_scores in zip(names, all_scores)
    },
  )


def _share_null(runs: Sequence[Scores]) -> list[Scores]:
  """Without the null law in all runs, if unobserved canaries reject it in one."""
  nulls = {scores.null for scores in runs}
  if Unknown() not in nulls or len(nulls) != 2:
    return list(runs)
  return [dataclasses.replace(scores, null=Unknown()) for scores in runs]
