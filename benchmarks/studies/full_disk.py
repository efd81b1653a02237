"""A command on a disk that fills up, and repeated when there is room."""

import pathlib
import shutil
import subprocess
import tempfile

from studies import trials
from studies.trials import Trial

# The disk is of this process alone, and gone with it.
_SCRIPT = """
mount -t tmpfs -o size=$SIZE none "$DISK" || exit 77
"$@" > "$LOG" 2>&1
echo $? > "$LOG.status"
cp "$LOG" "$LOG.first"
mount -o remount,size=1g "$DISK" && "$@" > "$LOG" 2>&1
echo $? > "$LOG.status.again"
cp -r "$DISK/work" "$OUT/work"
"""


def can_mount() -> bool:
  """Whether a small disk can be made here."""
  if shutil.which('unshare') is None:
    return False
  command = 'mount -t tmpfs -o size=4k none /tmp'
  done = subprocess.run(['unshare', '-rm', 'sh', '-c', command], check=False)
  return done.returncode == 0


def fill_disk(subject: str, kilobytes: int) -> list[Trial]:
  """Runs a command on a small disk, and again on the same when it is large.

  Args:
    subject: a key of `trials.SUBJECTS`.
    kilobytes: size of the disk.
  """
  trials.make_undisturbed(subject)
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    disk, log = folder / 'disk', folder / 'log'
    disk.mkdir()
    command = trials.SUBJECTS[subject].arguments(disk / 'work')
    subprocess.run(
      [
        *('unshare', '-rm', 'sh', '-c', _SCRIPT, 'sh'),
        *(*trials.PROGRAM, *command),
      ],
      env=trials.make_environment(
        disk,
        SIZE=f'{kilobytes}k',
        DISK=str(disk),
        LOG=str(log),
        OUT=str(folder),
      ),
      timeout=2 * trials.MAX_SECONDS,
      check=True,
    )
    first = (folder / 'log.first').read_text()
    code, again = (
      int((folder / f'log.status{x}').read_text()) for x in ('', '.again')
    )
    outcome = trials.judge(subject, folder, again, log.read_text())
    reason = trials.find_reason(first) if code else 'it had room'
    if code and not trials.is_explained(first):
      outcome = trials.LOST
    return [Trial('full disk', subject, f'{kilobytes:,} kB', outcome, reason)]
