"""Speed and memory of importing sentences from a file in TFF's format.

  python benchmarks/import_speed.py --sentences=10000000

The file is made first, of random words, with the features, the lengths and the sizes of
users of the public one. The floors of the import are reading the bytes of the file, and
a bare cursor over its rows.
"""

import contextlib
import itertools
import os
import pathlib
import sqlite3
import sys
import tempfile
import time

from absl import flags
import harness
import numpy as np

from epe_jax.data import store

_SENTENCES = flags.DEFINE_integer(
  'sentences', 10_000_000, 'Sentences to import.'
)
_WORKERS = flags.DEFINE_integer('workers', 2, 'Processes that decode.')
_FOLDER = flags.DEFINE_string(
  'folder', None, 'Folder in which to make the file.'
)
_OTHER_WORK = flags.DEFINE_boolean(
  'other_work', False, 'Record that the machine did other work.'
)
_SCRIPT = harness.HERE.parent / 'scripts' / 'prepare_data.py'
_WORDS = 100_000
_PER_USER = 396  # As in the public file: 135,818,730 of 342,477 users.


def measure(quick: bool) -> dict:
  sentences = 1000 if quick else _SENTENCES.value
  with tempfile.TemporaryDirectory(dir=_FOLDER.value) as folder:
    path = pathlib.Path(folder, 'stackoverflow.sqlite')
    words = path.with_suffix('.word_count')
    make(path, words, sentences)
    floors = {
      'read': harness.time_call(lambda: _read(path), 1),
      'select': harness.time_call(lambda: _select(path), 1),
    }
    out = pathlib.Path(folder, 'out')
    command = [sys.executable, str(_SCRIPT), str(path), f'--out={out}']
    command += [f'--word_count={words}', f'--workers={_WORKERS.value}']
    memory = 0
    with harness.time_program(command) as (process, times):
      while process.poll() is None:
        memory = max(memory, _count_memory(process.pid))
        time.sleep(0.05)
    header = store.read_header(out / 'train.arrow')
    assert header.num_examples == sentences
    return {
      'sentences': header.num_examples,
      'clients': header.num_clients,
      'workers': _WORKERS.value,
      'sqlite': sqlite3.sqlite_version,
      'seconds': round(times['seconds'], 2),
      'cpu_seconds': round(times['cpu_seconds'], 2),
      'sentences_per_second': round(sentences / times['seconds']),
      'peak_rss_bytes_all_processes': memory,
      'bytes_in': path.stat().st_size,
      'bytes_out': (out / 'train.arrow').stat().st_size,
      'floor_seconds': {
        name: round(timing.best, 2) for name, timing in floors.items()
      },
      'other_work_on_the_machine': _OTHER_WORK.value,
    }


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
  """The word of a rank; frequent words are short."""
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


def _read(path: pathlib.Path) -> None:
  with open(path, 'rb', buffering=0) as file:
    while file.read(1 << 20):
      pass


def _select(path: pathlib.Path) -> None:
  with contextlib.closing(sqlite3.connect(path)) as db:
    for _ in db.execute(
      'SELECT client_id, serialized_example_proto FROM examples '
      "WHERE split_name = 'train' ORDER BY client_id, rowid"
    ):
      pass


def _count_memory(pid: int) -> int:
  """Resident bytes of a process and its descendants; shared ones count twice."""
  try:
    tasks = pathlib.Path(f'/proc/{pid}/task').glob('*/children')
    children = ' '.join(task.read_text() for task in tasks)
    pages = pathlib.Path(f'/proc/{pid}/statm').read_text().split()[1]
  except OSError:
    return 0  # It has just ended.
  return int(pages) * os.sysconf('SC_PAGE_SIZE') + sum(
    map(_count_memory, map(int, children.split()))
  )


if __name__ == '__main__':
  harness.run(measure, 'numpy')
