"""Audits side by side: one line for each run."""

from collections.abc import Mapping
from typing import Any

from epe_jax import words

# Column -> (statistic, method), the calibrated point estimate of each attacker.
_ESTIMATES = {
  'final model': ('cosine with the final model', 'two_gaussian_null'),
  'own round': ('own round', 'two_gaussian_null'),
  'others removed': ('own round, others removed', 'two_gaussian_null'),
}


def markdown(results: Mapping[str, Mapping[str, Any]]) -> str:
  """A table with a line for each run.

  ε are point estimates, without a guarantee; that of the final model has beside
  it the 5 to 95 % range that the same estimator gives where nothing leaks. The
  analytic ε is that of a canary, or without any that of a client.

  Args:
    results: name of a run -> what its result.json holds.

  Returns:
    Markdown without a final newline.
  """
  head = [
    'run',
    'rounds x clients',
    'd',
    'noise',
    'accuracy (commonest answer)',
    'analytic ε',
    *(f'ε, {column}' for column in _ESTIMATES),
  ]
  lines = [head, ['---'] * len(head)]
  lines += [_line(name, result) for name, result in results.items()]
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def _line(name: str, result: Mapping[str, Any]) -> list[str]:
  config = result['config']
  estimates = {
    column: _estimate(result, *which) for column, which in _ESTIMATES.items()
  }
  analytic = words.number(words.analytic(result))
  if not words.audited(result):
    analytic += ' (clients)'
    estimates = dict.fromkeys(estimates, 'not audited')
  return [
    name,
    f'{result["rounds"]:,} x {config["clients_per_round"]:,}',
    f'{result["dim"]:,}',
    f'{result["noise_multiplier"]:g}',
    f'{100 * result["accuracy"]:.1f} % '
    f'({100 * result["baseline_accuracy"]:.1f} %)',
    analytic,
    *estimates.values(),
  ]


def _estimate(result: Mapping[str, Any], statistic: str, method: str) -> str:
  for row in result['estimates']:
    if (row['statistic'], row['method']) == (statistic, method):
      text = words.number(row['epsilon'])
      # Where much leaks the floor says nothing.
      if statistic == 'cosine with the final model':
        floor = row['floor_quantiles']
        low, high = words.number(floor['5']), words.number(floor['95'])
        text += f' (floor {low} to {high})'
      return text
  return 'not measured'
