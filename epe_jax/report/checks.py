"""A sentence for each check of an audit, made from its key and its numbers."""

from epe_jax.audit.attackers import EXTERNAL
from epe_jax.audit.results import AttackResult
from epe_jax.epsilon.diagnostics import MIN_SCORES
from epe_jax.epsilon.types import Assumption, Estimate
from epe_jax.fact import Fact
from epe_jax.report import cells, words


def describe_check(check: Fact) -> str:
  """The check in words, without a full stop.

  >>> describe_check(Fact('separated', {'num': 100}))[:41]
  'every canary that took part scores above '
  >>> describe_check(Fact('mine', {'share': 0.5}))
  'mine (share = 0.5)'
  """
  return words.describe_fact(check, SENTENCES)


def format_first_bound(attack: AttackResult) -> str:
  """The first bound of an attacker, with why it is by a weaker test than usual.

  Without a known law of the scores of held-out canaries, these are counted.
  """
  bound = attack.bounds[0]
  text = cells.format_epsilon(bound)
  if bound.method != 'rank_test' or attack.threat_model == EXTERNAL:
    return text
  keys = [fact.key for fact in (*attack.failed_checks, *attack.notes)]
  reasons = (why for key, why in _WEAKER.items() if key in keys)
  return f'{text} (weaker test: {next(reasons, "distribution not known")})'


_WEAKER = {
  'null_law_rejected': 'scores do not follow their distribution',
  'crowded': 'too many canaries a round',
  'sum_over_rounds': 'canaries of several rounds',
  'noise_varies': 'noise varies over rounds',
  'noise_correlates': 'noise correlates over rounds',
}
"""Key of a check -> why a bound is not the usual one."""

_SWAPPED = 'canaries that took part score lower than others ({p_value:p})'
_TEST = 'Anderson-Darling {statistic:.3g}, {p_value:p}'
_NOT_OF_RUN = 'so that the limit is not that of this run'
_SEPARATED = (
  'every canary that took part scores above every other one, and {num:,} of them '
  'show no more than the lower bound'
)
_SETTINGS = {
  'dim': 'd = {dim:,}',
  'rounds': '{rounds:,} rounds',
  'clip_norm': 'clip norm {clip_norm:.6g}',
  'noise_multiplier': 'noise multiplier {noise_multiplier:.6g}',
  'sampling_probability': 'sampling probability {sampling_probability:.6g}',
  'server_momentum': 'server momentum {server_momentum:.6g}',
  'repetitions': 'canaries in up to {repetitions:,} rounds each',
  'min_separation': 'rounds of one {min_separation:,} apart',
}


def _below_bound(
  bound: float | str,
  confidence: float,
  method: str,
  assumes: list[str],
  **_: float | str,
) -> str:
  assumed = tuple(map(Assumption, assumes))
  estimate = Estimate(
    float(bound), 0.5, method, confidence, 'confidence_bound', assumed
  )
  # The key of a method of others may have braces.
  label = cells.describe_method(estimate).replace('{', '{{').replace('}', '}}')
  untrue = ', or what the bound assumes is untrue'
  return (
    'the first estimate, {epsilon:number}, is below a lower bound of the same '
    'scores, {bound:number} at {confidence:g %} '
    f'({label}; holds if {", ".join(words.list_assumptions(assumed))}): the estimate is '
    'wrong, or the bound is one of the few that exceed the true ε'
    f'{"" if estimate.is_shape_free else untrue}'
  )


_CORRELATION = (
  'the noise of {lag:apart} has a correlation of {correlation:.2g}{lag:average}'
)


def _rounds_missed(fewest: int, most: int, **_: int) -> str:
  unequal = (
    '. Canaries took part in {fewest} to {most} rounds: an estimate is of all of '
    'them together, and the limit, of {most} rounds, above what others allow'
  )
  return (
    '{num:,} of {planned:,} assigned participations of canaries took place in the '
    f'rounds observed{unequal if fewest < most else ""}'
  )


def _larger_clients(
  largest: float, canary: float, option: str, **_: float | str
) -> str:
  cure = 'Set {option}={largest:g}' if option else 'Let canaries weigh as much'
  return (
    'a client with {weighted_by}={largest:g} moves the mean '
    f'{largest / canary:.3g} times as far as a canary with {{canary:g}}, and its ε in '
    'a round is {epsilon:number}, where {claimed:number} is claimed (δ = {delta:g}). '
    f'{cure} to audit it, or give all clients the same weight'
  )


