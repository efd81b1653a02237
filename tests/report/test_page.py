"""One page, rendered for a terminal, as Markdown and as HTML."""

import re

import pytest

from epe_jax.report import html, page
from epe_jax.report.page import Cells, Code, Figure, Items, Page, Section, Text
from epe_jax.text import tables

_TABLE = tables.Table('', ['attacker', 'ε'], [['own', '2.0'], ['last', '1.0']])
_PAGE = Page(
  'Found ε ≥ 2.0',
  [
    Section(
      '',
      [Text('ε ≥ 2.0 (95 %); δ = 1e-5', 'headline'), Text('Alas.', 'alarm')],
    ),
    Section('Attackers', [Cells(_TABLE, marked_row=1)], key='attackers'),
    Section('Nothing', [], key='nothing'),
    Section('Figures', [Figure('a.png', 'What is < seen.')], key='figures'),
    Section('Words', [Items(['One.', 'Two.'])], key='words', is_folded=True),
    Section('Again', [Code('To repeat:', 'make < x', 'sh')], key='again'),
  ],
)
_SVG = '<svg viewBox="0 0 1 1" xmlns="http://www.w3.org/2000/svg"></svg>'


@pytest.mark.parametrize(
  'render',
  [
    page.render_text,
    page.render_markdown,
    lambda content: html.render_html(content, {'a.png': _SVG}),
  ],
  ids=['text', 'markdown', 'html'],
)
def test_every_rendering_has_every_block_in_its_order(render):
  text = re.sub('<[^>]+>', '', render(_PAGE)).partition('Definitions')[0]
  places = [
    text.rindex(word)
    for word in (
      *('δ = 1e-5', 'Alas.', 'own', 'last'),
      *('One.', 'Two.', 'To repeat:', 'make'),
    )
  ]
  assert places == sorted(places)
  assert 'Nothing' not in text


def test_a_terminal_shows_no_figure():
  assert 'seen' not in page.render_text(_PAGE)
  assert '![What is &lt; seen.](a.png)' in page.render_markdown(_PAGE)


def test_markup_is_escaped_but_in_code():
  assert '```sh\nmake < x\n```' in page.render_markdown(_PAGE)
  assert '<pre>make &lt; x</pre>' in html.render_html(_PAGE, {})


def test_html_marks_the_row_the_alarm_and_folds_a_section():
  text = html.render_html(_PAGE, {'a.png': _SVG})
  marked = text[text.index('class="headline-row"') :]
  assert marked.index('last') < marked.index('</tr>')
  assert '<p class="alarm">Alas.</p>' in text
  assert '<details><summary id="words">Words</summary>' in text
  assert 'id="figure-a"' in text
  # A figure that was not drawn is left out.
  assert 'id="figure-a"' not in html.render_html(_PAGE, {})


def test_the_files_of_a_page_end_with_its_markdown(tmp_path):
  path = html.write_page(tmp_path / 'new', 'found', _PAGE, {})
  assert path == tmp_path / 'new/found.md'
  assert path.read_text() == page.render_markdown(_PAGE) + '\n'
  assert {x.name for x in path.parent.iterdir()} == {'found.md', 'found.html'}
