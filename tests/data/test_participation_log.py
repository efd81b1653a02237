"""Logs of real systems are replayed."""

import pathlib
import re

import numpy as np
import pandas
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


ENTRIES = [
  {'server_round': t, 'cid': client, 'phase': phase}
  for t, clients in ((1, 'ac'), (2, 'bc'), (3, ''), (4, 'a'))
  for client in clients or ['']
  for phase in ('train', 'evaluate')
]
FORM = participation_log.LogForm('server_round', 'cid', 'phase=train')


def write_log(path, entries):
  frame = pandas.DataFrame(entries)
  match path.suffix:
    case '.csv':
      # As Excel writes it.
      frame.to_csv(path, index=False, encoding='utf-8-sig')
    case '.tsv':
      frame.to_csv(path, index=False, sep='\t')
    case '.json':
      frame.to_json(path, orient='records')
    case '.jsonl':
      frame.to_json(path, orient='records', lines=True)
    case '.parquet':
      frame.to_parquet(path)


@pytest.mark.parametrize('kind', ['csv', 'tsv', 'json', 'jsonl', 'parquet'])
def test_a_log_of_any_form_is_the_same(tmp_path, kind):
  path = tmp_path / f'log.{kind}'
  write_log(path, ENTRIES)
  schedule, rounds = participation_log.replay_log(path, ['a', 'b', 'c'], FORM)
  assert [sorted(schedule(t).tolist()) for t in range(rounds)] == [
    [0, 2],
    [1, 2],
    [],
    [0],
  ]
  for form, message in (
    (FORM._replace(only=None), 'round 1 twice.* participation.log_only'),
    (
      FORM._replace(only='phase=fit'),
      r"no entry with .*\['evaluate', 'train'\]",
    ),
    (FORM._replace(only='split=x'), "not 'split'. Set participation.log_only"),
    (
      FORM._replace(client='client'),
      "not 'client'. Set participation.log_client",
    ),
    (FORM._replace(round='round'), "not 'round'. Set participation.log_round"),
  ):
    with pytest.raises(ValueError, match=message):
      participation_log.replay_log(path, ['a', 'b', 'c'], form)


@pytest.mark.parametrize('kind', ['csv', 'parquet'])
def test_numbers_of_clients_may_be_those_of_pandas_with_gaps(tmp_path, kind):
  path = tmp_path / f'log.{kind}'
  write_log(path, {'round': [0, 1, 2], 'client_id': [7, None, 9]})
  schedule, rounds = participation_log.replay_log(path, ['7', '9'])
  assert [schedule(t).tolist() for t in range(rounds)] == [[0], [], [1]]


def test_nobody_came_back_from_a_round_that_is_left_out_if_that_is_stated(
  tmp_path,
):
  path = tmp_path / 'log.csv'
  write_log(path, [row for row in ENTRIES if row['cid']])
  with pytest.raises(ValueError, match=r'round 3, .*log_empty_rounds=True'):
    participation_log.replay_log(path, ['a', 'b', 'c'], FORM)
  schedule, rounds = participation_log.replay_log(
    path, ['a', 'b', 'c'], FORM._replace(has_empty_rounds=True)
  )
  assert rounds == 4
  assert schedule(2).size == 0
  assert np.issubdtype(schedule(2).dtype, np.integer)
  path.write_text('round,client_id\n1,a\n99999999,a\n')
  with pytest.raises(ValueError, match='has a round 99,999,999'):
    participation_log.replay_log(path, ['a'])


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('round,user\n0,a\n', "not 'client_id'. Set participation.log_client"),
    ('round,client_id\nzero,a\n', "line 2: round='zero'"),
    ('round,client_id\n0,a\n0,d\n', "line 3: client_id='d' is not in"),
    ('round,client_id\n0,a\n0,a\n', "line 3: client_id='a' is in round 0"),
    ('round,client_id\n0,a\n2,a\n', 'no client in round 1'),
    ('round,client_id\n7,a\n', 'no round 0 or 1'),
    ('round,client_id\n', 'no round 0 or 1'),
    ('round,client_id\n0,a\n0.5,b\n', "line 3: round='0.5' is not the number"),
    ('round,client_id\n0,a\n1\n', 'line 3 has 1 fields'),
  ],
)
def test_a_wrong_log_is_refused_with_its_entry(tmp_path, text, message):
  path = tmp_path / 'log.csv'
  path.write_text(text)
  with pytest.raises(ValueError, match=message):
    participation_log.replay_log(path, ['a', 'b', 'c'])
  with pytest.raises(FileNotFoundError, match=r'none\.csv'):
    participation_log.replay_log(tmp_path / 'none.csv', ['a'])


def test_the_command_of_the_page_names_the_columns_of_a_log(tmp_path):
  page = pathlib.Path(__file__).parents[2] / 'docs/planning.md'
  given = dict(
    re.findall(r'--config\.participation\.log_(\w+)=([\w=]+)', page.read_text())
  )
  form = participation_log.LogForm(
    given['round'], given['client'], given['only'], has_empty_rounds=True
  )
  assert form == FORM._replace(has_empty_rounds=True)
  write_log(tmp_path / 'fl.jsonl', ENTRIES)
  _, rounds = participation_log.replay_log(tmp_path / 'fl.jsonl', 'abc', form)
  assert rounds == 4
