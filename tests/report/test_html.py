"""report.html: one file, every number of which leads to its definition."""

import dataclasses
from html import parser
import re

import pytest

from epe_jax.audit import attack_results, evaluation
from epe_jax.report import facts, glossary, html, report, sentences
from epe_jax.report.figures import style
from tests import recorded_runs

_SVG = """<?xml version="1.0"?>
<svg width="10pt" viewBox="0 0 10 10" xmlns="http://www.w3.org/2000/svg">
 <metadata><x y="http://purl.org/dc/"/></metadata>
 <defs><style type="text/css">*{stroke-linejoin: round}</style></defs>
 <g id="patch_1"><path id="m1" d="M 0 0" style="stroke: #0072b2"/></g>
 <use xlink:href="#m1"/><path clip-path="url(#p1)" style="stroke: #000000"/>
 <clipPath id="p1"/>
</svg>
"""


class _Page(parser.HTMLParser):
  """What a page refers to, and its text outside and inside of links, by section."""

  def __init__(self, text):
    super().__init__()
    self.ids, self.links, self.loads, self.open = [], [], [], []
    self.unlinked, self.section = {}, 'top'
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    attrs = dict(attrs)
    if 'id' in attrs:
      self.ids.append(attrs['id'])
      if tag == 'h2':
        self.section = attrs['id']
    if tag == 'a':
      self.links.append(attrs['href'])
    self.loads += [attrs[x] for x in ('src', 'srcset', 'data') if x in attrs]
    if tag in ('link', 'script', 'iframe', 'object', 'img'):
      self.loads.append(tag)
    if tag not in ('meta', 'path', 'use', 'br', 'rect'):
      self.open.append(tag)

  def handle_endtag(self, tag):
    while self.open and self.open.pop() != tag:
      pass

  def handle_data(self, data):
    if not {'a', 'svg', 'style', 'title'} & set(self.open):
      self.unlinked.setdefault(self.section, []).append(data)


@pytest.fixture(scope='module')
def result():
  audit = evaluation.evaluate(recorded_runs.by_law())
  return recorded_runs.result(audit=audit)


@pytest.fixture(scope='module')
def text(result):
  return html.render_html(
    report.make_page(result, {'a.png': 'What is < seen.'}), {'a.png': _SVG}
  )


def test_the_page_loads_nothing_and_its_links_lead_somewhere(text):
  page = _Page(text)
  assert page.loads == []
  assert not re.search(r'url\((?!#)|@import|https?://(?!www\.w3\.org)', text)
  assert len(page.ids) == len(set(page.ids))
  assert page.links
  for link in page.links:
    assert link.removeprefix('#') in page.ids
  assert {f'term-{key}' for key in glossary.TERMS} <= set(page.ids)


def test_every_number_of_the_first_screen_leads_to_its_definition(text):
  page = _Page(text)
  for section in ('top', 'attackers'):
    said = ' '.join(page.unlinked[section])
    # Names of tasks and of the page have none.
    assert not re.findall(r'\d', said), said


def test_the_page_has_a_line_for_each_attacker_and_a_short_verdict(
  result, text
):
  body = text[text.index('id="attackers"') : text.index('id="figures"')]
  rows = re.findall(r'<th scope="row"[^>]*>([^<]*)</th>', body)
  assert rows == [a.threat_model.name for a in result.audit.attacks]
  assert body.count('headline-row') == 1
  assert len(sentences.give_verdict(result)) == 3
  for heading in ('assumptions', 'not-measured', 'settings', 'reproduce'):
    assert f'id="{heading}"' in text
  assert 'What is &lt; seen.' in text


def test_pages_have_colours_for_dark_and_a_style_for_paper(text):
  for rule in (
    'prefers-color-scheme: dark',
    '@media print',
    'max-width: 40rem',
  ):
    assert rule in text
  dark = text[text.index('prefers-color-scheme: dark') :]
  for color in style.PAGE_COLORS:
    assert f'{html.name_color(color)}: ' in dark


def test_an_inline_figure_has_names_and_colours_of_the_page():
  svg = html.inline_svg(_SVG, 'a', 'what "it" shows')
  assert svg.startswith('<svg viewBox="0 0 10 10" role="img"')
  assert 'aria-label="what &#34;it&#34; shows"' in svg
  assert 'id="a-m1"' in svg
  assert 'href="#a-m1"' in svg
  assert 'url(#a-p1)' in svg
  assert 'patch_1' not in svg
  assert 'http' not in svg
  assert 'stroke: var(--c0072b2)' in svg
  assert 'stroke: var(--c000000)' in svg


def test_a_violation_is_the_last_sentence_and_an_alarm():
  record = dataclasses.replace(
    recorded_runs.by_law(shift=6.0, observed=300, unobserved=300),
    noise_multiplier=1 / 3.0,
    periods=1,
  )
  audit = evaluation.evaluate(record, floors=False)
  violated = recorded_runs.result(audit=audit)
  assert facts.is_alarming(violated)
  assert (
    'the run does not do what is claimed'
    in (sentences.give_verdict(violated)[-1])
  )
  assert 'class="alarm"' in html.render_html(report.make_page(violated, {}), {})


def test_the_page_says_that_clients_may_leak_more_than_canaries(result):
  leaky = dataclasses.replace(result, clients_analytic_epsilon=310.6)
  said = sentences.give_verdict(leaky)
  assert len(said) == 3
  assert 'of a canary of one round' in said[0]
  page = re.sub(
    '<[^>]+>', '', html.render_html(report.make_page(leaky, {}), {})
  )
  client = 'of this run takes part in up to 2 rounds, and is allowed ε = 310.6'
  assert page.count(client) == 1


def test_a_result_is_printed_in_a_line(result):
  assert repr(result) == str(result)
  assert len(repr(result)) < 300
  assert 'ε ≥ ' in repr(result)


def test_a_run_that_was_not_audited_has_a_page():
  result = recorded_runs.result(num_observed=0, audit=attack_results.Audit(()))
  text = html.render_html(report.make_page(result, {}), {})
  assert 'Training run, not audited' in text
  assert 'id="attackers"' not in text
