"""A page is Markdown, of which its text for a terminal and its HTML are made."""

import base64
import html as html_text
import re

import markdown_it
import numpy as np
import pytest

from epe_jax.report import glossary, html, page, tables

_TABLE = tables.Table('', ['attacker', 'ε'], [['own', '2.0'], ['last', '1.0']])
_PAGE = page.Page(
  'Found ε ≥ 2.0',
  [
    page.make_bold('ε ≥ 2.0 (95 %); δ = 1e-5'),
    page.make_bold('Alas.'),
    tables.format_plain_markdown(
      tables.Table('', ['who', 'canary, lower bound'], [['all', '2.0']])
    ),
    page.make_figure('a.png', 'What is < seen.'),
  ],
  {
    'Attackers': [tables.format_plain_markdown(_TABLE, marked_row=1)],
    'Nothing': [page.make_list([])],
    'Texts': [page.make_list(['One.', 'Two.'])],
    'Again': [page.make_code('To repeat:', 'make < x\n\n| y |', 'sh')],
  },
)
_SVG = '<svg viewBox="0 0 345 100" xmlns="http://www.w3.org/2000/svg"></svg>'


def render_html(content):
  return html.render_html(content, {'a.png': _SVG})


@pytest.mark.parametrize(
  'render',
  [
    lambda content: page.render_text(content, has_appendix=True),
    page.render_markdown,
    render_html,
  ],
  ids=['text', 'markdown', 'html'],
)
def test_every_rendering_has_every_block_in_its_order(render):
  text = re.sub('<[^>]+>', '', render(_PAGE)).replace('\xa0', ' ')
  places = [
    text.rindex(word)
    for word in ('δ = 1e-5', 'Alas.', 'all', 'own', 'last', 'One.', 'Two.')
  ]
  assert places == sorted(places)
  assert 'Nothing' not in text
  assert '2.0 (95 %); δ = 1e-5' in text


def test_a_terminal_shows_neither_markup_nor_code_nor_figures():
  text = page.render_text(_PAGE, has_appendix=True)
  assert not re.search(r'[*\\|!<]|Again|make', text)
  assert text.endswith('Texts\n=====\n\n- One.\n- Two.')


def test_the_appendix_is_closed_and_says_what_is_in_it():
  for text in (page.render_markdown(_PAGE), render_html(_PAGE)):
    first, appendix = text.split('<details')
    assert 'One.' not in first
    assert 'One.' in appendix
    assert not appendix.startswith(' open')
    assert 'Appendix: attackers, texts, again</summary>' in appendix
    assert appendix.count('</details>') == 1


def test_a_table_that_is_too_wide_has_a_paragraph_for_each_row():
  wide = tables.Table('', ['a', 'b', 'c'], [['one', 'x ' * 60, 'y ' * 60]])
  markdown = tables.format_plain_markdown(wide)
  text = tables.render_text(markdown)
  assert max(map(len, text.splitlines())) <= 100
  assert text.startswith('- one: b x')
  whole = tables.render_text(markdown, is_folded=False)
  assert len(whole.splitlines()) == 2


def test_words_are_defined_if_they_are_used_and_not_otherwise():
  shown = render_html(page.define_words(_PAGE))
  words = {'epsilon', 'delta', 'lower-bound', 'canary'}
  assert {*re.findall('id="word-([^"]+)"', shown)} == words
  assert '<a href="#word-lower-bound">canary, lower bound</a>' in shown
  assert {*re.findall('href="#word-([^"]+)"', shown)} <= words
  # Where nothing is defined, nothing leads there.
  assert 'href=' not in render_html(_PAGE)


@pytest.mark.parametrize('key', glossary.TERMS)
def test_a_definition_is_found_by_its_own_name(key):
  assert key in glossary.find_used(glossary.TERMS[key].name)


