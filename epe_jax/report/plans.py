"""The words for what a plan of an audit assumes, lacks and warns of."""

from collections.abc import Mapping

from epe_jax.fact import Fact
from epe_jax.report import cells, checks, wording

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
    'cosines with canaries of the family follow their null law (the effective '
    'dimension of what the attacker sees is large enough)'
  ),
  'server_is_sgd': (
    'the server is SGD, so that a final model is a weighted sum of rounds'
  ),
  'noise_is_independent': 'noise is Gaussian, and independent from round to round',
}
"""Key of an assumption of a plan -> its words."""

REASONS: Mapping[str, str] = {
  'no_noise': 'without noise ε is ∞',
  'no_unobserved': (
    'only unobserved canaries tell its null law, and there are fewer than two'
  ),
  'no_initial_norm': 'the norm of the initial model is not given, see initial_norm',
  'nothing_to_score': 'nothing that it scores is simulated',
  'not_calibrated': 'it has no calibrated estimate',
  'too_large': 'the run has too many rounds and canaries to simulate them all',
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
  text = wording.describe_fact(warning._replace(values=values), WARNINGS)
  return f'{attacker}: {text}' if attacker else text


def _few_canaries(
  observed: int,
  unobserved: int,
  epsilon: float,
  floor: float,
  needed_observed: int,
  needed_unobserved: int,
) -> str:
  return (
    f'{_weak(observed, unobserved, epsilon, floor)}: use at least '
    f'{needed_observed:,} in and {needed_unobserved:,} out.'
  )


def _out_of_reach(
  observed: int,
  unobserved: int,
  epsilon: float,
  floor: float,
  max_canaries: int,
) -> str:
  return (
    f'{_weak(observed, unobserved, epsilon, floor)}, and no number of canaries up '
    f'to {max_canaries:,}, or d, makes it twice that floor: expect nothing of this '
    'attacker.'
  )


def _weak(observed: int, unobserved: int, epsilon: float, floor: float) -> str:
  return (
    f'with {observed:,} canaries in and {unobserved:,} out, the estimate is about '
    f'ε = {epsilon:.2g} and the floor reaches {floor:.2g}'
  )


def _too_many_canaries(share: float, design: str) -> str:
  crowded = Fact('crowded', {'share': share, 'design': design})
  return (
    f'{checks.describe_check(crowded)}. Use fewer canaries, or more rounds.'
  )


def _clients_not_given(repetitions: int, rounds: int) -> str:
  return (
    f'{_count_rounds(repetitions, rounds)}, and the plan is of as many: set '
    'client_participations to learn what follows for a client who takes part more '
    'often.'
  )


def _clients_differ(
  repetitions: int, rounds: int, clients: int, epsilon: float
) -> str:
  return (
    f'{_compare(repetitions, rounds, clients, epsilon)}. Plan with '
    f'repetitions={clients} to measure it.'
  )


def _clients_differ_in_model(
  repetitions: int,
  rounds: int,
  clients: int,
  epsilon: float,
  model: str,
  orthogonal: float,
  agreeing: float,
) -> str:
  return (
    f'{_compare(repetitions, rounds, clients, epsilon)}, and of the {model} '
    f'ε ≈ {cells.format_number(orthogonal)} is to be expected if its updates are '
    f'orthogonal, ε ≈ {cells.format_number(agreeing)} if they agree. Plan with '
    f'repetitions={clients} to measure it.'
  )


def _compare(
  repetitions: int, rounds: int, clients: int, epsilon: float
) -> str:
  return (
    f'{_count_rounds(repetitions, rounds)}, clients in up to {clients}: a client '
    f'is allowed ε = {cells.format_number(epsilon)}'
  )


def _count_rounds(repetitions: int, rounds: int) -> str:
  return f'canaries take part in {repetitions} of {rounds:,} rounds'


WARNINGS: wording.Words = {
  'few_canaries': _few_canaries,
  'out_of_reach': _out_of_reach,
  'bound_is_zero': (
    'the lower bound will most likely be 0, although the estimate is above its '
    'floor; use more canaries.'
  ),
  'too_many_canaries': _too_many_canaries,
  'clients_not_given': _clients_not_given,
  'clients_differ': _clients_differ,
  'clients_differ_in_model': _clients_differ_in_model,
  'no_unobserved': (
    'without canaries that take no part, the null law cannot be tested and the '
    'maximum over rounds cannot be estimated: use as many as take part.'
  ),
}
"""Key of a weakness of a plan -> its sentence, with a cure."""
