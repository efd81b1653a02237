"""The pytest fixture `check_privacy`, for any project.

def test_aggregation_is_private(check_privacy):
  check_privacy(make, Claim(1.0, 1.0, 10, ((20, 30), (30,))))
"""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def check_privacy() -> Callable[..., Any]:
  """Checks a mechanism, and fails the test with the report if it breaks a rule.

  Returns:
    `check_privacy(make, claim, allow=(), require=..., **settings)`, which returns
    the report. Findings of rules in `allow` do not fail the test; rules in `require`
    (or all, if 'all' is in it; `noise_scale` and `clipping` by default) fail it if
    they were not checked; `settings` are those of `epe_jax.conformance.check`.
  """
  # Imported here, as every pytest session loads this plugin.
  from epe_jax import conformance

  def check(
    make, claim, *, allow=(), require=conformance.ESSENTIAL, **settings
  ):
    require = [require] if isinstance(require, str) else require
    allow = [allow] if isinstance(allow, str) else allow
    conformance.check_required([*require, *allow], conformance.RULES)
    report = conformance.check(make, claim, **settings)
    text = conformance.format_report(report)
    found = {finding.rule for finding in report.findings}
    if 'all' not in allow and found - {*allow}:
      pytest.fail(text, pytrace=False)
    if missing := ', '.join(conformance.list_missing(report, require)):
      why = f'not checked, but required: {missing}'
      pytest.fail(f'{why}\n\n{text}', pytrace=False)
    return report

  return check
