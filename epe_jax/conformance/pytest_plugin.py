"""The pytest fixture `check_privacy`, for any project.

def test_aggregation_is_private(check_privacy):
  check_privacy(make, Claim(1.0, 1.0, 10, ((20, 30), (30,))))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def check_privacy() -> Callable[..., Any]:
  """Checks a mechanism, and fails the test with the report if it breaks a rule.

  Returns:
    `check_privacy(make, claim, allow=(), **settings)`, which returns the report.
    Findings of rules in `allow` do not fail the test; `settings` are those of
    `epe_jax.conformance.check`.
  """
  # Imported here, as every pytest session loads this plugin.
  from epe_jax import conformance

  def check(make, claim, *, allow=(), **settings):
    unknown = sorted(set(allow) - set(conformance.RULES))
    if unknown:
      raise ValueError(
        f'allow has {unknown}, which are no rules; give some of '
        f'{", ".join(conformance.RULES)}.'
      )
    report = conformance.check(make, claim, **settings)
    if any(finding.rule not in allow for finding in report.findings):
      pytest.fail(conformance.format_report(report), pytrace=False)
    return report

  return check
