"""A sentence for each check of an audit, made from its key and its numbers."""

from epe_jax.epsilon.diagnostics import MIN_SCORES
from epe_jax.epsilon.types import Assumption, Estimate
from epe_jax.fact import Fact
from epe_jax.report import assumptions, cells, wording


def describe_check(check: Fact) -> str:
  """The check in words, without a full stop.

  Args:
    check: of a key of `SENTENCES`, or of an attacker that is not of this package.

  >>> describe_check(Fact('separated', {'num': 100}))[:41]
  'every canary that took part scores above '
  >>> describe_check(Fact('mine', {'share': 0.5}))
  'mine (share = 0.5)'
  """
  return wording.describe_fact(check, SENTENCES)


def _null_law_rejected(dim: float | str) -> str:
  law = (
    'the spread of the noise that is claimed'
    if float(dim) == float('inf')
    else f'the law of random directions, d = {dim}'
  )
  return (
    f'scores of canaries that took no part do not follow {law}, so their own law '
    'is taken instead'
  )


def _describe_swapped(p_value: float) -> str:
  """That canaries that took part score lower than others."""
  return f'canaries that took part score lower than others ({cells.format_p_value(p_value)})'


def _swapped(p_value: float) -> str:
  return (
    f'{_describe_swapped(p_value)}: a high score has to say "took part", so the '
    'groups may be swapped or the sign be wrong'
  )


def _spread_differs(p_value: float) -> str:
  return (
    'scores of canaries that took part scatter otherwise than those of others '
    f'({cells.format_p_value(p_value)}), so that no estimate that takes them to be shifted '
    'alone is calibrated'
  )


def _not_gaussian_around_shifts(p_value: float) -> str:
  return (
    'scores of canaries that took part are not Gaussian around their shifts '
    f'({cells.format_p_value(p_value)}), so that no estimate that takes them to be is '
    'calibrated'
  )


def _maximum_law_rejected(p_value: float) -> str:
  return (
    'maxima of canaries that took no part do not follow the law of the largest of '
    f'independent cosines ({cells.format_p_value(p_value)}), so that no estimate from them '
    'is calibrated'
  )


def _too_few_to_test(group: str, num: int) -> str:
  return (
    f'the {num} {group} scores are too few to test whether they are Gaussian; give '
    f'{MIN_SCORES} or more'
  )


def _all_equal(group: str, num: int) -> str:
  return (
    f'the {num} {group} scores are all equal, so that they are not Gaussian'
  )


def _scores_repeat(group: str, num: int, repeats: int) -> str:
  return (
    f'{repeats:,} of the {num:,} {group} scores repeat others exactly, so that they are '
    'not independent draws, and no bound or interval holds. Give each canary once; '
    'nothing is wrong only if different canaries really score alike'
  )


def _not_gaussian(group: str, statistic: float, p_value: float) -> str:
  return (
    f'the {group} scores are not Gaussian ({_format_test(statistic, p_value)}): '
    'two-Gaussian estimates of them mean nothing; bounds that assume no shape stay '
    'valid'
  )


def _not_cosines(dim: float, statistic: float, p_value: float) -> str:
  return (
    f'the unobserved scores do not follow the law of a cosine in dimension {dim} '
    f'({_format_test(statistic, p_value)}): use dim=None, so that their law is taken '
    'from the unobserved scores'
  )


def _format_test(statistic: float, p_value: float) -> str:
  return f'Anderson-Darling {statistic:.3g}, {cells.format_p_value(p_value)}'


def _below_bound(
  epsilon: float | str,
  bound: float | str,
  confidence: float,
  method: str,
  assumes: list[str],
) -> str:
  assumed = tuple(map(Assumption, assumes))
  estimate = Estimate(
    float(bound), 0.5, method, confidence, 'confidence_bound', assumed
  )
  reasons = 'the estimate is wrong, or the bound is one of the few that exceed the true ε'
  if not estimate.is_shape_free:
    reasons += ', or what the bound assumes is untrue'
  return (
    f'the first point estimate, {cells.format_number(epsilon)}, is below a lower '
    f'bound of the same scores, {cells.format_number(bound)} at '
    f'{100 * confidence:g} % ({cells.describe_method(estimate)}; holds if '
    f'{", ".join(assumptions.list_assumptions(assumed))}): {reasons}'
  )


