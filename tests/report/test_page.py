"""One page, rendered for a terminal, as Markdown and as HTML."""

import html as html_text
import re

import markdown_it
import numpy as np
import pytest

from epe_jax.report import glossary, html, page, tables
from epe_jax.report.page import Cells, Code, Figure, Items, Page, Section, Text

_TABLE = tables.Table('', ['attacker', 'ε'], [['own', '2.0'], ['last', '1.0']])
_PAGE = Page(
  'Found ε ≥ 2.0',
  [
    Text('ε ≥ 2.0 (95 %); δ = 1e-5', 'headline'),
    Text('Alas.', 'alarm'),
    Cells(
      tables.Table('', ['who', 'canary, at least'], [['all', '2.0']]),
      groups=[('', 1), ('a canary', 1)],
    ),
    Figure('a.png', 'What is < seen.'),
  ],
  [
    Section('Attackers', [Cells(_TABLE, marked_row=1)], key='attackers'),
    Section('Nothing', [], key='nothing'),
    Section('Texts', [Items(['One.', 'Two.'])], key='texts'),
    Section('Again', [Code('To repeat:', 'make < x', 'sh')], key='again'),
  ],
)
_SVG = '<svg viewBox="0 0 345 100" xmlns="http://www.w3.org/2000/svg"></svg>'


@pytest.mark.parametrize(
  'render',
  [
    lambda content: page.render_text(content, has_appendix=True),
    page.render_markdown,
    lambda content: html.render_html(content, {'a.png': _SVG}),
  ],
  ids=['text', 'markdown', 'html'],
)
def test_every_rendering_has_every_block_in_its_order(render):
  text = re.sub('<[^>]+>', '', render(_PAGE))
  places = [
    text.rindex(word)
    for word in ('δ = 1e-5', 'Alas.', 'all', 'own', 'last', 'One.', 'Two.')
  ]
  assert places == sorted(places)
  assert 'Nothing' not in text


def test_the_appendix_is_closed_and_says_what_is_in_it():
  for text in (page.render_markdown(_PAGE), html.render_html(_PAGE, {})):
    first, appendix = text.split('<details')
    assert 'One.' not in first
    assert 'One.' in appendix
    assert not appendix.startswith(' open')
    assert 'Appendix: attackers, texts, again</summary>' in appendix
    assert appendix.count('</details>') == 1


def test_a_table_that_is_too_wide_has_a_paragraph_for_each_row():
  wide = tables.Table('', ['a', 'b', 'c'], [['one', 'x ' * 60, 'y ' * 60]])
  text = page.render_text(Page('', [Cells(wide)]))
  assert max(map(len, text.splitlines())) <= 100
  assert text.startswith('- one: b x')


def test_words_are_defined_if_they_are_used_and_not_otherwise():
  defined = page.define_words(_PAGE)
  (words,) = defined.appendix[-1].blocks
  assert {*words.terms} == {'epsilon', 'delta', 'lower-bound', 'canary'}
  shown = html.render_html(defined, {})
  for link in re.findall('href="#([^"]+)"', shown):
    assert f'id="{link}"' in shown
  assert '<a href="#word-lower-bound">at least</a>' in shown
  # Where nothing is defined, nothing leads there.
  assert 'href=' not in html.render_html(_PAGE, {})


@pytest.mark.parametrize('key', glossary.TERMS)
def test_a_definition_is_found_by_its_own_name(key):
  assert key in glossary.find_used(glossary.TERMS[key].name)


def test_markup_is_escaped_but_in_code():
  assert '```sh\nmake < x\n```' in page.render_markdown(_PAGE)
  assert '<pre tabindex="0">make &lt; x</pre>' in html.render_html(_PAGE, {})


def test_the_files_of_a_page_end_with_its_markdown(tmp_path):
  path = html.write_page(tmp_path / 'new', 'found', _PAGE, {})
  assert path == tmp_path / 'new/found.md'
  assert path.read_text() == page.render_markdown(_PAGE) + '\n'
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
  shown = _MARKDOWN.render(
    page.render_markdown(
      Page(
        text,
        [
          *(Text(text), Text(text, 'alarm'), Items([text])),
          Cells(tables.Table(text, [text, 'b'], [['c', text]], [text])),
          *(Figure('a.png', text), Code(text, text, 'sh')),
        ],
      )
    )
  )
  line = ' '.join(text.splitlines())
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
    table = tables.Table('', ['x'], [[text]])
    (cell,), _ = read_html(
      _MARKDOWN.render(tables.format_plain_markdown(table)), 'td'
    )
    assert cell == text
