"""How fast sentences are imported from a file of TFF's form, and in how much
memory.

  python benchmarks/import_speed.py --sentences=10000000

The file is made first, of random words, with the features, the lengths and the
sizes of users of the public one. Beside the import stand its floors: the time to
read the bytes of the file, and that of a bare cursor over its rows.
"""

import contextlib
import itertools
import os
import pathlib
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time

from absl import app, flags
import numpy as np
import record

from epe_jax.data import store

_SENTENCES = flags.DEFINE_integer(
  'sentences', 10_000_000, 'How many to import.'
)
_WORKERS = flags.DEFINE_integer('workers', 2, 'Processes that decode.')
_OUT = flags.DEFINE_string(
  'out',
  str(record.FOLDER / 'import_speed.json'),
  'File of the result.',
)
_FOLDER = flags.DEFINE_string('folder', None, 'Where to make the file.')
_OTHER_WORK = flags.DEFINE_boolean(
  'other_work', False, 'Say in the result that the machine did other work.'
)

_SCRIPT = pathlib.Path(__file__).parents[1] / 'scripts' / 'prepare_data.py'
_WORDS = 100_000
_PER_USER = 396  # As in the public file: 135,818,730 of 342,477 users.


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  with tempfile.TemporaryDirectory(dir=_FOLDER.value) as folder:
    path = pathlib.Path(folder, 'stackoverflow.sqlite')
    words = path.with_suffix('.word_count')
    make(path, words, _SENTENCES.value)
    load = os.getloadavg()[0]
    floors = {'read': _read_seconds(path), 'select': _select_seconds(path)}
    out = pathlib.Path(folder, 'out')
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds, memory = _imported(path, words, out)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    header = store.read_header(out / 'train.arrow')
    assert header.num_examples == _SENTENCES.value
    result = {
      'sentences': header.num_examples,
      'clients': header.num_clients,
      'workers': _WORKERS.value,
      'sqlite': sqlite3.sqlite_version,
      'seconds': round(seconds, 2),
      'cpu_seconds': round(busy, 2),
      'sentences_per_second': round(_SENTENCES.value / seconds),
      'peak_rss_bytes_all_processes': memory,
      'bytes_in': path.stat().st_size,
      'bytes_out': (out / 'train.arrow').stat().st_size,
      'floor_seconds': {name: round(s, 2) for name, s in floors.items()},
      'load_before': round(load, 2),
      'other_work_on_the_machine': _OTHER_WORK.value,
    }
  record.write(_OUT.value, result, 'numpy')


