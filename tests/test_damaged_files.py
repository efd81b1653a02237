"""Whatever a file holds, it is read or refused with its name, and nothing else."""

import json
import zipfile

import numpy as np
import pytest

import epe_jax
from epe_jax import io
from epe_jax.audit.record import load_record, write_record
from epe_jax.experiment import metrics, run_result, workdirs
from epe_jax.scores import score_files, score_tables
from epe_jax.scores.formats import privacy_estimates
from tests import recorded_runs
from tests.file_formats import (
  FORMATS,
  describe,
  flip_bit,
  is_refused,
  make_auditor,
)
from tests.helpers import load_config

pytestmark = pytest.mark.usefixtures('types_unchecked')


@pytest.mark.integration
@pytest.mark.parametrize('name', FORMATS)
def test_a_flipped_bit_ends_in_what_was_written_or_in_an_error_with_the_file(
  tmp_path, name
):
  write, read, is_summed = FORMATS[name]
  path = tmp_path / name
  write(path)
  expected, rng = describe(read(path)), np.random.default_rng(0)
  good, refused = path.read_bytes(), 0
  for _ in range(400):
    path.write_bytes(flip_bit(good, rng))
    if is_refused(read, path):
      refused += 1
    else:
      assert not is_summed or describe(read(path)) == expected
  assert refused


@pytest.mark.parametrize('name', FORMATS)
def test_a_file_that_is_cut_short_is_refused_or_read(tmp_path, name):
  write, read, is_summed = FORMATS[name]
  path = tmp_path / name
  write(path)
  good = path.read_bytes()
  refused = []
  for length in np.linspace(0, len(good) - 1, 40).astype(int):
    path.write_bytes(good[:length])
    refused.append(is_refused(read, path))
  assert refused[0], 'an empty file is no file of any format'
  if is_summed:
    # A JSON file may end with or without a newline.
    assert all(refused[: -1 if name.endswith('.json') else None])


def make_header(shape, dtype='<f8'):
  text = repr({'descr': dtype, 'fortran_order': False, 'shape': shape}) + '\n'
  size = len(text).to_bytes(2, 'little')
  return np.lib.format.magic(1, 0) + size + text.encode()


@pytest.mark.parametrize(
  'header',
  [
    make_header((2**37,)),
    make_header((-2, -4)),
    make_header((2**60,), '<U0'),
    make_header((8,), '|O'),
    make_header((8,), '<f9'),
    make_header('many'),
  ],
)
def test_an_array_is_as_large_as_it_announces(tmp_path, header):
  path = tmp_path / 'a.npy'
  path.write_bytes(header + bytes(64))
  with pytest.raises(ValueError, match=r'a\.npy is not a readable \.npy file'):
    score_tables.read_column(path)
  path = tmp_path / 'a.npz'
  with zipfile.ZipFile(path, 'w') as archive:
    archive.writestr('observed.npy', header + bytes(64))
  with pytest.raises(ValueError, match=r'a\.npz is not a readable \.npz file'):
    score_files.load(path)


def test_members_of_other_kinds_are_refused(tmp_path):
  path = tmp_path / 'a.npz'
  with zipfile.ZipFile(path, 'w', zipfile.ZIP_LZMA) as archive:
    archive.writestr('x.npy', make_header((8,)) + bytes(64))
  with pytest.raises(ValueError, match='compressed as by no NumPy'):
    io.read_arrays(path)
  with zipfile.ZipFile(path, 'w') as archive:
    archive.writestr('x.txt', 'no array')
  with pytest.raises(ValueError, match=r'a\.npz is not a readable'):
    io.read_arrays(path)


@pytest.mark.parametrize(
  'text',
  [
    '[' * 200 + ']' * 200,
    '[' * 100_000,
    '{"a": ' * 100_000,
    '{"a": NaN}',
    '{"a": -Infinity}',
    '{"a": 1e999}',
    '{"a": 1' + '0' * 5000 + '}',
    '{"a": 1' + '0' * 400 + '}',
    '"\\ud800',
  ],
  ids=range(9),
)
def test_json_that_no_program_here_writes_is_refused(tmp_path, text):
  path = tmp_path / 'result.json'
  path.write_text(text)
  for read in (
    io.read_json,
    run_result.load_result,
    privacy_estimates.read_counts,
  ):
    with pytest.raises(ValueError, match=r'result\.json is not JSON'):
      read(path)
  (tmp_path / 'metrics.jsonl').write_text(f'{{"round": 1}}\n{text}\n')
  assert metrics.read_lines(tmp_path / 'metrics.jsonl') == [{'round': 1}]


