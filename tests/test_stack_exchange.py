"""Posts become sentences of users, and nothing else gets in or lost."""

import collections
import tempfile
import tracemalloc
from xml.sax import saxutils

import numpy as np
import pytest

from epe_jax.data import posts_xml, sentences, sources, spool, stack_exchange

_TOKENS = {'tokens': (bytes, ())}


def _row(**attributes):
  """A row; OwnerUserId=None leaves the attribute out."""
  row = {
    'Id': '1',
    'PostTypeId': '1',
    'CreationDate': '2014-01-21T20:26:05.383',
    'Score': '18',
    'Body': '<p>One beer. Two beers!</p>',
    'OwnerUserId': '7',
  } | attributes
  pairs = [f'{k}={saxutils.quoteattr(v)}' for k, v in row.items() if v]
  return f'  <row {" ".join(pairs)} />\n'


def _write(path, rows, head='<?xml version="1.0" encoding="utf-8"?>\n'):
  text = f'{head}<posts>\n{"".join(rows)}</posts>'
  path.write_bytes(b'\xef\xbb\xbf' + text.encode())
  return path


def _read(path, features=stack_exchange.FEATURES, after=None, **options):
  """split -> client -> columns, with the counts of the source checked."""
  options = {'heldout_fraction': 0, 'test_fraction': 0} | options
  found = {}
  with stack_exchange.opened(path, **options) as source:
    for split, counts in source.splits.items():
      found[split] = {
        client_id: source.decode(raw, features)
        for client_id, raw in source.read(split, features, after)
      }
      if after is None:
        sizes = [len(c['tokens']) for c in found[split].values()]
        assert counts == (len(sizes), sum(sizes))
  return found


def _random_site(rng, posts):
  """(day, user, number of sentences, first word) and the row of each."""
  for i in range(posts):
    day, user = f'2014-01-{rng.integers(1, 29):02d}', int(rng.integers(1, 12))
    n = int(rng.integers(1, 4))
    row = _row(
      Id=str(i + 1),
      OwnerUserId=str(user),
      CreationDate=f'{day}T00:00:00.000',
      Body=''.join(f'<p>w{i} s{j}</p>' for j in range(n)),
    )
    yield (day, user, n, f'w{i}'), row


def _words(found):
  return {
    (client_id, tokens.decode())
    for client_id, columns in found.items()
    for tokens in columns['tokens']
  }


# The text.
@pytest.mark.parametrize(
  ('page', 'expected'),
  [
    ('', []),
    ('No tags', ['no tags']),
    ('<p>A b.</p><p>C</p>', ['a b .', 'c']),
    ('<p>A b</p>\n\n<p>C</p>\n', ['a b', 'c']),
    ('<p>one line\nor two</p>', ['one line or two']),
    ('One. Two! Three? Four… five', ['one .', 'two !', 'three ?', 'four …', 'five']),
    ('He said "no." She (not I.) left.', ['he said " no . "', 'she ( not i . )', 'left .']),
    ('Wait... what?! ok', ['wait . . .', 'what ? !', 'ok']),
    ('4.5 % of 3,000', ['4 . 5 % of 3 , 000']),
    ("don't don’t 'quoted' dogs'", ["don't don't ' quoted ' dogs '"]),
    ('<b>bo</b>ld<em>er</em>', ['bolder']),
    ('a<br>b<BR/>c<li>d<hr />e', ['a', 'b', 'c', 'd', 'e']),
    ('x <code>f(a)</code> y', ['x f ( a ) y']),
    ('a<pre><code>x = 1;\n\ny</code></pre>b', ['a', 'b']),
    ('a<PRE class="lang-py">x</PRE >b<pre>y', ['a', 'b']),
    ('<!-- a comment -->word<!DOCTYPE html>', ['word']),
    ('1 &lt; 2 &amp; &quot;q&quot; &#233;', ['1 < 2 & " q " é']),
    ('&lt;pre&gt;text&lt;/pre&gt;', ['< pre > text < / pre >']),
    ('a < b and c > d', ['a < b and c > d']),
    ('See https://a.org/b?c=d#e, please', ['see <URL> , please']),
    ('(HTTP://A.B/c). Next', ['( <URL> ) .', 'next']),
    ('www.a.org awww.b <a href="http://c.d">it</a>', ['<URL> awww . b it']),
    ('<url> <URL>', []),
    ('&lt;URL&gt;', ['< url >']),
    ('... !? --- ,', []),
    ('ÄÖ ß Привет, 日本', ['äö ß привет , 日本']),
    ('a\u00a0b\u2003c\td', ['a b c d']),
    ('unclosed <b', ['unclosed < b']),
  ],
)  # fmt: skip
def test_a_page_becomes_sentences(page, expected):
  assert sentences.of_html(page) == expected


