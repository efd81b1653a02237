"""Reports in a browser: wide and dark, on a phone, and on paper."""

import html
import json
import pathlib
import re
import shutil
import subprocess

import numpy as np
import pytest

import epe_jax
from epe_jax.report import report
from epe_jax.report.comparisons import comparison, labelled_runs
from epe_jax.scores import score_audit
from tests.report import test_report

_BROWSER = next(
  filter(
    None,
    map(
      shutil.which,
      ('chromium', 'chromium-browser', 'google-chrome', 'chrome'),
    ),
  ),
  None,
)

pytestmark = [
  pytest.mark.integration,
  pytest.mark.skipif(
    _BROWSER is None, reason='no Chromium or Chrome is installed'
  ),
]

_DARK, _LIGHT = 'rgb(22, 24, 29)', 'rgb(255, 255, 255)'
# The page tells its frame what it measured, closed and then opened.
_MEASURE = """<script>
const problems = [];
addEventListener('error', event => problems.push(String(event.message)));
addEventListener('load', () => {
  const root = document.documentElement;
  const appendix = document.querySelector('details');
  const measure = () => ({
    overflow: root.scrollWidth - root.clientWidth,
    height: root.scrollHeight,
    appendix: appendix.querySelector('h2').checkVisibility(),
  });
  const closed = measure();
  const scrolling = [...document.querySelectorAll('main p, main table')]
    .filter(x => x.scrollWidth > x.clientWidth + 1).length;
  appendix.querySelector('summary').click();
  parent.postMessage({
    closed, opened: measure(), scrolling, problems,
    color: getComputedStyle(document.body).backgroundColor,
  }, '*');
});
</script>"""
# In a frame, since a window of a browser has a least width.
_FRAME = """<!doctype html><iframe src="page.html" width="{width}" height="800"
style="border: 0"></iframe><pre id="measured"></pre><script>
addEventListener('message', event => {{
  document.getElementById('measured').textContent = JSON.stringify(event.data);
}});
</script>"""


@pytest.fixture(scope='module', params=['run', 'scores', 'comparison'])
def page(request, tmp_path_factory):
  """The report.html of a run, of scores, or of a comparison."""
  folder = tmp_path_factory.mktemp(request.param)
  if request.param == 'run':
    report.write_report(test_report._finished_run(folder))
  elif request.param == 'scores':
    rng = np.random.default_rng(0)
    found = epe_jax.estimate(
      rng.normal(2, 1, 200), rng.normal(0, 1, 200), delta=1e-5
    )
    score_audit.write_score_report(folder, found.scores, found.audit)
  else:
    result = test_report._result()
    runs = [labelled_runs.label_run(name, result) for name in ('a', 'b')]
    comparison.write_comparison(folder, runs)
    return folder / 'comparison.html'
  return folder / 'report.html'


def browse(*arguments, profile):
  done = subprocess.run(
    [
      _BROWSER,
      *('--headless', '--no-sandbox', '--disable-gpu', '--hide-scrollbars'),
      *('--enable-logging=stderr', f'--user-data-dir={profile}'),
      *arguments,
    ],
    capture_output=True,
    text=True,
    timeout=120,
    check=True,
  )
  errors = [x for x in done.stderr.splitlines() if 'CONSOLE' in x]
  assert not errors
  return done.stdout


def measure(page, tmp_path, *, width, is_dark=False):
  text = page.read_text().replace('</head>', f'{_MEASURE}</head>')
  (tmp_path / 'page.html').write_text(text)
  frame = tmp_path / 'frame.html'
  frame.write_text(_FRAME.format(width=width))
  scheme = f'--blink-settings=preferredColorScheme={0 if is_dark else 1}'
  shown = browse(
    scheme,
    '--window-size=1400,900',
    '--virtual-time-budget=3000',
    '--dump-dom',
    frame.as_uri(),
    profile=tmp_path / 'profile',
  )
  (measured,) = re.findall('<pre id="measured">(.*?)</pre>', shown)
  return json.loads(html.unescape(measured))


@pytest.mark.parametrize(
  ('width', 'is_dark'), [(360, False), (1280, True)], ids=['phone', 'wide']
)
def test_a_report_fits_and_its_appendix_opens(page, tmp_path, width, is_dark):
  found = measure(page, tmp_path, width=width, is_dark=is_dark)
  assert found['problems'] == []
  assert found['color'] == (_DARK if is_dark else _LIGHT)
  # Neither the page scrolls sideways nor anything on the first page.
  assert found['closed']['overflow'] == found['opened']['overflow'] == 0
  assert found['scrolling'] == 0
  assert not found['closed']['appendix']
  assert found['opened']['appendix']
  assert found['opened']['height'] > found['closed']['height']


def print_pages(page, tmp_path):
  """The number of pages on paper."""
  path = tmp_path / 'page.pdf'
  browse(
    f'--print-to-pdf={path}',
    '--no-pdf-header-footer',
    page.as_uri(),
    profile=tmp_path / 'profile',
  )
  return len(re.findall(rb'/Type\s*/Page\b', path.read_bytes()))


def test_a_first_page_is_one_sheet_and_an_open_appendix_begins_another(
  page, tmp_path
):
  assert print_pages(page, tmp_path) == 1
  opened = pathlib.Path(tmp_path, 'open.html')
  opened.write_text(page.read_text().replace('<details', '<details open'))
  assert print_pages(opened, tmp_path) > 1
