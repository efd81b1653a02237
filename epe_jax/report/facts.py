"""What a finished run is: its sizes, its canaries, its noise and analytic ε."""

import math
from typing import NamedTuple

from epe_jax.audit import clients
from epe_jax.audit.effective_dimension import EffectiveDimensions
from epe_jax.experiment.run_result import RunResult
from epe_jax.text import cells

_NOT_AUDITED = 'not audited: no canaries'
# Schedules by which canaries may take part in different numbers of rounds.
_VARYING = ('as_clients', 'replace', 'matrix')


class AnalyticEpsilon(NamedTuple):
  """An analytic ε of a run.

  Attributes:
    who: whom it is of, 'canaries', 'clients' or both.
    epsilon: its value as people read it; ∞ without noise.
    assumes: what it assumes, without a full stop.
  """

  who: str
  epsilon: str
  assumes: str


def is_coin_flip(result: RunResult) -> bool:
  """Whether each canary was included independently with probability 1/2."""
  return any(attack.find('one_run') for attack in result.audit.attacks)


def find_analytic_epsilon(result: RunResult) -> float:
  """The analytic ε of a canary, or of a client where there are no canaries.

  Returns:
    ε >= 0; inf without noise.
  """
  if not result.is_audited:
    return result.clients_analytic_epsilon
  assert result.analytic_epsilon is not None, 'canaries took part'
  return result.analytic_epsilon


def count_participations(result: RunResult) -> clients.Participations:
  """How often canaries and clients of an audited run take part."""
  schedule = result.config.get('canaries', {}).get('schedule')
  return clients.Participations(
    result.repetitions,
    result.clients_participations,
    result.clients_analytic_epsilon,
    canaries_vary=schedule in _VARYING,
  )


def count_rounds_of_canary(participations: clients.Participations) -> str:
  """The rounds of a canary, in words."""
  rounds = cells.format_rounds(participations.canaries)
  return f'up to {rounds}' if participations.canaries_vary else rounds


def describe_participation(result: RunResult) -> str | None:
  """Whose ε the numbers of an audit are; None if clients take part as canaries do."""
  participations = count_participations(result)
  if not result.is_audited or not participations.differ:
    return None
  of_canary = count_rounds_of_canary(participations)
  of_client = cells.format_rounds(participations.clients)
  return (
    f'Canaries take part in {of_canary}, and what they show is of as many. A client '
    f'of this run takes part in up to {of_client}, {describe_limit_of_client(result)}.'
  )


def describe_limit_of_client(result: RunResult) -> str:
  """What a client of the run is allowed, without a full stop."""
  if math.isinf(result.clients_analytic_epsilon):
    return 'and without noise there is no limit to its ε'
  epsilon = cells.format_number(result.clients_analytic_epsilon)
  return f'and is allowed ε = {epsilon}'


def list_analytic_epsilons(result: RunResult) -> list[AnalyticEpsilon]:
  """The analytic ε of canaries and of clients, once if they are the same."""
  of_client = AnalyticEpsilon(
    'clients',
    cells.format_number(result.clients_analytic_epsilon),
    result.clients_analytic_assumes.rstrip('.'),
  )
  if not result.is_audited:
    return [of_client]
  assert result.analytic_assumes is not None, 'canaries took part'
  of_canary = AnalyticEpsilon(
    'canaries',
    cells.format_number(find_analytic_epsilon(result)),
    result.analytic_assumes.rstrip('.'),
  )
  if of_canary[1:] == of_client[1:]:
    return [of_canary._replace(who='canaries and clients')]
  return [of_canary, of_client]


def describe_run(result: RunResult) -> str:
  """The run in one line: task, sizes, canaries, noise, δ and accuracy."""
  total = result.num_observed + result.num_unobserved
  coins = ', each with probability 1/2' if is_coin_flip(result) else ''
  canaries = (
    f'{result.num_observed:,} of {total:,} canaries in{coins} for '
    f'{count_rounds_of_canary(count_participations(result))}'
  )
  if not result.is_audited:
    canaries = _NOT_AUDITED
  return (
    f'{result.task}: {result.rounds:,} rounds, d = {result.dim:,}, '
    f'{canaries}, noise {result.noise_multiplier:g}, '
    f'δ = {cells.format_delta(result.delta)}, '
    f'accuracy {cells.format_percent(result.accuracy)} (majority class: '
    f'{cells.format_percent(result.baseline_accuracy)})'
  )


def list_facts(result: RunResult) -> list[tuple[str, str]]:
  """The name and the value of every fact about a run, for a table."""
  noise = f'{result.noise_multiplier:g} times the clip norm'
  versions = [f'{name} {value}' for name, value in result.versions.items()]
  return [
    ('data', result.data),
    ('rounds', f'{result.rounds:,}'),
    ('rounds of a client, at most', f'{result.clients_participations:,}'),
    ('parameters d', f'{result.dim:,}'),
    *_list_canaries(result),
    ('noise', f'{noise}, {result.noise}'),
    ('δ', cells.format_delta(result.delta)),
    *(
      (
        f'analytic ε of {analytic.who}',
        f'{analytic.epsilon}: {analytic.assumes}',
      )
      for analytic in list_analytic_epsilons(result)
    ),
    ('amplification by sampling', result.amplification or 'none counted'),
    ('test accuracy', cells.format_percent(result.accuracy)),
    (
      'accuracy of the majority class',
      cells.format_percent(result.baseline_accuracy),
    ),
    ('test loss', f'{result.loss:.4g}'),
    *_list_time(result),
    ('versions', ', '.join(versions)),
  ]


def _list_canaries(result: RunResult) -> list[tuple[str, str]]:
  if not result.is_audited:
    return [('canaries', _NOT_AUDITED)]
  coins = ', each with probability 1/2' if is_coin_flip(result) else ''
  took_part = f'{result.num_observed:,}, in {count_rounds_of_canary(count_participations(result))}{coins}'
  facts = [
    ('canaries that took part', took_part),
    ('canaries that did not', f'{result.num_unobserved:,}'),
  ]
  if dimension := result.effective_dimension:
    facts.append(
      (
        'effective dimension of what was seen',
        _describe_effective_dimension(dimension),
      )
    )
  return facts


def _list_time(result: RunResult) -> list[tuple[str, str]]:
  # A run with fresh noise does not say, for it depends on who took part.
  if result.seconds is None:
    return []
  assert result.seconds_per_round is not None, 'times come together'
  assert result.waited_share is not None, 'times come together'
  time = (
    f'{result.seconds:,.1f} s, {result.seconds_per_round:.3g} s a round; '
    f'waited for data {100 * result.waited_share:.2g} % of it'
  )
  return [('time', time)]


def _describe_effective_dimension(dimension: EffectiveDimensions) -> str:
  needed = dimension.threshold
  return (
    f'{dimension.min_round:,.0f} or more in a round, '
    f'{dimension.median_round:,.0f} in the median; '
    f'final model {dimension.final_model:,.0f}, its change '
    f'{dimension.change:,.0f}; {dimension.family} canaries need '
    f'{"any" if needed is None else f"{needed:,.0f}"}'
  )
