"""What a report belongs to, by digests."""

import hashlib

import numpy as np
import pytest

from epe_jax.audit import evaluation, release
from epe_jax.report import provenance
from tests import recorded_runs


@pytest.fixture(scope='module')
def record():
  return recorded_runs.by_law()


def test_a_report_belongs_to_a_run_a_model_a_record_and_a_day(record, tmp_path):
  audit = evaluation.evaluate(record, floors=False)
  model = tmp_path / 'model.npz'
  found = []
  for content in (b'one', b'one', b'other'):
    model.write_bytes(content)
    result = recorded_runs.result(
      audit=audit,
      date='2026-11-24',
      model_sha256=hashlib.sha256(content).hexdigest(),
      record_sha256=release.hash_record(record),
    )
    belongs_to = provenance.identify_run(result, model=model)
    assert f'2026-11-24, run {belongs_to.run}, model ' in str(belongs_to)
    found.append(belongs_to)
  first, same, other = found
  assert first.date == '2026-11-24'
  assert first.model == hashlib.sha256(b'one').hexdigest()
  assert first.record == release.hash_record(record)
  # A run that is repeated bit for bit is the same run.
  assert first.run == same.run != other.run
  model.write_bytes(b'one')
  with pytest.raises(ValueError, match=r'model\.npz'):
    provenance.identify_run(result, model=model)


def test_the_hash_is_of_what_may_be_published(record):
  digest = release.hash_record(record)
  trace = record.trace.copy()
  trace[0, 0] = np.nextafter(trace[0, 0], np.float32(1))
  name = record.view
  changed = recorded_runs.replace_cosines(record, **{name: trace})
  assert release.hash_record(changed) != digest
  # What noise does not hide is not part of it, and cannot be guessed from it.
  secret = recorded_runs.replace_cosines(record, residual=None)
  assert release.hash_record(secret) == digest