def _crowded(share: float, design: str) -> str:
  text = (
    f'canaries make up more than {100 * share:g} % of what this attacker sees, so '
    'the null law is taken from those that took no part and is not that of random '
    'directions'
  )
  if design == 'fixed':
    text += (
      '; the lower bound is one that needs no known law (all thresholds, one test), '
      'and is smaller'
    )
  return text


def _separated(num: int) -> str:
  return (
    f'every canary that took part scores above every other one, and {num:,} of them '
    'show no more than the lower bound'
  )


def _extrapolates(num: int, epsilon: float | str) -> str:
  text = (
    f'the fitted-law estimate {cells.format_number(epsilon)} extrapolates: '
    f'{_separated(num)}'
  )
  if float(epsilon) < float('inf'):
    text += (
      '; the rest is read from tails of that law, where there are no scores'
    )
  return text


def _noise_not_as_claimed(ratio: float) -> str:
  return (
    "what is left of a release without the others' updates and the canaries is "
    f'{cells.format_ratio(ratio)} times as long as the noise that is claimed, so that the ε that the '
    'mechanism allows is not that of this run. Check that the noise multiplier, the '
    'clip norm, the divisor and the updates of others are those of the loop, and '
    'that the canaries were added'
  )


def _noise_not_independent(lag: int, correlation: float) -> str:
  return (
    f'{_describe_correlation(lag, correlation)}, and it is claimed to be '
    'independent, so that the ε that the mechanism allows is not that of this run. '
    'Check that each round draws its noise from a key of its own, and that the '
    'updates of others are those of the loop'
  )


def _noise_not_of_strategy(lag: int, correlation: float) -> str:
  return (
    "the noise's correlation over rounds does not match the stated strategy: where "
    f'that is undone, {_describe_correlation(lag, correlation)}, so that the ε that '
    'the mechanism allows is not that of this run. Give the C of the noise C⁻¹ Z '
    'that the loop adds'
  )


def _describe_correlation(lag: int, correlation: float) -> str:
  apart = {0: 'any two rounds', 1: 'consecutive rounds'}
  return (
    f'the noise of {apart.get(lag, f"rounds {lag:,} apart")} has a correlation of '
    f'{correlation:.2g}{" on average" if lag == 0 else ""}'
  )


def _settings_read(source: str, **values: float) -> str:
  parts = [_SETTINGS[name].format(value) for name, value in values.items()]
  return f'read from the {source}: {", ".join(parts)}'


def _rounds_not_audited(num: int, rounds: int) -> str:
  return (
    f'{cells.format_rounds(num)} beyond the {rounds:,} that the audit was made for '
    f'{"is" if num == 1 else "are"} not audited, and not in its numbers; give rounds '
    'as many as training will make'
  )


def _coordinates_wrapped(num: int, of: int) -> str:
  return (
    f'{num:,} of the {of:,} coordinates of all rounds wrapped around the ring of secure '
    'aggregation, so that the model has learnt wrong numbers there, and canaries may '
    'score less than their norm predicts. Give more secure_aggregation.bits, or a '
    'larger secure_aggregation.granularity'
  )


def _rounds_missed(num: int, planned: int, fewest: int, most: int) -> str:
  text = (
    f'{num:,} of {planned:,} assigned participations of canaries took place in the '
    'rounds observed'
  )
  if fewest < most:
    text += (
      f'. Canaries took part in {fewest} to {most} rounds: an estimate is of all of '
      f'them together, and the analytic ε, of {most} rounds, above what others allow'
    )
  return text


_SETTINGS = {
  'dim': 'd = {:,}',
  'rounds': '{:,} rounds',
  'clip_norm': 'clip norm {:.6g}',
  'noise_multiplier': 'noise multiplier {:.6g}',
  'server_momentum': 'server momentum {:.6g}',
  'repetitions': 'canaries in up to {:,} rounds each',
  'min_separation': 'rounds of one {:,} apart',
}


def _larger_clients(
  weighted_by: str,
  largest: float,
  canary: float,
  epsilon: float | str,
  claimed: float | str,
  delta: float,
  option: str,
) -> str:
  cure = f'Set {option}={largest:g}' if option else 'Let canaries weigh as much'
  return (
    f'a client with {weighted_by}={largest:g} moves the mean '
    f'{largest / canary:.3g} times as far as a canary with {canary:g}, and its ε in '
    f'a round is {cells.format_number(epsilon)}, where '
    f'{cells.format_number(claimed)} is claimed (δ = {delta:g}). {cure} to '
    'audit it, or give all clients the same weight'
  )


