"""The study of faults: what it calls lost is lost, and what is right is not."""

import pathlib

import pytest

from tests import file_formats


@pytest.fixture
def faults(load_benchmark):
  return load_benchmark('faults')


@pytest.fixture
def lenient(faults, monkeypatch):
  """A format with a digest of nothing: whatever is in the file is read."""
  written = file_formats.Format(
    lambda path: path.write_bytes(bytes(range(100))), pathlib.Path.read_bytes
  )
  monkeypatch.setitem(file_formats.FORMATS, 'lenient', written)
  return 'lenient'


def test_what_is_read_with_a_flipped_bit_is_lost_unless_there_is_no_digest(
  faults, lenient, monkeypatch
):
  trials = faults.flipped_bits.flip_bits(lenient, 5)
  assert {x.outcome for x in trials} == {faults.trials.LOST}
  form = file_formats.FORMATS[lenient]._replace(is_summed=False)
  monkeypatch.setitem(file_formats.FORMATS, lenient, form)
  trials = faults.flipped_bits.flip_bits(lenient, 5)
  assert {x.outcome for x in trials} == {faults.trials.UNKNOWN}


@pytest.mark.parametrize(
  ('message', 'outcome'),
  [('it is damaged', 'lost'), ('{} is damaged', 'refused')],
)
def test_an_error_helps_if_it_names_the_file(
  faults, lenient, monkeypatch, message, outcome
):
  def read(path):
    content = path.read_bytes()
    if content != bytes(range(100)):
      raise ValueError(message.format(path))
    return content

  form = file_formats.FORMATS[lenient]._replace(read=read)
  monkeypatch.setitem(file_formats.FORMATS, lenient, form)
  (trial,) = faults.flipped_bits.flip_bits(lenient, 1)
  assert trial.outcome == outcome


@pytest.mark.integration
def test_bad_input_is_refused_by_name_or_has_a_meaning(faults):
  for trials in (
    faults.bad_input.try_arguments(),
    faults.bad_input.try_config_checks('digits'),
  ):
    outcomes = {x.outcome for x in trials}
    assert faults.trials.REFUSED in outcomes
    assert outcomes <= {faults.trials.REFUSED, faults.trials.SAME}


def test_the_table_counts_every_trial(faults):
  rows = [
    faults.Trial('kill', 'run', '', outcome)
    for outcome in ('same', 'same', 'close', 'lost')
  ]
  (line,) = faults.tabulate(rows).to_numpy().tolist()
  assert line == ['kill', 'run', 4, 2, 1, 0, 0, 1]


@pytest.mark.parametrize(
  ('log', 'is_explained', 'reason'),
  [
    (
      'Traceback\nOSError\nerror: the disk is full\nwarning\n',
      True,
      'error: the',
    ),
    ('Traceback\nOSError: full\n', False, 'OSError'),
    ('killed\n', True, 'killed'),
  ],
)
def test_a_failure_is_explained_by_the_error_of_the_command(
  faults, log, is_explained, reason
):
  """Whatever threads of libraries print before and after it."""
  assert faults.trials.is_explained(log) == is_explained
  assert faults.trials.find_reason(log).startswith(reason)
