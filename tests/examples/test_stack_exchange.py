"""The example of a source: posts become sentences of users."""

import tracemalloc
from xml.sax import saxutils

import pytest

from epe_jax.data import imports, sources, stackoverflow, vocabulary
from examples import stack_exchange


def _write(path, *rows):
  """A dump with a row for each of some attributes."""
  usual = {'PostTypeId': '1', 'OwnerUserId': '7', 'Body': '<p>A beer.</p>'}
  text = ''
  for row in rows:
    pairs = (usual | row).items()
    text += ' '.join(
      ['<row', *(f'{k}={saxutils.quoteattr(v)}' for k, v in pairs if v), '/>\n']
    )
  path.write_text(f'<?xml version="1.0"?>\n<posts>\n{text}</posts>')
  return str(path)


@pytest.mark.parametrize(
  ('page', 'expected'),
  [
    ('', []),
    ('<p>A b.</p>\n<p>C</p>', ['a b .', 'c']),
    ('One. Two! four… five', ['one .', 'two !', 'four …', 'five']),
    ('4.5 % of 3,000', ['4 . 5 % of 3 , 000']),
    ("don't don’t 'quoted' dogs'", ["don't don't ' quoted ' dogs '"]),
    ('<b>bo</b>ld<em>er</em>', ['bolder']),
    ('a<br>b<BR/>c<li>d', ['a', 'b', 'c', 'd']),
    ('a<PRE class="py">x = 1;\n\ny</PRE >b<pre>y', ['a', 'b']),
    ('1 &lt; 2 &amp; &quot;q&quot; &#233;', ['1 < 2 & " q " é']),
    ('See https://a.org/b?c=d#e, please', ['see <URL> , please']),
    ('... !? --- ,', []),
  ],
)
def test_a_page_becomes_sentences(page, expected):
  assert stack_exchange.split_sentences(page) == expected


@pytest.mark.parametrize(
  'part', ['<', '<p', '<pre ', '</pre ', '<pre>', 'www.', 'http://,', '.', "'"]
)
def test_a_hostile_page_takes_no_longer_than_its_length(part):
  # Looking for an end from every start would be 10^11 steps.
  page = part * (10**6 // len(part))
  found = stack_exchange.split_sentences(page)
  # Each character is a token at most, and a space before the next.
  assert sum(map(len, found)) <= 2 * len(page)


def test_posts_are_those_of_users_with_something_to_say(tmp_path):
  path = _write(
    tmp_path / 'Posts.xml',
    {'Body': '<p>One. Two.</p>'},
    {'OwnerUserId': '123', 'PostTypeId': '2'},
    {'OwnerUserId': '-1'},
    {'OwnerUserId': None},
    {'PostTypeId': '4'},
    {'Body': '<pre>code</pre>'},
    {'Body': None},
    {},
  )
  assert [*stack_exchange.read_posts(path)] == [
    ('00000007', {'tokens': ['one .', 'two .']}),
    ('00000123', {'tokens': ['a beer .']}),
    ('00000007', {'tokens': ['a beer .']}),
  ]


def test_a_dump_becomes_what_the_task_trains_on(tmp_path, monkeypatch):
  rows = [{'OwnerUserId': str(1 + i % 99)} for i in range(300)]
  monkeypatch.setenv('POSTS', _write(tmp_path / 'Posts.xml', *rows))
  source, text = 'examples.stack_exchange:read_splits', vocabulary.Text(2, 5)
  written = imports.import_(source, tmp_path / 'out', text=text)
  assert sum(split.examples for split in written) == 300
  train, heldout, words = stackoverflow.load(
    tmp_path / 'out', vocabulary_size=2, max_words=5
  )
  users = [{*data.client_ids.tolist()} for data in (train, heldout)]
  # A tenth of 99 users; 4 standard deviations are 12.
  assert 0 < len(users[1]) < 22
  assert not users[0] & users[1]
  assert users[0] | users[1] == {f'{i:08d}' for i in range(1, 100)}
  assert set(words) < {'a', 'beer', '.'}


def test_rows_are_not_kept(tmp_path):
  path = _write(tmp_path / 'Posts.xml', *[{'Body': 'a' * 2**16}] * 64)
  tracemalloc.start()
  assert sum(1 for _ in stack_exchange.read_posts(path)) == 64
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert peak < 2**21


def test_a_dump_itself_needs_a_function_such_as_that_of_the_example(tmp_path):
  path = _write(tmp_path / 'Posts.xml', {})
  with pytest.raises(ValueError, match=r'package\.module:function'):
    sources.open_source(path)
