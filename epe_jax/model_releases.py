"""Published models in place of aggregates: what their differences show.

With server SGD the difference of two models is a known sum of aggregates, so
that what an attacker sees who is given some models only is derived from the
trace of a run that kept every round.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxtyping import Bool, Float
import numpy as np
from scipy import linalg

from epe_jax import releases, results

History = Sequence[Mapping[str, float]]
# Of what the change of the model is and what it should be; the rest is float32.
_SAME = 0.999


def models(
  recorded: results.Recorded,
  shown: Bool[np.ndarray, ' T'],
  *,
  history: History,
  momentum: float,
  initial: bool = True,
) -> results.Recorded:
  """The models after some rounds are published, and not the aggregates.

  The attacker looks at the difference of each two models published in a row,
  less what those before tell of it: with momentum a difference holds aggregates
  of rounds before it too, and models with none left out in between give away all
  aggregates. With Σ the covariance of the differences if aggregates were
  orthogonal, and Σ = L Lᵀ, what a model adds is a row of L⁻¹ times the
  differences, v = Σ_t w_t ρ̄_t, and

    <c_j, v> = Σ_t w_t |ρ̄_t| cos(c_j, ρ̄_t)

  is known from the trace and the norms of metrics.jsonl. |v| is not, as no run
  records how aggregates lie to one another; it is estimated from the unobserved
  canaries, whose <c_j, v> has variance |v|²/d. With n of them |v| is off by
  1/√(2n) of itself, in the same way for all canaries of a row: what can be told
  from one row is exact, and rows are weighted a little wrongly.

  A norm that is measured by those whose coin said no has been told of coins, so
  what is left is of a fixed design.

  What remains when the updates of others are removed has |r_t|² = (z S/m)² d +
  n_t (S/m)², up to 1/√(2d) of itself.

  Args:
    recorded: what a run recorded that saw aggregates.
    shown: after which rounds the model is published.
    history: the lines of metrics.jsonl, with aggregate_norm, canary_cosine,
      noise_std and canaries of each round.
    momentum: of the server's SGD, in [0, 1); 0 for none.
    initial: the attacker knows the initial model. If not, the first published
      model only serves to read the second.

  Returns:
    A row for each difference in place of each round, and for participation the
    cosine to expect of a canary there. Of canaries those are kept that took part
    in between two models that the attacker has, or had a seat there.

  Raises:
    ValueError: shown is not of the run or shows too little, momentum is out of
      range, or for the reasons of `why_not_models`.
  """
  releases.check_shown(recorded, shown)
  reason = why_not_models(recorded, history=history, momentum=momentum)
  if reason:
    raise ValueError(reason)
  norms = _norms(recorded, history)
  stops = 1 + np.flatnonzero(shown)
  if initial:
    stops = np.concatenate([[0], stops])
  if len(stops) < 2:
    raise ValueError(
      'one published model has no difference with another. Publish more, or '
      'let the attacker know the initial model.'
    )
  effect = response(len(recorded.trace), momentum=momentum)
  weights = np.diff(effect[stops], axis=0)
  between = slice(stops[0], stops[-1])
  trace, share = _added(
    recorded, weights, norms.aggregate, recorded.trace, norms.canary
  )
  residual, _ = _added(
    recorded, weights, norms.residual, recorded.residual, norms.canary
  )
  nothing = np.empty(0, np.float32)
  return releases.part(
    recorded,
    seated=np.asarray(recorded.seats[between].any(axis=0)),
    final=recorded.final if shown[-1] else nothing,
    change=recorded.change if shown[-1] and initial else nothing,
    trace=trace,
    residual=residual,
    # With momentum a canary's share of a model depends on its round.
    expected=nothing,
    participation=np.where(recorded.observed, share, 0),
    seats=share,
    sees='models',
    design='fixed',
  )


def why_not_models(
  recorded: results.Recorded, *, history: History, momentum: float
) -> str | None:
  """Why `models` cannot be derived from a run; None if they can.

  Whether the server is SGD with this momentum is not taken on trust: the sum of
  all aggregates has to point where the model went.
  """
  if recorded.sees != 'aggregate':
    return (
      f'sees={recorded.sees!r}, but differences of models are derived from '
      "aggregates. Train with audit.sees='aggregate'."
    )
  if np.count_nonzero(~recorded.observed) < 2:
    return (
      'differences of models are measured by unobserved canaries, and there '
      'are fewer than two. Train with more of canaries.unobserved.'
    )
  rounds = len(recorded.trace)
  if len(_lines(history)) != rounds:
    return (
      f'history has {len(_lines(history))} rounds and the trace {rounds}; give '
      'the metrics.jsonl of the same run.'
    )
  weights = response(rounds, momentum=momentum)[-1]
  norms = _norms(recorded, history).aggregate
  change = (weights * norms) @ np.asarray(recorded.trace, np.float64)
  if np.corrcoef(change, recorded.change)[0, 1] < _SAME:
    return (
      f'momentum={momentum}, but with it the aggregates do not add up to the '
      'change of the model. Differences of models are known for server SGD '
      'alone; give its momentum, or read aggregates.'
    )
  return None


def response(
  rounds: int, *, momentum: float
) -> Float[np.ndarray, 'stops rounds']:
  """What each aggregate weighs in the model after each round: SGD is linear.

  Momentum β keeps adding an aggregate, β^i times in the i-th round after its
  own, so that after n rounds it has been added (1 - βⁿ)/(1 - β) times. The
  learning rate scales all weights alike and is left out.

  Args:
    rounds: T >= 1.
    momentum: β, in [0, 1).

  Returns:
    Row t, from 0 to T, is of the model after t rounds.

  Raises:
    ValueError: momentum is out of range.

  >>> response(3, momentum=0.5)
  array([[0.  , 0.  , 0.  ],
         [1.  , 0.  , 0.  ],
         [1.5 , 1.  , 0.  ],
         [1.75, 1.5 , 1.  ]])
  """
  if not 0 <= momentum < 1:
    raise ValueError(f'momentum={momentum}; give a momentum in [0, 1).')
  since = np.arange(rounds + 1)[:, None] - np.arange(rounds)
  return (1 - momentum ** np.maximum(since, 0)) / (1 - momentum)


class _Norms(NamedTuple):
  """Of each round, [T]: of ρ̄, of its part without clients, of a canary's."""

  aggregate: Float[np.ndarray, ' T']
  residual: Float[np.ndarray, ' T']
  canary: Float[np.ndarray, ' T']


