"""Names of estimators stand on their own, in files and outside of their table."""

from epe_jax.text.methods import METHODS


def test_no_two_methods_have_one_name_and_none_needs_the_line_above():
  names = list(METHODS.values())
  assert len(set(names)) == len(names)
  for name in names:
    assert not name.startswith('the same')
    assert ' them' not in name


def test_names_fit_the_columns_of_a_report():
  assert max(map(len, METHODS.values())) <= 32
