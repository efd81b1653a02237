"""Copies finished runs and reproduced items into docs/ and the README.

  make docs

trains the runs and calls this script. Without flags it rewrites the pages from the
files in docs/runs. A test checks that the pages are up to date.
"""

from collections.abc import Mapping
import functools
import pathlib
import re
import shutil
import sys

from absl import app, flags
from PIL import Image

from epe_jax import io
from epe_jax.audit import attackers
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.experiment import finished_runs
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import cells, glossary, report, tables, words
from epe_jax.report.comparisons import labelled_runs

_ROOT = pathlib.Path(__file__).parents[1]
sys.path.append(str(_ROOT))

from papers import files, registry
from papers.one_shot import mechanism

_RUNS = _ROOT / 'docs' / 'runs'
_RESULTS = _ROOT / 'docs' / 'results'
_CHECK = _RUNS / 'check.txt'
_EMPTY_ITEM = '<!-- begin item -->\n<!-- end item -->\n'
# Of the figures of a run.
_PICTURES = 'summary.png', 'overview.png'
# Name of a run in the table of experiments -> its title there.
_COMPARED = {
  'emnist': 'EMNIST, 10 classes',
  'emnist62': 'EMNIST, 62 classes',
  'stackoverflow': 'StackOverflow',
}

_RUN = flags.DEFINE_multi_string(
  'run', [], 'NAME=WORKDIR of a finished run, to be copied to docs/runs/NAME.'
)
_GAUSSIAN = flags.DEFINE_string('gaussian', None, 'Rows of Algorithm 1, .json.')
_ITEMS = flags.DEFINE_multi_string(
  'results', [], 'Folder with items that `scripts/reproduce.py` wrote.'
)


def make_blocks() -> dict[str, dict[str, str]]:
  """Makes what stands between markers: page -> name of a marker -> text."""
  rows = io.read_json(_RUNS / 'gaussian.json')
  text = mechanism.format_table(mechanism.parse_rows(rows))
  digits = finished_runs.load_result(_RUNS / 'digits')
  compared = {}
  for name, title in _COMPARED.items():
    result = finished_runs.load_result(_RUNS / name)
    delta = cells.format_delta(result.delta)
    compared[f'[{title}](runs/{name}/report.md), δ = {delta}'] = result
  return {
    'README.md': {
      'digits': '\n\n'.join(report.make_page(digits).blocks[:3]),
      'check': f'```text\n{_quote_check()}\n```',
    },
    'docs/estimates.md': {
      'headline': f'```text\n{_quote_headline(digits)}\n```',
      'terms': '\n\n'.join(
        f'**{term.name}.** {term.text}'
        for term in sorted(
          glossary.TERMS.values(), key=lambda t: t.name.lower()
        )
      ),
    },
    'docs/tutorial.md': {
      'digits': f'```text\n{report.format_summary(digits)}\n```'
    },
    'docs/experiments.md': {
      'gaussian': f'```text\n{text}\n```',
      'runs': tables.format_markdown(_make_results_table(compared)),
    },
  }


def _make_results_table(results: Mapping[str, RunResult]) -> tables.Table:
  """A line for each run: sizes, accuracy, and the first estimate of each attacker.

  Every ε is an estimate, without a guarantee; one that is not calibrated has a dagger.
  After that of the last model is the range, 5 to 95 %, of what the same estimator
  reports when nothing leaks. The limit is that of a canary, and of a client where it
  takes part in other numbers of rounds.
  """
  shown = [
    attacker
    for attacker in attackers.sort_by_strength(attackers.OF_INDEPENDENT_NOISE)
    # The first page has the attacker who knows the initial model too.
    if attacker.is_in_overview
    or attacker.is_worst_case
    or attacker == attackers.CHANGE
  ]
  return tables.select_columns(
    results.items(),
    {
      'run': lambda row: row[0],
      'rounds x clients': lambda row: (
        f'{row[1].rounds:,} x {row[1].config["clients_per_round"]:,}'
      ),
      'd': lambda row: f'{row[1].dim:,}',
      'noise': lambda row: f'{row[1].noise_multiplier:g}',
      'accuracy (majority class)': lambda row: (
        f'{cells.format_percent(row[1].accuracy)} '
        f'({cells.format_percent(row[1].baseline_accuracy)})'
      ),
      cells.LIMIT: lambda row: labelled_runs.format_analytic(
        labelled_runs.label_run(*row)
      ),
      **{
        f'ε, {words.spell_name(x)}': functools.partial(_show_first, x)
        for x in shown
      },
    },
  )


