"""Edges of running: each is one plain sentence with a cure."""

import json
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epe_jax import canaries, io
from epe_jax.experiment import audited_run, metrics, model_file, workdirs
from epe_jax.experiment.setup import build
from epe_jax.report import report
from tests.helpers import load_config
from tests.in_process import run_script


@pytest.mark.usefixtures('types_unchecked')
@pytest.mark.parametrize('family', canaries.FAMILIES)
def test_vectors_of_another_dimension_and_keys_that_are_none_are_refused(
  family,
):
  made = canaries.family(family)(jax.random.key(0), 3, 16)
  for shape in [(15,), (4, 8), (32,), ()]:
    with pytest.raises(ValueError, match=r'but canaries have dim=16; give one'):
      made.project(jnp.zeros(shape))
  with pytest.raises(ValueError, match=r'key=0 is not a key; give one of JAX'):
    canaries.family(family)(0, 3, 16)  # pyright: ignore[reportArgumentType]


def test_a_projection_outside_of_a_program_is_traced_once(monkeypatch):
  made = canaries.family('sphere')(jax.random.key(0), 3, 16)
  traced = []
  jax.monitoring.register_event_duration_secs_listener(
    lambda name, _, **__: traced.append(name)
  )
  try:
    first = made.project(jnp.ones(16))
    before = len(traced)
    assert before
    np.testing.assert_array_equal(made.project(jnp.ones(16)), first)
    assert len(traced) == before
  finally:
    jax.monitoring.clear_event_listeners()


@pytest.mark.integration
@pytest.mark.usefixtures('small_task', 'unestimated')
def test_what_a_killed_process_left_half_written_is_removed(tmp_path, capsys):
  config, files = load_config('digits'), workdirs.workdir_at(tmp_path)
  files.private.mkdir()
  drafts = [
    tmp_path / '.model.npz.0123abcd',
    files.private / '.scores.npz.ffff0000',
  ]
  for draft in drafts:
    draft.write_bytes(b'half')
    os.utime(draft, (0, 0))
  (tmp_path / '.gitignore').write_text('*')
  # Nothing but its config was written of the run that was here.
  io.write_json(files.config, load_config('digits', rounds=7).to_dict())
  audited_run.run(config, tmp_path)
  assert not any(draft.exists() for draft in drafts)
  assert (
    f'{tmp_path} had a run of another config without a saved round; this run '
    'replaces it.\n'
  ) in capsys.readouterr().err
  config.audit.claim = 3.0
  with pytest.raises(ValueError, match='claim was None and is 3') as error:
    audited_run.run(config, tmp_path)
  assert str(error.value).endswith(
    f'run epe-jax report {tmp_path} --claim=EPS.'
  )
  assert (tmp_path / '.gitignore').exists()


@pytest.mark.integration
@pytest.mark.usefixtures('small_task', 'unestimated')
def test_a_finished_run_leaves_its_model_alone_and_no_buffers(tmp_path):
  audited_run.run(load_config('digits'), tmp_path)
  files = workdirs.workdir_at(tmp_path)
  flat = model_file.load_params(tmp_path)
  assert {name: x.shape for name, x in flat.items()} == {
    'b': (10,),
    'w': (64, 10),
  }
  assert not files.checkpoints.exists()
  # 650 parameters of 4 bytes, 40 canaries in 6 rounds, and text.
  assert sum(x.stat().st_size for x in tmp_path.rglob('*')) < 100_000


@pytest.mark.integration
@pytest.mark.usefixtures('small_task')
def test_the_report_of_a_finished_run_is_not_drawn_again(tmp_path, monkeypatch):
  drawn = []

  def write_report(workdir):
    drawn.append(workdir)
    path = workdirs.workdir_at(workdir).report
    io.write_text(path, 'report')
    return path

  monkeypatch.setattr(report, 'write_report', write_report)
  arguments = ['--config=configs/digits.py:smoke', f'--workdir={tmp_path}']
  first = run_script('train', *arguments)
  again = run_script('train', *arguments)
  assert len(drawn) == 1
  assert first.stdout == again.stdout
  assert f'Report: {tmp_path / "report.html"}' in again.stdout


@pytest.mark.integration
@pytest.mark.usefixtures('small_task', 'unestimated')
def test_event_files_have_the_lines_of_the_log(tmp_path, monkeypatch):
  written = {}

  class SummaryWriter:
    def __init__(self, folder, purge_step):
      assert folder == str(tmp_path / 'private/tensorboard')
      assert purge_step == 1

    def add_scalar(self, name, value, step):
      written[name, step] = value

    def close(self):
      written['closed'] = True

  fake = type(sys)('tensorboardX')
  fake.SummaryWriter = SummaryWriter  # pyright: ignore[reportAttributeAccessIssue]
  monkeypatch.setitem(sys.modules, 'tensorboardX', fake)
  audited_run.run(load_config('digits', tensorboard=True), tmp_path)
  text = (tmp_path / 'private/metrics.jsonl').read_text()
  lines = [json.loads(line) for line in text.splitlines()]
  assert written.pop('closed')
  assert written == {
    (name, line['round']): value
    for line in lines[1:]
    for name, value in line.items()
    if name != 'round'
  }


def test_a_run_of_64_bits_is_refused_before_any_work(tmp_path):
  jax.config.update('jax_enable_x64', True)
  try:
    with pytest.raises(ValueError, match=r'jax_enable_x64=True.* Unset JAX_EN'):
      audited_run.run(load_config('digits'), tmp_path / 'run')
    with pytest.raises(ValueError, match='jax_enable_x64=True'):
      build.check(load_config('digits'))
  finally:
    jax.config.update('jax_enable_x64', False)
  assert not (tmp_path / 'run').exists()


def test_the_owner_alone_reads_event_files(tmp_path):
  pytest.importorskip('tensorboardX')
  events = metrics.open_event_files(tmp_path / 'events', start=0)
  with events as add_line:
    add_line({'round': 1, 'loss': 0.5})
    (path,) = (tmp_path / 'events').iterdir()
  assert path.stat().st_mode & 0o777 == 0o600