def _lines(history: History) -> list[Mapping[str, float]]:
  """The lines of rounds: the first of a run is of the initial model."""
  return [line for line in history if 'aggregate_norm' in line]


def _norms(recorded: results.Recorded, history: History) -> _Norms:
  norm, cosine, noise, canaries = (
    np.array([line[name] for line in _lines(history)], np.float64)
    for name in ('aggregate_norm', 'canary_cosine', 'noise_std', 'canaries')
  )
  one = cosine * norm
  rest = np.sqrt(noise**2 * recorded.dim + canaries * one**2)
  return _Norms(norm, rest, one)


def _added(
  recorded: results.Recorded,
  weights: Float[np.ndarray, 'n T'],
  norms: Float[np.ndarray, ' T'],
  trace: Float[np.ndarray, 'T k'],
  canary: Float[np.ndarray, ' T'],
) -> tuple[Float[np.ndarray, 'n k'], Float[np.ndarray, 'n k']]:
  """Cosines with what each difference adds, and those to expect of a seat."""
  # A round without noise and clients is a vector of zeros, which adds nothing.
  sizes = np.maximum(norms, 1e-6 * norms.max(initial=1e-30))
  root = np.linalg.cholesky((weights * sizes**2) @ weights.T)
  added = linalg.solve_triangular(root, weights, lower=True)
  products = (added * norms) @ np.asarray(trace, np.float64)
  null = products[:, ~recorded.observed]
  norm = np.sqrt(recorded.dim * np.mean(null**2, axis=1, keepdims=True))
  norm = np.where(norm > 0, norm, 1)
  return products / norm, (added * canary) @ recorded.seats / norm
