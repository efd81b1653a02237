"""The study of reliability: what is lost counts as lost, and what grows is told."""

import os
import subprocess
import sys

import pandas as pd
import psutil
import pytest


@pytest.fixture
def study(load_benchmark):
  return load_benchmark('reliability')


def test_the_table_counts_every_trial(study):
  outcomes = study._SAME, study._SAME, study._LOST
  trials = [study.Trial('kill', 'run', x, '') for x in outcomes]
  (line,) = study.tabulate(trials).to_numpy().tolist()
  assert line == ['kill', 'run', 3, 2, 0, 1]


@pytest.mark.parametrize(
  ('log', 'is_explained'),
  [
    ('Traceback\nOSError\nerror: the disk is full\nwarning\n', True),
    ('Traceback\nOSError: full\n', False),
    ('killed\n', True),
  ],
)
def test_a_failure_is_explained_by_the_error_of_the_command(
  study, log, is_explained
):
  """Whatever threads of libraries print before and after it."""
  assert study.is_explained(log) == is_explained


@pytest.mark.parametrize(
  ('leak', 'peak', 'grown'), [(0.0, 300.0, 0), (0.1, 0.0, 1), (0.01, 0.0, 0)]
)
def test_memory_that_grows_with_rounds_is_a_leak_and_a_peak_is_none(
  study, leak, peak, grown
):
  rounds = range(400)
  memory = [100 + leak * t + (peak if t % 10 == 9 else 0) for t in rounds]
  # The report of a run, behind its last round.
  sampled = {'finished': [*rounds, 399], 'memory, MB': [*memory, 900.0]}
  table = study.summarize({'400 rounds': pd.DataFrame(sampled)})
  assert table.grown.sum() == grown
  assert table.largest[0] == '900'


def test_what_ends_between_two_samples_is_summarized(study):
  sampled = pd.DataFrame({'finished': [0, 2], 'threads': [5, 5]})
  table = study.summarize({'2 points': sampled})
  assert [*table.iloc[0]] == ['2 points', 'threads', '5', '5', '5', False]


def test_a_process_that_has_ended_is_not_sampled(study, tmp_path):
  assert study.sample_process(os.getpid(), tmp_path)['memory, MB'] > 1
  with subprocess.Popen([sys.executable, '-c', '']) as process:
    # Ended, but not yet waited for.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(psutil.ZombieProcess):
      study.sample_process(process.pid, tmp_path)