def _larger_sensitivity(
  source: str,
  norm: float,
  accounted: float,
  epsilon: float | str,
  claimed: float | str,
  delta: float,
) -> str:
  return (
    f'the noise of the {source} is for a sensitivity of {accounted:.3g} clip norms, '
    f'and that of its matrix is {norm:.3g}: ε = {cells.format_number(epsilon)}, '
    f'where {cells.format_number(claimed)} is claimed (δ = {delta:g}). Multiply the '
    f'noise multiplier by {norm / accounted:.3g}, or scale the matrix'
  )


def _release_shorter_than_noise(ratio: float) -> str:
  return (
    f'releases are {cells.format_ratio(ratio)} times as long as the noise that is '
    'claimed to be in them, so that there is at most so much of it. Check the noise, '
    'and that divisor, clip_norm and noise_multiplier are those of the loop'
  )


def _canaries_not_as_predicted(
  standard_errors: float, share: float | None = None
) -> str:
  times = 'otherwise than'
  if share is not None:
    times = f'{cells.format_ratio(share)} times what'
  return (
    f'canaries score {times} their norm predicts ({cells.format_errors(standard_errors)}). '
    'Check that each injection was added to the sum of its round, whole '
    'and once, and that divisor and included are right'
  )


def _epsilon_above_claim(
  epsilon: float, claimed: float, noise_share: float
) -> str:
  return (
    f'the own round finds ε = {epsilon:.3g}, and the claim allows {claimed:.3g}: '
    f'the noise is at most about {cells.format_ratio(noise_share)} of what is claimed'
  )


def _canaries_hide_one_another(num: int, dim: int) -> str:
  return (
    f'up to {num} canaries are in a release of {dim:,} dimensions and hide one '
    'another, so that estimates are too low. Lower num_observed, or make more rounds'
  )


def _sign_reversed(p_value: float, higher: str, option: str) -> str:
  low, other = ('lower', 'out') if higher == 'in' else ('higher', 'in')
  # In Python the value is quoted, and as a flag it is not.
  value = other if option.startswith('-') else repr(other)
  return (
    f'the sign is probably reversed: {_describe_swapped(p_value)}. If {low} scores '
    f'mean "took part", give {option}={value}; until then no estimate means anything'
  )


SENTENCES: wording.Words = {
  'null_law_rejected': _null_law_rejected,
  'swapped': _swapped,
  'spread_differs': _spread_differs,
  'not_gaussian_around_shifts': _not_gaussian_around_shifts,
  'maximum_law_rejected': _maximum_law_rejected,
  'too_few_to_test': _too_few_to_test,
  'all_equal': _all_equal,
  'scores_repeat': _scores_repeat,
  'not_gaussian': _not_gaussian,
  'not_cosines': _not_cosines,
  'below_bound': _below_bound,
  'crowded': _crowded,
  'sum_over_rounds': (
    'a canary is scored by a sum over several rounds, whose null law is taken from '
    'the canaries that took no part, so that its bound that assumes no shape is far '
    'below the estimate'
  ),
  'noise_varies': (
    'the noise varies from round to round by more than that of the claim, so the '
    'null law is taken from the canaries that took no part'
  ),
  'noise_correlates': (
    'the noise is correlated over rounds otherwise than claimed, so the null law of '
    'sums over rounds is taken from the canaries that took no part'
  ),
  'separated': _separated,
  'extrapolates': _extrapolates,
  'noise_not_as_claimed': _noise_not_as_claimed,
  'noise_not_independent': _noise_not_independent,
  'noise_not_of_strategy': _noise_not_of_strategy,
  'settings_read': _settings_read,
  'rounds_not_audited': _rounds_not_audited,
  'rounds_missed': _rounds_missed,
  'coordinates_wrapped': _coordinates_wrapped,
  'larger_clients': _larger_clients,
  'larger_sensitivity': _larger_sensitivity,
  'release_shorter_than_noise': _release_shorter_than_noise,
  'canaries_not_as_predicted': _canaries_not_as_predicted,
  'epsilon_above_claim': _epsilon_above_claim,
  'canaries_hide_one_another': _canaries_hide_one_another,
  'sign_reversed': _sign_reversed,
}
"""Key of a check -> its sentence."""
