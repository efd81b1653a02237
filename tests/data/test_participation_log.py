"""Logs of real systems are replayed."""

import numpy as np
import pytest

from epe_jax.data import participation_log

LOG = 'round,client_id\n2,b\n1,a\n1,c\n2,c\n3,a\n'


def test_a_log_is_replayed(tmp_path):
  path = tmp_path / 'log.csv'
  path.write_text(LOG)
  schedule, rounds = participation_log.replay_log(path, ['a', 'b', 'c'])
  assert [sorted(schedule(t).tolist()) for t in range(rounds)] == [
    [0, 2],
    [1, 2],
    [0],
  ]


def test_a_log_in_parquet_is_the_same(tmp_path):
  pyarrow = pytest.importorskip('pyarrow', reason='reads Parquet')
  from pyarrow import parquet

  rows = [line.split(',') for line in LOG.splitlines()[1:]]
  table = pyarrow.table(
    {'round': [int(t) for t, _ in rows], 'client_id': [c for _, c in rows]}
  )
  parquet.write_table(table, tmp_path / 'log.parquet')
  (tmp_path / 'log.csv').write_text(LOG)
  a, b = (
    participation_log.replay_log(tmp_path / f'log.{kind}', ['a', 'b', 'c'])
    for kind in ('csv', 'parquet')
  )
  assert a[1] == b[1]
  for t in range(a[1]):
    np.testing.assert_array_equal(a[0](t), b[0](t))


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('round,user\n0,a\n', r"\['client_id'\]"),
    ('round,client_id\nzero,a\n', "entry 1: round='zero'"),
    ('round,client_id\n0,a\n0,d\n', "entry 2: client_id='d' is not in"),
    ('round,client_id\n0,a\n0,a\n', "entry 2: client_id='a' is in round 0"),
    ('round,client_id\n0,a\n2,a\n', 'no client in round 1'),
    ('round,client_id\n7,a\n', 'no round 0 or 1'),
    ('round,client_id\n', 'no round 0 or 1'),
  ],
)
def test_a_wrong_log_is_refused_with_its_entry(tmp_path, text, message):
  path = tmp_path / 'log.csv'
  path.write_text(text)
  with pytest.raises(ValueError, match=message):
    participation_log.replay_log(path, ['a', 'b', 'c'])
  with pytest.raises(FileNotFoundError, match=r'none\.csv'):
    participation_log.replay_log(tmp_path / 'none.csv', ['a'])
