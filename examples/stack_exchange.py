"""A data source of your own: sentences of a Stack Exchange site, by user.

  POSTS=Posts.xml epe-jax data \\
    examples.stack_exchange:read_splits --out=data/site

A source is any function that returns split -> stream of (client id, name ->
rows). Clients may come in any order and in any number of pieces, as posts do.
Of text, the column `tokens` holds sentences: words separated by spaces.
"""

from collections.abc import Iterator
import hashlib
import html
import os
import re
from xml.etree import ElementTree

_EDGE = re.compile(
  r'<pre\b[^<>]*>.*?(?:</pre\s*>|\Z)'
  r'|</?(?:p|br|hr|[uod]l|li|d[dt]|h[1-6]|div|blockquote|t[rdh])\b[^<>]*>',
  re.DOTALL | re.IGNORECASE,
)
_TAG = re.compile(r'</?[a-z!][^<>]*>', re.IGNORECASE)
_LINK = re.compile(r'\b(?:https?://|www\.)\S*[^\s.,;:!?\'")\]}>]')
_END = re.compile(r'(?<=[.!?…])\s+')
_TOKEN = re.compile(r"<URL>|\w+(?:'\w+)*|[^\w\s]")


def read_splits() -> dict[str, Iterator[tuple[str, dict[str, list[str]]]]]:
  """Reads the posts of the file that POSTS names, by split."""
  path = os.environ['POSTS']
  return {
    'train': (post for post in read_posts(path) if not is_heldout(post[0])),
    'heldout': (post for post in read_posts(path) if is_heldout(post[0])),
  }


def read_posts(path: str) -> Iterator[tuple[str, dict[str, list[str]]]]:
  """Yields (user, sentences) of each question and answer, with one in memory."""
  events = ElementTree.iterparse(path, events=('start', 'end'))
  _, root = next(events)
  for event, row in events:
    if event == 'end' and row.tag == 'row':
      # The user -1 is the site itself, and no user is one who has left.
      user = int(row.get('OwnerUserId', -1))
      sentences = split_sentences(row.get('Body', ''))
      if user > 0 and row.get('PostTypeId') in ('1', '2') and sentences:
        yield f'{user:08d}', {'tokens': sentences}
      root.clear()


def is_heldout(user: str) -> bool:
  """Whether a user is of the tenth whose sentences are for the test."""
  return hashlib.sha256(user.encode()).digest()[0] < 256 / 10


def split_sentences(page: str) -> list[str]:
  """Splits a page in HTML into sentences of lower-case tokens, without code.

  >>> split_sentences("<p>I like <b>hops</b>. Don't you?</p> <pre>x</pre> Ah!")
  ['i like hops .', "don't you ?", 'ah !']
  """
  sentences = []
  for block in _EDGE.split(page):
    text = html.unescape(_TAG.sub('', block)).lower().replace('’', "'")
    for sentence in _END.split(_LINK.sub(' <URL> ', text)):
      # What has no word is not a sentence.
      if re.search(r'\w', sentence):
        sentences.append(' '.join(_TOKEN.findall(sentence)))
  return sentences
