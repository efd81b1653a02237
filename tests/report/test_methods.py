"""Names of estimators stand on their own, in files and outside of their table."""

from epe_jax.epsilon import registry

LABELS = [x for entry in registry.ENTRIES for x in entry.labels.values()]


def test_no_two_methods_have_one_name_and_none_needs_the_line_above():
  assert len(set(LABELS)) == len(LABELS)
  for name in LABELS:
    assert not name.startswith('the same')
    assert ' them' not in name
