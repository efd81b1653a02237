"""The coverage study: it knows a bound from a number that is none."""

from epe_jax import coverage


def test_no_bound_breaks_its_word_and_the_papers_would():
  rows = coverage.study(
    1, epsilons=[0.0, 2.0], deltas=[1e-5], nums=[60], audits=60
  )
  assert len(rows) == 2 * (2 * len(coverage.FIXED) + len(coverage.COINS))
  assert not any(coverage.broken(row) for row in rows)
  paper = next(
    r for r in rows if (r.method, r.null, r.epsilon) == ('eps_lo', 'exact', 0)
  )
  assert paper.stated is None
  # Held to the 5 % that the paper states, it would be found out.
  assert coverage.broken(paper._replace(stated=0.05))


def test_the_table_has_a_column_for_each_truth():
  rows = coverage.study(
    0, epsilons=[0.0, 1.0], deltas=[1e-5], nums=[8], audits=3
  )
  text = coverage.markdown(rows)
  assert '| bound | null | may exceed | ε = 0 | ε = 1 |' in text
  assert '8 + 8 canaries' in text
  lines = [line for line in text.splitlines() if line.startswith('| ')]
  assert len(lines) == 2 + 2 * len(coverage.FIXED) + len(coverage.COINS)
  broken = rows[0]._replace(stated=0.05, exceeded=1.0, audits=500)
  assert '**broken**' in coverage.markdown([broken])
