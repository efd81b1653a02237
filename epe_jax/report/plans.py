"""The words for what a plan of an audit assumes, lacks and warns of."""

from collections.abc import Mapping

from epe_jax.fact import Fact
from epe_jax.report import checks, words

BASIS = (
  'memory as measured at d = 4,050,748, in float32 on 2 cores of an AMD EPYC. '
  'Estimates and figures at the end are not counted'
)
"""The measurements that the costs of a plan are based on."""

ASSUMPTIONS: Mapping[str, str] = {
  'updates_have_clip_norm': (
    'clipped client updates have the clip norm, and a cosine of client_agreement '
    'with each other; without it, of 0, and in ranges of up to 0.25'
  ),
  'clients_do_not_respond': (
    'clients do not respond to the canaries in the model'
  ),
  'null_law': (
    'cosines with held-out canaries of the family follow their known distribution (the '
    'effective dimension of what the attacker sees is large enough)'
  ),
  'server_is_sgd': (
    'the server is SGD, so that the last model is a weighted sum of rounds'
  ),
  'noise_is_independent': 'noise is Gaussian, and independent from round to round',
}
"""Key of an assumption of a plan -> its words."""

REASONS: Mapping[str, str] = {
  'no_noise': 'without noise ε is ∞',
  'no_unobserved': (
    'only held-out canaries tell the distribution of its scores, and there are fewer '
    'than two'
  ),
  'no_initial_norm': 'the norm of the initial model is not given, see initial_norm',
  'not_calibrated': 'it has no calibrated estimate',
}
"""Key of why there is no prediction for an attacker -> its words."""

MEMORY: Mapping[str, str] = {
  'programs': 'programs',
  'model_vectors': 'vectors of the model',
  'buffered_rounds': 'rounds buffered for scoring, and their copies',
  'cosines': 'cosines of all rounds',
  'participation': 'participation of canaries',
}
"""Key of what memory holds -> its words."""


def describe_warning(warning: Fact) -> str:
  """A weakness of a plan with its cure, a sentence.

  Args:
    warning: of a key of `WARNINGS`; its `attacker` is a name.
  """
  values = dict(warning.values)
  attacker = values.pop('attacker', '')
  text = words.describe_fact(warning._replace(values=values), WARNINGS)
  return f'{attacker}: {text}' if attacker else text


_WEAK = (
  'with {observed:,} canaries and {unobserved:,} held out, the estimate is about '
  'ε = {epsilon:.2g} and the floor reaches {floor:.2g}'
)
_ROUNDS = 'canaries take part in {repetitions} of {rounds:,} rounds'
_DIFFER = f'{_ROUNDS}, clients in up to {{clients}}: a client is allowed ε = {{epsilon:number}}'
_CURE = 'Plan with repetitions={clients} to measure it.'

WARNINGS: words.Words = {
  'few_canaries': (
    f'{_WEAK}: use at least {{needed_observed:,}} and {{needed_unobserved:,}} held out.'
  ),
  'out_of_reach': (
    f'{_WEAK}, and no number of canaries up to {{max_canaries:,}}, or d, makes it '
    'twice that floor: expect nothing of this attacker.'
  ),
  'bound_is_zero': (
    'the lower bound will most likely be 0, although the estimate is above its '
    'floor; use more canaries.'
  ),
  'too_many_canaries': lambda **values: (
    f'{checks.describe_check(Fact("crowded", values))}. Use fewer canaries, or more '
    'rounds.'
  ),
  'clients_not_given': (
    f'{_ROUNDS}, and the plan is of as many: set client_participations to learn what '
    'follows for a client who takes part more often.'
  ),
  'clients_differ': f'{_DIFFER}. {_CURE}',
  'clients_differ_in_model': (
    f'{_DIFFER}, and of the {{model}} ε ≈ {{orthogonal:number}} is to be expected if '
    f'its updates are orthogonal, ε ≈ {{agreeing:number}} if they agree. {_CURE}'
  ),
  'no_unobserved': (
    'without canaries held out, the distribution of their scores cannot be tested and '
    'the maximum over rounds cannot be estimated: hold out as many as take part.'
  ),
}
"""Key of a weakness of a plan -> the format of its sentence, with a cure."""
