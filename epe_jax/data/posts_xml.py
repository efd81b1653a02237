"""`Posts.xml` of a Stack Exchange site: `<posts>` with one `<row .../>` a post.

Every row holds a post in its attributes, and of 100 GB no more than some rows
are in memory at a time. Nothing but rows is accepted: a DOCTYPE, in which XML
can declare entities that grow without bound or are other files, is refused.
"""

from collections.abc import Iterator
import pathlib
from xml.parsers import expat

import tqdm

CURE = (
  'Expected the Posts.xml of a Stack Exchange site, unpacked from its archive '
  '(SITE.7z, or SITE-Posts.7z of the largest).'
)
"""Ends every message about a file that is not what it should be."""

_CHUNK = 1 << 18
# A row is parsed as a whole, and so held in memory.
_LARGEST = 1 << 26


def rows(path: pathlib.Path) -> Iterator[tuple[int, dict[str, str]]]:
  """The rows of a file as a stream, with a progress bar.

  Args:
    path: of the file, in any encoding that its first line declares.

  Yields:
    (number of the row, from 1; its attributes).

  Raises:
    FileNotFoundError, ValueError: the file is missing, truncated, not XML, has
      elements or text other than rows, a DOCTYPE, or a row that is too large.
  """
  if not path.is_file():
    raise FileNotFoundError(f'{path} is not a file. {CURE}')
  found, number = [], 0
  parser = _parser(found)
  # disable=None: no bar where stderr is not a terminal.
  with (
    open(path, 'rb') as file,
    tqdm.tqdm(
      total=path.stat().st_size,
      desc=f'reading {path.name}',
      unit='B',
      unit_scale=True,
      disable=None,
    ) as bar,
  ):
    more = True
    while more:
      chunk = file.read(_CHUNK)
      more = bool(chunk)
      try:
        parser.Parse(chunk, not more)
        if file.tell() - parser.CurrentByteIndex > _LARGEST:
          raise ValueError(f'over {_LARGEST} bytes without an end')
      except (expat.ExpatError, LookupError, ValueError) as error:
        row = number + len(found)
        raise ValueError(
          f'{path}, behind row {row}: {error}. The file is damaged, or not of '
          f'this form. {CURE}'
        ) from error
      for row in found:
        number += 1
        yield number, row
      found.clear()
      bar.update(len(chunk))


def _parser(found: list[dict[str, str]]) -> expat.XMLParserType:
  """A parser that appends rows to a list, and refuses what is none."""
  parser = expat.ParserCreate()
  parents = []

  def started(name, attributes):
    path = [*parents, name]
    if path == ['posts', 'row']:
      found.append(attributes)
    elif path != ['posts']:
      raise ValueError(f'an element {"/".join(path)}, not posts or posts/row')
    parents.append(name)

  def ended(name):
    del name
    parents.pop()

  def text(characters):
    if characters.strip():
      raise ValueError(f'text {characters[:40]!r} between the rows')

  def doctype(*args):
    del args
    # Entities can be declared nowhere else, be they bombs or other files.
    raise ValueError('a DOCTYPE, which no dump has')

  parser.StartElementHandler = started
  parser.EndElementHandler = ended
  parser.CharacterDataHandler = text
  parser.StartDoctypeDeclHandler = doctype
  return parser