def _show_first(attacker: ThreatModel, row: tuple[str, RunResult]) -> str:
  attack = row[1].audit.find(attacker)
  if attack is None:
    return 'not measured'
  text = cells.format_epsilon(attack.first)
  if not attack.is_calibrated:
    text += ' †'
  # Where much leaks the floor says nothing.
  floor = cells.format_floor(attack.first)
  if attacker == attackers.FINAL and floor:
    text += f' (floor {floor})'
  return text


def _quote_headline(result: RunResult) -> str:
  """The sentence that a run prints below its title."""
  return report.format_summary(result).split('\n\n')[1]


def _quote_check() -> str:
  """The beginning and the findings of the recorded report of `epe-jax check`."""
  text = _CHECK.read_text(encoding='utf-8').strip()
  summary, _, *findings = text.split('\n\n')
  return '\n\n'.join([summary, '...', *findings])


def splice_pages() -> dict[str, str]:
  """Fills every block of pages and the README, from the files in docs/runs.

  Returns:
    Page -> its text.

  Raises:
    ValueError: a marker is missing.
  """
  return {
    name: tables.splice((_ROOT / name).read_text(), blocks)
    for name, blocks in make_blocks().items()
  }


def format_results() -> dict[str, str]:
  """The index of results, and the page of each item, from the files in docs/results.

  What a person wrote below the markers of an item's page stays.

  Returns:
    Page -> its text.
  """
  pages = {'docs/results.md': files.format_index(_RESULTS, link='results')}
  for name in registry.ITEMS:
    folder = _RESULTS / registry.folder_of(name)
    if (folder / 'item.json').is_file():
      page = folder / 'index.md'
      text = page.read_text(encoding='utf-8') if page.is_file() else _EMPTY_ITEM
      block = files.format_item(name, io.read_json(folder / 'item.json'))
      pages[str(page.relative_to(_ROOT))] = tables.splice(text, {'item': block})
  return pages


def _copy_run(workdir: pathlib.Path, folder: pathlib.Path) -> None:
  folder.mkdir(parents=True, exist_ok=True)
  for file in ('result.json', *_PICTURES):
    shutil.copyfile(workdir / file, folder / file)
  page = (workdir / 'report.md').read_text('utf-8')
  io.write_text(folder / 'report.md', _drop_pictures(page))


def _drop_pictures(page: str) -> str:
  """Drops the pictures of a page that are not kept, with their captions."""
  return re.sub(
    r'!\[[^\]]*\]\((.*\.png)\)\n\n(?:\*[^\n]*\*\n\n)?',
    lambda found: found[0] if found[1] in _PICTURES else '',
    page,
  )


def _copy_items(folder: pathlib.Path) -> None:
  for at in map(registry.folder_of, registry.ITEMS):
    source, target = folder / at, _RESULTS / at
    if not (source / 'item.json').is_file():
      continue
    target.mkdir(parents=True, exist_ok=True)
    pictures = [
      f'{x}.png' for x in io.read_json(source / 'item.json')['figures']
    ]
    for file in ('item.json', *pictures):
      shutil.copyfile(source / file, target / file)


def _shrink_pictures(folder: pathlib.Path) -> None:
  """Writes pictures in 128 colours, in which they take a third of the bytes."""
  for path in sorted(folder.rglob('*.png')):
    with Image.open(path) as picture:
      if picture.mode == 'P':
        continue
      shrunk = picture.convert('RGB').quantize(128, dither=Image.Dither.NONE)
    save = functools.partial(shrunk.save, format='png', optimize=True)
    io.write_atomically(path, save)


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is not a flag; see --help.')
  for run in _RUN.value:
    name, _, workdir = run.partition('=')
    if not workdir:
      raise app.UsageError(f'--run={run!r}; give NAME=WORKDIR.')
    report.write_report(workdir)
    _copy_run(pathlib.Path(workdir), _RUNS / name)
  if _GAUSSIAN.value:
    source = pathlib.Path(_GAUSSIAN.value)
    shutil.copyfile(source, _RUNS / 'gaussian.json')
    shutil.copyfile(source.with_suffix('.png'), _RUNS / 'gaussian.png')
  for folder in _ITEMS.value:
    _copy_items(pathlib.Path(folder))
  _shrink_pictures(_ROOT / 'docs')
  for name, text in (splice_pages() | format_results()).items():
    io.write_text(_ROOT / name, text)


if __name__ == '__main__':
  app.run(main)
