"""Whatever a file holds, it is read or refused with its name, and nothing else."""

import numpy as np
import pytest

from epe_jax.experiment import workdirs
from tests.file_formats import (
  FORMATS,
  describe,
  flip_bit,
  is_refused,
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
  assert refused[0], 'an empty file is not a file of any format'
  if is_summed:
    # A JSON file may end with or without a newline.
    assert all(refused[: -1 if name.endswith('.json') else None])


def test_a_config_without_fields_is_damaged(tmp_path):
  (tmp_path / 'config.json').write_text('[]')
  with pytest.raises(ValueError, match=r'config\.json is damaged: it has no f'):
    workdirs.reserve(tmp_path, load_config('digits'))
