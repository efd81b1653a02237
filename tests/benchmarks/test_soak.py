"""The soak: what grows from round to round is told from what comes and goes."""

import os
import subprocess
import sys

import psutil
import pytest


@pytest.fixture(name='soak')
def _soak(load_benchmark):
  return load_benchmark('soak')


@pytest.mark.parametrize(
  ('leak', 'peak', 'grown'), [(0.0, 300.0, 0), (0.1, 0.0, 1), (0.01, 0.0, 0)]
)
def test_memory_that_grows_with_rounds_is_a_leak_and_a_peak_is_none(
  soak, leak, peak, grown
):
  samples = [
    soak.Sample(
      t, t, 100 + leak * t + (peak if t % 10 == 9 else 0), 9, 5, 0.01 * t
    )
    for t in range(400)
  ]
  # The report of a run, behind its last round.
  samples.append(samples[-1]._replace(seconds=400, memory_mb=900.0))
  table, found = soak.summarize({'400 rounds': samples})
  assert len(found) == grown
  assert all('memory, MB of 400 rounds' in text for text in found)
  assert table.largest[0] == '900'


def test_what_ends_between_two_samples_is_summarized(soak):
  samples = [soak.Sample(1.0, n, 100.0, 9, 5, 1.0) for n in (0, 2)]
  table, found = soak.summarize({'2 points': samples})
  assert not found
  assert [*table.iloc[0][1:]] == ['memory, MB', '100', '100', '100']


def test_a_process_that_has_ended_is_not_sampled(soak, tmp_path):
  assert soak.sample_process(os.getpid(), tmp_path, 1.0).memory_mb > 1
  with subprocess.Popen([sys.executable, '-c', '']) as process:
    # Ended, but not yet waited for.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(psutil.ZombieProcess):
      soak.sample_process(process.pid, tmp_path, 2.0)