def test_tokens_are_separated_by_single_spaces_and_fill_one_line():
  rng = np.random.default_rng(0)
  characters = list('aB9 \'".!?<>/&;\n\t\x85\u2028\u00a0é’_')
  for _ in range(300):
    page = ''.join(rng.choice(characters, 60)) + '&#10;&nbsp;&#28;'
    for sentence in sentences.of_html(page):
      assert sentence.split() == sentence.split(' ')
      assert sentence.splitlines() == [sentence]
      assert sentence


@pytest.mark.parametrize(
  'part', ['<', '<p', '<pre ', '</pre ', '<pre>', 'www.', 'http://,', '.', "'"]
)
def test_a_hostile_page_takes_no_longer_than_its_length(part):
  # Looking for an end from every start would be 10^11 steps.
  sentences.of_html(part * (10**6 // len(part)))
  sentences.of_html(f'{part} ' * (10**6 // len(part)))


# The posts.
def test_a_sentence_has_the_features_of_its_post(tmp_path):
  path = _write(
    tmp_path / 'Posts.xml',
    [
      _row(Id='4', Title='What is a Hop?', Tags='<hops><pale-ale>'),
      _row(Id='5', Title='Why', Tags='|c#|.net|', Score='-3', Body='Über.'),
      _row(Id='6', PostTypeId='2', Body='Because.', ParentId='4'),
      _row(Id='7', OwnerUserId='123456789'),
    ],
  )
  user = _read(path)['train']['00000007']
  assert {name: column.tolist() for name, column in user.items()} == {
    'creation_date': [b'2014-01-21T20:26:05.383'] * 4,
    'score': [18, 18, -3, 18],
    'tags': [b'hops|pale-ale', b'hops|pale-ale', b'c#|.net', b''],
    'title': [b'What is a Hop?', b'What is a Hop?', b'Why', b''],
    'tokens': [b'one beer .', b'two beers !', 'über .'.encode(), b'because .'],
    'type': [b'question', b'question', b'question', b'answer'],
  }
  assert user['score'].dtype == np.int64
  assert list(_read(path)['train']) == ['00000007', '123456789']


def test_only_what_is_asked_for_is_read(tmp_path):
  path = _write(tmp_path / 'Posts.xml', [_row()])
  features = {'score': (np.int8, ()), 'tokens': (bytes, ())}
  columns = _read(path, features)['train']['00000007']
  assert columns.keys() == features.keys()
  assert columns['score'].dtype == np.int8
  with pytest.raises(ValueError, match="no feature 'votes'"):
    _read(path, {'votes': (np.int64, ())})
  path = _write(tmp_path / 'Posts.xml', [_row(Score='128')])
  with pytest.raises(ValueError, match=r"row 0: feature 'score' is .*128"):
    _read(path, features)


def test_users_come_in_order_from_posts_in_any_order(tmp_path):
  site = list(_random_site(np.random.default_rng(0), posts=60))
  path = _write(tmp_path / 'Posts.xml', [row for _, row in site])
  expected = collections.defaultdict(list)
  for (_, user, n, word), _ in site:
    expected[f'{user:08d}'] += [f'{word} s{j}'.encode() for j in range(n)]
  found = _read(path)['train']
  assert list(found) == sorted(expected)
  for client_id, columns in found.items():
    assert columns['tokens'].tolist() == expected[client_id]
  rest = _read(path, after='00000004')['train']
  assert list(rest) == [i for i in sorted(expected) if i > '00000004']


@pytest.mark.parametrize('heldout_fraction', [0, 0.3, 0.99])
@pytest.mark.parametrize('test_fraction', [0, 0.2, 0.999])
@pytest.mark.parametrize('min_sentences', [1, 8])
def test_splits_divide_all_sentences_by_day_and_by_user(
  tmp_path, heldout_fraction, test_fraction, min_sentences
):
  site = list(_random_site(np.random.default_rng(1), posts=80))
  path = _write(tmp_path / 'Posts.xml', [row for _, row in site])
  found = _read(
    path,
    heldout_fraction=heldout_fraction,
    test_fraction=test_fraction,
    min_sentences=min_sentences,
  )
  words = {split: _words(clients) for split, clients in found.items()}
  total = sum(n for (_, _, n, _), _ in site)
  sizes = collections.Counter()
  for (_, user, n, _), _ in site:
    sizes[user] += n

  # Every sentence of a user with enough of them is in exactly one split.
  expected = {
    (f'{user:08d}', f'{word} s{j}')
    for (_, user, n, word), _ in site
    if sizes[user] >= min_sentences
    for j in range(n)
  }
  assert set().union(*words.values()) == expected
  assert sum(map(len, words.values())) == len(expected)

  # The test split is that of the last days, as many as its share has room for.
  late = {w.split()[0] for _, w in words.get('test', ())}
  early = {w.split()[0] for s in words for _, w in words[s]} - late
  days = {word: day for (day, _, _, word), _ in site}
  last = max(days[word] for word in early)
  assert all(days[word] > last for word in late)
  since = lambda day: sum(n for (d, _, n, _), _ in site if d >= day)
  assert not late or since(min(days[w] for w in late)) <= test_fraction * total
  assert since(last) > test_fraction * total

  # No user is in both of the others.
  assert not set(found.get('train', ())) & set(found.get('heldout', ()))
  assert ('heldout' in found) <= (heldout_fraction > 0)


@pytest.mark.parametrize(
  ('test_fraction', 'days'), [(0.19, 1), (0.2, 2), (0.21, 2), (0.05, 0)]
)
def test_the_test_split_is_as_large_as_its_share_allows(
  tmp_path, test_fraction, days
):
  rows = [
    _row(CreationDate=f'2014-01-{d}T23:59:59', Body='a') for d in range(11, 21)
  ]
  found = _read(_write(tmp_path / 'a.xml', rows), test_fraction=test_fraction)
  dates = [
    found[s]['00000007']['creation_date'].tolist() for s in sorted(found)
  ]
  assert list(map(len, dates)) == ([days] if days else []) + [10 - days]
  assert not days or dates[0][0] == f'2014-01-{21 - days}T23:59:59'.encode()


def test_heldout_users_are_the_same_in_every_dump_and_as_many_as_asked(
  tmp_path,
):
  users = [str(i) for i in range(1, 2001)]
  rows = [_row(OwnerUserId=user) for user in users]
  options = {'features': _TOKENS, 'heldout_fraction': 0.25}
  first = _read(_write(tmp_path / 'a.xml', rows), **options)['heldout']
  # 2000 coins of probability 1/4: 5 standard deviations are 97.
  assert abs(len(first) - 500) < 97
  some = _read(_write(tmp_path / 'b.xml', rows[::-3]), **options)['heldout']
  assert set(some) == set(first) & {f'{int(u):08d}' for u in users[::-3]}
  # Pinned, so that no version of Python or the library changes it.
  pinned = [user for user in users[:15] if f'{int(user):08d}' in first]
  assert pinned == ['5', '9', '10', '13']


def test_what_is_left_out_is_counted(tmp_path):
  rows = [
    _row(OwnerUserId='1'),
    _row(OwnerUserId='1'),
    _row(OwnerUserId='2', Body='One. Two. Three.'),
    _row(OwnerUserId='3', Body='One.'),
    _row(OwnerUserId=None),
    _row(OwnerUserId='-1'),
    _row(OwnerUserId='1', Body='<pre>code</pre>'),
    _row(PostTypeId='4', OwnerUserId=None, Body=None, Score=None),
    _row(PostTypeId='5'),
    _row(PostTypeId='7'),
  ]
  path = _write(tmp_path / 'Posts.xml', rows)
  with stack_exchange.opened(
    path, min_sentences=4, heldout_fraction=0, test_fraction=0
  ) as source:
    assert source.splits == {'train': sources.Split(1, 4)}
    assert source.name == (
      f'{path} (min_sentences=4, heldout_fraction=0, no test; left out: '
      '2 users with fewer sentences, 4 sentences of these, '
      '2 posts without an owner, 1 posts without a sentence, 3 other posts)'
    )
    with pytest.raises(ValueError, match=r"no split 'test', only \['train'\]"):
      next(source.read('test', {}, None))


# The file.
@pytest.mark.parametrize(
  ('attributes', 'message'),
  [
    ({'Score': 'many'}, "Score='many' is not an integer"),
    ({'Score': '1_000'}, "Score='1_000' is not an integer"),
    ({'Score': '9' * 19}, "Score='9*' is not an integer of up to 18 digits"),
    ({'Score': None}, 'no attribute Score among'),
    ({'Body': None}, 'no attribute Body among'),
    ({'PostTypeId': None}, 'no attribute PostTypeId among'),
    ({'CreationDate': None}, 'no attribute CreationDate among'),
    ({'CreationDate': '21.1.2014'}, "CreationDate='21.1.2014': not of the"),
    ({'CreationDate': '2014-02-30T00:00:00'}, 'CreationDate=.*day'),
    ({'CreationDate': '2014-01-21T25:00:00.0'}, 'CreationDate=.*hour'),
    ({'OwnerUserId': 'me'}, "OwnerUserId='me' is not an integer"),
    ({'OwnerUserId': '٣'}, 'OwnerUserId=.* is not an integer'),
  ],
)
def test_a_wrong_row_is_named_with_its_number_and_id(
  tmp_path, attributes, message
):
  rows = [_row(Id='4'), _row(Id='9', **attributes)]
  path = _write(tmp_path / 'Posts.xml', rows)
  place = rf'{path}, row 2 \(Id 9\): '
  with pytest.raises(ValueError, match=f'{place}{message}.* Posts.xml'):
    _read(path)


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    (f'<posts>{_row()}{_row()}', 'behind row 2: no element found'),
    (f'<posts>{_row()}{_row()[:-20]}', 'behind row 1: unclosed token'),
    (f'<posts>{_row()}</post>', 'behind row 1: mismatched tag'),
    ('', 'behind row 0: no element found'),
    ('7z\xbc\xaf\x27\x1c', 'behind row 0: not well-formed'),
    ('<users><row Id="1"/></users>', 'behind row 0: an element users, not'),
    ('<posts><user Id="1"/></posts>', 'an element posts/user, not'),
    (f'<posts>{_row()}<row><row/></row></posts>', 'element posts/row/row'),
    (f'<posts>{_row()}lost</posts>', "behind row 1: text 'lost' between"),
    ('<posts><row Body="&nbsp;"/></posts>', 'undefined entity'),
    ('<posts><row Id="1" Id="2"/></posts>', 'duplicate attribute'),
    ('<?xml version="1.0" encoding="x-no"?><posts/>', 'x-no|unknown encoding'),
  ],
)
def test_a_damaged_or_foreign_file_is_refused(tmp_path, text, message):
  path = tmp_path / 'Posts.xml'
  path.write_text(text, encoding='utf-8')
  with pytest.raises(ValueError, match=rf'{path}, .*{message}.* Posts.xml'):
    _read(path)


def test_no_file_a_folder_and_no_posts_are_refused(tmp_path):
  with pytest.raises(FileNotFoundError, match=r'no\.xml is not a file'):
    _read(tmp_path / 'no.xml')
  with pytest.raises(FileNotFoundError, match='is not a file'):
    _read(tmp_path)
  path = _write(tmp_path / 'Posts.xml', [])
  with pytest.raises(ValueError, match=f'{path} has no examples'):
    _read(path)


_BOMB = (
  '<!DOCTYPE posts [<!ENTITY a "beer">'
  + ''.join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip('abcdefgh', 'bcdefghi'))
  + ']>'
)  # fmt: skip


@pytest.mark.parametrize(
  'doctype',
  [
    _BOMB,
    '<!DOCTYPE posts [<!ENTITY i SYSTEM "file:///SECRET">]>',
    '<!DOCTYPE posts [<!ENTITY % i SYSTEM "file:///SECRET"> %i;]>',
    '<!DOCTYPE posts SYSTEM "file:///SECRET">',
    '<!DOCTYPE posts>',
  ],
)
def test_entities_are_neither_expanded_nor_loaded(tmp_path, doctype):
  secret = tmp_path / 'secret'
  secret.write_text('<!ENTITY i "known">')
  doctype = doctype.replace('/SECRET', str(secret))
  row = _row().replace('One beer', '&i;').replace('&amp;i', '&i')
  path = _write(tmp_path / 'Posts.xml', [row], head=doctype)
  with pytest.raises(ValueError, match=r'behind row 0: a DOCTYPE'):
    _read(path)


def test_a_row_without_end_is_refused_before_it_fills_the_memory(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(posts_xml, '_LARGEST', 2**20)
  rows = [_row(Body=f'{"a" * 2**18}') for _ in range(16)]
  assert _read(_write(tmp_path / 'Posts.xml', rows), _TOKENS)
  for text in (f'<posts><row Body="{"a" * 2**24}"/>', f'<!--{"a" * 2**24}-->'):
    path = tmp_path / 'Posts.xml'
    path.write_text(text)
    tracemalloc.start()
    with pytest.raises(ValueError, match='over 1048576 bytes without an end'):
      _read(path)
    assert tracemalloc.get_traced_memory()[1] < 2**23
    tracemalloc.stop()


def test_rows_are_not_kept(tmp_path):
  rows = [_row(Body='a' * 2**16) for _ in range(64)]
  path = _write(tmp_path / 'Posts.xml', rows)
  tracemalloc.start()
  assert sum(1 for _ in posts_xml.rows(path)) == 64
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert peak < 2**21


@pytest.mark.parametrize(
  ('option', 'message'),
  [
    ({'min_sentences': 0}, 'min_sentences=0; give 1 or more'),
    ({'min_sentences': 3}, 'min_sentences=3 leaves no user of 1'),
    ({'heldout_fraction': 1.0}, r'heldout_fraction=1.0 is not in \[0, 1\)'),
    ({'test_fraction': -0.1}, r'test_fraction=-0.1 is not in \[0, 1\)'),
    ({'test_fraction': float('nan')}, 'test_fraction=nan is not in'),
  ],
)
def test_impossible_options_are_refused(tmp_path, option, message):
  path = _write(tmp_path / 'Posts.xml', [_row()])
  with pytest.raises(ValueError, match=message):
    _read(path, **option)


def test_the_temporary_file_is_removed(tmp_path, monkeypatch):
  folder = tmp_path / 'temporary'
  folder.mkdir()
  monkeypatch.setattr(tempfile, 'tempdir', str(folder))
  seen = []
  grouped = spool.grouped
  monkeypatch.setattr(
    spool, 'grouped', lambda *a, **k: seen.append(k) or grouped(*a, **k)
  )
  _read(_write(tmp_path / 'Posts.xml', [_row()]))
  with pytest.raises(ValueError, match='Score'):
    _read(_write(tmp_path / 'Posts.xml', [_row(), _row(Score='x')]))
  assert len(seen) == 2
  assert not list(folder.iterdir())