def test_html_is_one_file_with_its_figures_and_without_markup_of_texts():
  shown = render_html(_PAGE)
  assert not re.search(r'url\(|@import|https?://|<script', shown)
  assert '<title>Found ε ≥ 2.0</title>' in shown
  assert 'make &lt; x\n\n| y |' in shown
  assert 'What is &lt; seen.' in shown
  (image,) = re.findall('<img[^>]*>', shown)
  # A narrow figure need not scroll on a phone.
  assert image.startswith('<img class="narrow" ')
  (content,) = re.findall('base64,([^"]*)"', image)
  assert base64.b64decode(content).decode() == _SVG
  wide = html.embed_svg(_SVG.replace('0 0 345', '0 0 900'), 'what "it" shows')
  assert wide.startswith('<img src="data:image/svg+xml;base64,')
  assert 'alt="what &quot;it&quot; shows"' in wide


def test_the_files_of_a_page_end_with_its_markdown(tmp_path):
  content = _PAGE._replace(blocks=_PAGE.blocks[:-1])
  path = html.write_page(tmp_path / 'new', 'found', content, {})
  assert path == tmp_path / 'new/found.md'
  assert path.read_text() == page.render_markdown(content) + '\n'
  assert {x.name for x in path.parent.iterdir()} == {'found.md', 'found.html'}


_HOSTILE = (
  '![a](https://b.example/c.png)',
  '[a](javascript:alert(1)) [b]: javascript:c',
  '<javascript:a> <img src=x onerror=y> &#106;avascript',
  '`a` ``` **b** _c_ ~~d~~ \\[e\\](f)',
  '# a | b\n\n> c\r\n---\n~~~\n1. d\n    e',
  '> a',
  '```\n<script>\n```',
)
_MARKDOWN = markdown_it.MarkdownIt('commonmark').enable(
  ['table', 'strikethrough']
)


def read_html(shown, tag):
  """The texts of the elements of a kind, without markup, and all tags."""
  inside = re.findall(rf'<{tag}>(.*?)</{tag}>', shown, re.DOTALL)
  texts = [html_text.unescape(re.sub('<[^>]+>', '', x)) for x in inside]
  return texts, set(re.findall(r'<(\w+)', shown))


@pytest.mark.parametrize('text', _HOSTILE)
def test_markdown_shows_what_users_name_and_obeys_nothing_of_it(text):
  table = tables.Table(text, [text, 'b'], [['c', text]], [text])
  content = page.Page(
    text,
    [
      page.make_paragraph(text),
      page.make_bold(text),
      page.make_list([text]),
      tables.format_plain_markdown(table),
    ],
  )
  line = ' '.join(text.splitlines())
  with tables.limit_width(200):
    plain = page.render_text(content._replace(title=''))
  assert plain.count(line) == 3 + 4
  blocks = page.make_figure('a.png', text), page.make_code(text, text, 'sh')
  shown = _MARKDOWN.render(
    page.render_markdown(content._replace(blocks=[*content.blocks, *blocks]))
  )
  for tag in ('h1', 'p', 'strong', 'li', 'th', 'td', 'em'):
    texts, tags = read_html(shown, tag)
    assert line in texts, tag
  assert tags <= {
    *('h1', 'p', 'strong', 'ul', 'li', 'em', 'img', 'pre', 'code'),
    *('table', 'thead', 'tbody', 'tr', 'th', 'td'),
  }
  assert re.findall('<img src="(.*?)"', shown) == ['a.png']
  code = html_text.unescape(shown.rpartition('language-sh">')[2])
  assert code.startswith(text.replace('\r', ''))


def test_any_text_comes_back_from_its_markdown():
  rng = np.random.default_rng(0)
  for _ in range(500):
    text = ''.join(rng.choice([*r'\`*_[]()<>!&#~|:;=-ab1 '], 12)).strip()
    shown = _MARKDOWN.render(f'x {tables.escape_markdown(text)}')
    assert html_text.unescape(shown) == f'<p>x {text}</p>\n'
    table = tables.format_plain_markdown(tables.Table('', ['x'], [[text]]))
    (cell,), _ = read_html(_MARKDOWN.render(table), 'td')
    assert cell == text
    plain = tables.render_text(table, is_folded=False).splitlines()[1]
    assert plain == text
