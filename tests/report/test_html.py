"""report.html: one file, every number of which leads to its definition."""

import base64
import dataclasses
from html import parser
import re

import pytest

from epe_jax.audit import evaluation, results
from epe_jax.report import attacker_names, html, report
from tests import recorded_runs

_SVG = """<?xml version="1.0"?>
<svg width="10pt" viewBox="0 0 900 10" xmlns="http://www.w3.org/2000/svg">
 <path d="M 0 0" style="stroke: #0072b2"/>
</svg>
"""


class _Page(parser.HTMLParser):
  """What a page refers to, and what it loads."""

  def __init__(self, text):
    super().__init__()
    self.ids, self.links, self.loads = [], [], []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    attrs = dict(attrs)
    self.ids += [attrs['id']] if 'id' in attrs else []
    self.links += [attrs['href']] if tag == 'a' else []
    loads = [attrs[x] for x in ('src', 'srcset', 'data') if x in attrs]
    self.loads += [x for x in loads if not x.startswith('data:')]
    if tag in ('link', 'script', 'iframe', 'object'):
      self.loads.append(tag)


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
  assert not re.search(r'url\(|@import|https?://', text)
  assert len(page.ids) == len(set(page.ids))
  assert page.links
  for link in page.links:
    assert link.removeprefix('#') in page.ids


def test_the_page_has_three_rows_and_the_appendix_one_for_each_attacker(
  result, text
):
  first, appendix = text.split('<details')

  def list_rows(part):
    return re.findall(r'<th scope="row"[^>]*>([^<]*)</th>', part)

  assert list_rows(first) == ['final model', 'every round', 'worst case']
  body = appendix[: appendix.index('id="risks"')]
  names = [
    attacker_names.spell_name(a.threat_model) for a in result.audit.attacks
  ]
  assert list_rows(body) == names
  assert body.count('headline-row') == 1
  for heading in ('assumptions', 'estimates', 'settings', 'reproduce', 'words'):
    assert f'id="{heading}"' in appendix
  assert 'What is &lt; seen.' in first


def test_a_figure_is_embedded_as_it_is():
  image = html.embed_svg(_SVG, 'what "it" shows')
  assert image.startswith('<img src="data:image/svg+xml;base64,')
  (content,) = re.findall('base64,([^"]*)"', image)
  assert base64.b64decode(content).decode() == _SVG
  assert 'alt="what &#34;it&#34; shows"' in image
  narrow = html.embed_svg(_SVG.replace('0 0 900', '0 0 345'), '')
  assert narrow.startswith('<img class="narrow" ')


def test_a_violation_is_an_alarm():
  record = dataclasses.replace(
    recorded_runs.by_law(shift=6.0, observed=300, unobserved=300),
    noise_multiplier=1 / 3.0,
    periods=1,
  )
  audit = evaluation.evaluate(record, floors=False)
  violated = recorded_runs.result(audit=audit)
  first, appendix = html.render_html(report.make_page(violated), {}).split(
    '<details'
  )
  alarms = re.findall('<p class="alarm">([^<]*)</p>', first)
  assert any('the run does not match its claim' in x for x in alarms)
  assert not any(x in appendix for x in alarms)


def test_the_page_says_that_clients_may_leak_more_than_canaries(result):
  leaky = dataclasses.replace(result, clients_analytic_epsilon=310.6)
  shown = html.render_html(report.make_page(leaky), {}).split('<details')[0]
  assert shown.count('<td>310.6</td>') == 3
  assert 'A client takes part in up to 2 rounds' in shown


def test_a_run_that_was_not_audited_has_a_page():
  result = recorded_runs.result(num_observed=0, audit=results.Audit(()))
  text = html.render_html(report.make_page(result, {}), {})
  assert 'Training run, not audited' in text
  assert 'id="attackers"' not in text
