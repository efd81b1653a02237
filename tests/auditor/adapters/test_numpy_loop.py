"""A plain loop in NumPy, audited: the example, whole."""

import pytest

from tests.auditor.adapters import laws


@pytest.mark.integration
def test_the_loop_is_audited(tmp_path):
  laws.assert_example_audits('numpy', tmp_path)