def test_a_config_without_fields_is_damaged(tmp_path):
  (tmp_path / 'config.json').write_text('[]')
  with pytest.raises(ValueError, match=r'config\.json is damaged: it has no f'):
    workdirs.claim(tmp_path, load_config('digits'))


def test_a_folder_that_no_checkpoint_can_name_is_refused(tmp_path):
  with pytest.raises(ValueError, match='is no UTF-8'):
    workdirs.claim(tmp_path / 'caf\udce9', load_config('digits'))
  assert not [*tmp_path.iterdir()]


def test_a_device_is_no_json():
  with pytest.raises(ValueError, match='it is not a file'):
    io.read_json('/dev/zero')


def replace_arrays(path, **arrays):
  io.write_arrays(path, io.read_arrays(path) | arrays)


@pytest.mark.parametrize(
  ('name', 'value', 'said'),
  [
    ('key', np.zeros(2), r'key is float64\[2\]'),
    ('key', np.zeros(3, np.uint32), r'key is uint32\[3\]'),
    ('assigned', np.zeros((3, 7), bool), r'assigned is bool\[3, 7\]'),
    ('planned', np.ones((3, 8), bool), 'planned has canaries in rounds'),
    ('included', np.ones((3, 8), bool), 'included has canaries in rounds'),
    ('included', np.ones((3, 8)), 'included is float64'),
    ('cosines_aggregate', np.full((3, 8), 2.0), 'are no cosines'),
    ('cosines_aggregate', np.full((3, 8), np.inf), 'not finite'),
    ('cosines_aggregate', np.full((3, 8), np.nan), 'not finite'),
    ('cosines_aggregate', np.zeros(8), r'has shape \(8,\)'),
    ('cosines_aggregate', np.array('x'), 'has shape'),
    ('cosines_final', np.full((3, 8), 'x'), 'has shape'),
    ('cosines_final', np.full(8, 'x'), 'has no numbers'),
    ('rounds_noise_std', np.full(3, -1.0), 'has numbers < 0'),
    ('rounds_noise_std', np.full(3, np.inf), 'not finite'),
    ('rounds_clip_norm', np.ones(2), 'has shape'),
    ('config', np.array('[]'), 'a mapping'),
    ('config', np.array('{"dim": 2}'), 'missing'),
    ('config', np.array('[' * 9999), 'nested'),
    ('schema', np.zeros(3), 'dimensional'),
  ],
)
def test_an_auditor_that_nothing_wrote_is_refused(tmp_path, name, value, said):
  path = tmp_path / 'auditor.npz'
  make_auditor().save(path)
  replace_arrays(path, **{name: value})
  with pytest.raises(ValueError, match=rf'auditor\.npz is no file.*{said}'):
    epe_jax.Auditor.load(path)


def test_settings_of_an_auditor_are_checked_when_it_is_read(tmp_path):
  path = tmp_path / 'auditor.npz'
  make_auditor().save(path)
  config = json.loads(str(io.read_arrays(path)['config']))
  for field, value in (
    ('noise_multiplier', 1e-320),
    ('delta', 2.0),
    ('family', []),
    ('rounds', '3'),
    ('dim', None),
    ('clip_norm', 'x'),
  ):
    changed = json.dumps(config | {field: value})
    replace_arrays(path, config=np.array(changed))
    with pytest.raises(ValueError, match=r'auditor\.npz is no file of an audi'):
      epe_jax.Auditor.load(path)


def test_a_record_that_nothing_wrote_is_refused(tmp_path):
  path = tmp_path / 'scores.npz'
  for name, value in (
    ('cosines_final', np.full(120, 1e30)),
    ('noise_multiplier', np.float64(1e-320)),
    ('included', np.ones(3, bool)),
    ('dim', np.array('x')),
    ('delta', np.ones(3)),
    ('rounds_canary_norm', np.full(20, -1.0)),
  ):
    write_record(path, recorded_runs.by_law())
    replace_arrays(path, **{name: value})
    with pytest.raises(ValueError, match=r'scores\.npz is damaged'):
      load_record(path)