def _canaries_not_as_predicted(share: float | None = None, **_: float) -> str:
  times = 'otherwise than' if share is None else '{share:ratio} times what'
  return (
    f'canaries score {times} their norm predicts ({{standard_errors:errors}}). '
    'Check that each injection was added to the sum of its round, whole '
    'and once, and that divisor and included are right'
  )


def _sign_reversed(higher: str, option: str, **_: float) -> str:
  low, other = ('lower', 'out') if higher == 'in' else ('higher', 'in')
  # In Python the value is quoted, and as a flag it is not.
  value = other if option.startswith('-') else repr(other)
  return (
    f'the sign is probably reversed: {_SWAPPED}. If {low} scores mean "took part", '
    f'give {{option}}={value}; until then no estimate means anything'
  )


def _groups_differ(baseline: str, **_: float | str) -> str:
  cure = (
    '--baseline={baseline} shows what is left of ε'
    if baseline
    else 'Score members and others that overlap in it'
  )
  return (
    'the groups differ in {names} ({p_value:p}), which no model has to see: if they are '
    f'not drawn from one population, ε is not of what the model leaks. {cure}. If they '
    'are, say so by --baseline=none'
  )


SENTENCES: words.Words = {
  'null_law_rejected': (
    'scores of canaries held out do not follow {dim:law}, so that their own '
    'distribution is taken instead'
  ),
  'swapped': (
    f'{_SWAPPED}: a high score has to say "took part", so the groups may be swapped '
    'or the sign be wrong'
  ),
  'spread_differs': (
    'scores of canaries that took part have a different variance from held-out '
    'canaries ({p_value:p}), so shift-only estimates are not calibrated'
  ),
  'not_gaussian_around_shifts': (
    'scores of canaries that took part are not Gaussian around their shifts '
    '({p_value:p}), so estimates that assume this are not calibrated'
  ),
  'maximum_law_rejected': (
    'maxima of canaries held out do not follow the distribution of the largest of '
    'independent cosines ({p_value:p}), so estimates from them are not calibrated'
  ),
  'too_few_to_test': (
    'the {num} {group} scores are too few to test whether they are Gaussian; give '
    f'{MIN_SCORES} or more'
  ),
  'all_equal': (
    'the {num} {group} scores are all equal, so that they are not Gaussian'
  ),
  'scores_repeat': (
    '{repeats:,} of the {num:,} {group} scores repeat others exactly, so that they '
    'are not independent draws, and no bound or interval holds. Give each canary '
    'once; nothing is wrong only if different canaries really score alike'
  ),
  'not_gaussian': (
    f'the {{group}} scores are not Gaussian ({_TEST}): two-Gaussian estimates of them '
    'mean nothing; bounds that assume no shape stay valid'
  ),
  'not_cosines': (
    'the held-out scores do not follow the distribution of a cosine in dimension {dim} '
    f'({_TEST}): use dim=None, so that it is taken from the held-out scores'
  ),
  'below_bound': _below_bound,
  'order_only': (
    'of these scores the order is taken and no value, as they are infinite or of a '
    'ROC: bounds need no more, and there is no estimate'
  ),
  'populations_differ': (
    'the groups are not of one population: {name}, which has not seen the model, tells '
    'them apart (ε at least {blind:number} by itself, {p_value:p}), so that the ε of all '
    'scores, at least {epsilon:number}, is not of what the model leaks. Here are the '
    '{pairs:,} pairs of neighbours in the order of {name}: their ε is, if members and '
    'others with the same {name} are alike'
  ),
  'populations_alike': (
    '{name}, which has not seen the model, does not tell the groups apart (ε at least '
    '{blind:number} by itself, {p_value:p}). Here are the {pairs:,} pairs of neighbours in '
    'its order; all scores show ε of at least {epsilon:number}'
  ),
  'groups_differ': _groups_differ,
  'crowded': (
    'canaries make up more than {share:g %} of what this attacker sees, so that held-out '
    'scores are not those of random directions, and are counted{design:bound}'
  ),
  'sum_over_rounds': (
    'a canary is scored by a sum over several rounds, and held-out scores are counted, so '
    'that its bound that assumes no shape is far below the estimate'
  ),
  'noise_varies': (
    'the noise varies from round to round by more than that of the claim, so that '
    'held-out scores are counted'
  ),
  'noise_correlates': (
    'the noise is correlated over rounds otherwise than claimed, so that held-out scores '
    'of sums over rounds are counted'
  ),
  'separated': _SEPARATED,
  'extrapolates': (
    f'the fitted-law estimate {{epsilon:number}} extrapolates: {_SEPARATED}'
    '{epsilon:tails}'
  ),
  'noise_not_as_claimed': (
    "what is left of a release without the others' updates and the canaries is "
    '{ratio:ratio} times as long as the noise that is claimed, '
    f'{_NOT_OF_RUN}. Check that the noise multiplier, the clip norm, the divisor and '
    'the updates of others are those of the loop, and that the canaries were added'
  ),
  'noise_not_independent': (
    f'{_CORRELATION}, and it is claimed to be independent, {_NOT_OF_RUN}. '
    'Check that each round draws its noise from a key of its own, and that the '
    'updates of others are those of the loop'
  ),
  'noise_not_of_strategy': (
    "the noise's correlation over rounds does not match the stated strategy: where "
    f'that is undone, {_CORRELATION}, {_NOT_OF_RUN}. Give the C of the '
    'noise C⁻¹ Z that the loop adds'
  ),
  'settings_read': lambda **values: (
    f'read from the {{source}}: {", ".join(_SETTINGS[name] for name in values if name in _SETTINGS)}'
  ),
  'rounds_not_audited': (
    '{num:rounds} beyond the {rounds:,} that the audit was made for {num:is} not '
    'audited, and not in its numbers; give rounds as many as training will make'
  ),
  'rounds_missed': _rounds_missed,
  'coordinates_wrapped': (
    '{num:,} of the {of:,} coordinates of all rounds wrapped around the ring of '
    'secure aggregation, so that the model has learnt wrong numbers there, and '
    'canaries may score less than their norm predicts. Give more '
    'secure_aggregation.bits, or a larger secure_aggregation.granularity'
  ),
  'larger_clients': _larger_clients,
  'larger_sensitivity': lambda norm, accounted, **_: (
    'the noise of the {source} is for a sensitivity of {accounted:.3g} clip norms, '
    'and that of its matrix is {norm:.3g}: ε = {epsilon:number}, where '
    '{claimed:number} is claimed (δ = {delta:g}). Multiply the noise multiplier by '
    f'{norm / accounted:.3g}, or scale the matrix'
  ),
  'release_shorter_than_noise': (
    'releases are {ratio:ratio} times as long as the noise that is claimed to be in '
    'them, so that there is at most so much of it. Check the noise, and that '
    'divisor, clip_norm and noise_multiplier are those of the loop'
  ),
  'sampling_accounted': (
    'canaries are certain to be in their rounds: an attacker who knows these is allowed '
    'ε = {certain:number} in {repetitions:rounds}. An accountant that counts sampling '
    'allows ε = {sampled:number} to one who is drawn in secret, with probability '
    '{probability:.3g} in each of {rounds:,} rounds. Both are right'
  ),
  'canaries_not_as_predicted': _canaries_not_as_predicted,
  'epsilon_above_claim': (
    'every round shows ε = {epsilon:.3g}, and the claim allows {claimed:.3g}: the noise '
    'is at most about {noise_share:ratio} of what is claimed'
  ),
  'canaries_hide_one_another': (
    'up to {num} canaries are in a release of {dim:,} dimensions and hide one '
    'another, so that estimates are too low. Lower num_observed, or make more rounds'
  ),
  'without_gradient': (
    '{names} of the optimizer had no gradient in the first {steps} steps: noise moves '
    'them, and the model may not use them. Check that they are those of the model'
  ),
  'nothing_moved': (
    'no parameter of the optimizer moved in the first {steps} steps, as at a learning '
    'rate of 0'
  ),
  'moved_otherwise': (
    '{names} moved before step {step} by something else than the optimizer that is '
    'audited, such as another optimizer, and what that reveals is in no number here'
  ),
  'sign_reversed': _sign_reversed,
}
"""Key of a check -> the format of its sentence."""