def make(path: pathlib.Path, word_count: pathlib.Path, sentences: int) -> None:
  """Writes an SQLite file with one split, and the counts of its words."""
  rng = np.random.default_rng(0)
  users = max(1, sentences // _PER_USER)
  sizes = rng.lognormal(0, 1.3, users)
  sizes = 1 + rng.multinomial(sentences - users, sizes / sizes.sum())
  vocabulary = [_word(i) for i in range(_WORDS)]
  share = 1 / (np.arange(_WORDS) + 2.7)
  lines = [f'{w} {int(1e9 * s)}\n' for w, s in zip(vocabulary, share)]
  word_count.write_text(''.join(lines), encoding='utf-8')
  bounds = np.cumsum(share / share.sum())

  def rows():
    for user, size in enumerate(sizes.tolist()):
      client_id = f'{user:08}'
      lengths = 1 + rng.poisson(rng.gamma(3, 5, size))
      ids = np.searchsorted(bounds, rng.random(lengths.sum())).clip(
        0, _WORDS - 1
      )
      chosen = map(vocabulary.__getitem__, ids.tolist())
      for row, length in enumerate(lengths.tolist()):
        tokens = ' '.join(itertools.islice(chosen, length))
        yield 'train', client_id, _example(tokens.encode(), row)

  with contextlib.closing(sqlite3.connect(path)) as db:
    db.executescript("""PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;
      CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL,
        serialized_example_proto BLOB NOT NULL);
      CREATE TABLE client_metadata (client_id TEXT NOT NULL,
        split_name TEXT NOT NULL, num_examples INTEGER NOT NULL);""")
    db.executemany('INSERT INTO examples VALUES (?, ?, ?)', rows())
    db.executemany(
      "INSERT INTO client_metadata VALUES (?, 'train', ?)",
      ((f'{user:08}', size) for user, size in enumerate(sizes.tolist())),
    )
    db.executescript("""CREATE INDEX idx_examples_client_id_split
      ON examples (split_name, client_id);""")
    db.commit()


def _word(rank: int) -> str:
  """Frequent words are short."""
  letters = 'etaoinshrdlucmfwypvbgkjqxz'
  word = ''
  rank += 1
  while rank:
    rank, letter = divmod(rank - 1, 26)
    word += letters[letter]
  return word * 2 if len(word) == 3 else word


def _example(tokens: bytes, row: int) -> bytes:
  return _field(
    1,
    b''.join(
      (
        _text(b'creation_date', b'2009-03-%02d 17:%02d:%02d.437 UTC'
              % (row % 28 + 1, row % 60, row % 59)),
        _field(1, _field(1, b'score') + _field(2, _field(3, b'\n\1%c' % (row % 100)))),
        _text(b'tags', b'python|arrays|numpy-ndarray'),
        _text(b'title', b'how do i sort the rows of an array by its last column ?'),
        _text(b'tokens', tokens),
        _text(b'type', b'answer' if row % 2 else b'question'),
      )
    ),
  )  # fmt: skip


def _text(key: bytes, value: bytes) -> bytes:
  return _field(1, _field(1, key) + _field(2, _field(1, _field(1, value))))


def _field(number: int, payload: bytes) -> bytes:
  size = len(payload)
  if size < 128:
    return b'%c%c%b' % (8 * number + 2, size, payload)
  return b'%c%c%c%b' % (8 * number + 2, size & 127 | 128, size >> 7, payload)


def _read_seconds(path: pathlib.Path) -> float:
  start = time.monotonic()
  with open(path, 'rb', buffering=0) as file:
    while file.read(1 << 20):
      pass
  return time.monotonic() - start


def _select_seconds(path: pathlib.Path) -> float:
  start = time.monotonic()
  with contextlib.closing(sqlite3.connect(path)) as db:
    for _ in db.execute(
      'SELECT client_id, serialized_example_proto FROM examples '
      "WHERE split_name = 'train' ORDER BY client_id, rowid"
    ):
      pass
  return time.monotonic() - start


def _imported(
  path: pathlib.Path, words: pathlib.Path, out: pathlib.Path
) -> tuple[float, int]:
  """(seconds, bytes of memory at most) of the script in a process of its own."""
  command = [sys.executable, str(_SCRIPT), str(path), f'--out={out}']
  command += [f'--word_count={words}', f'--workers={_WORKERS.value}']
  start, most = time.monotonic(), 0
  with subprocess.Popen(command) as process:
    while process.poll() is None:
      most = max(most, _memory(process.pid))
      time.sleep(0.05)
  if process.returncode:
    raise RuntimeError(f'{command} ended with {process.returncode}')
  return time.monotonic() - start, most


def _memory(pid: int) -> int:
  """Resident bytes of a process and all it started; shared ones count twice."""
  try:
    tasks = pathlib.Path(f'/proc/{pid}/task').glob('*/children')
    children = ' '.join(task.read_text() for task in tasks)
    pages = pathlib.Path(f'/proc/{pid}/statm').read_text().split()[1]
  except OSError:
    return 0  # It just ended.
  return int(pages) * os.sysconf('SC_PAGE_SIZE') + sum(
    map(_memory, map(int, children.split()))
  )


if __name__ == '__main__':
  app.run(main)
