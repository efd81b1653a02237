"""The reports of a finished audit, made from the files of its run.

`format_summary` is the page that everybody reads, `format_report` has the appendix
too, and `write_report` writes report.html, report.md and the figures.
None of them needs the data, the model or the code of the training run: a directory with
result.json, private/scores.npz and private/metrics.jsonl is enough.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import json
import os
import pathlib
import shlex

from epe_jax import extras, io
from epe_jax.audit.results import Audit
from epe_jax.experiment import workdirs
from epe_jax.experiment.finished_runs import load_finished_run
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import (
  audit_notes,
  first_page,
  leaks,
  page,
  provenance,
  run_tables,
  sentences,
  tables,
)
from epe_jax.report.leaks import Leak
from epe_jax.report.page import Page
from epe_jax.report.provenance import Provenance


def format_summary(
  result: RunResult, belongs_to: Provenance | None = None
) -> str:
  """The first page of a report, as a terminal shows it."""
  return page.render_text(make_page(result, belongs_to=belongs_to))


def format_report(
  result: RunResult, belongs_to: Provenance | None = None
) -> str:
  """The first page and the appendix: every estimate, and what it rests on."""
  content = make_page(result, belongs_to=belongs_to)
  return page.render_text(content, has_appendix=True)


def format_headline_estimates(audit: Audit) -> str:
  """The first page of an audit without a run."""
  return page.render_text(make_audit_page(audit))


def format_estimates(audit: Audit) -> str:
  """The first page of an audit without a run, and every estimate."""
  return page.render_text(make_audit_page(audit), has_appendix=True)


def make_page(
  result: RunResult,
  captions: Mapping[str, str] = {},
  belongs_to: Provenance | None = None,
) -> Page:
  """The report of a run."""
  kind = 'Privacy audit' if result.is_audited else 'Training run, not audited'
  first, others = _make_figures(captions)
  found = leaks.find_leaks(result)
  config = json.dumps(result.config, indent=2, ensure_ascii=False)
  appendix = {
    'Every attacker': _list_attackers(result, found),
    'What an attacker can do': _state_risks(result),
    'Figures': others,
    'Assumptions': [page.make_list(sentences.list_assumptions(result))],
    'Every estimate': _list_estimates(result.audit),
    'Settings': [
      tables.format_plain_markdown(run_tables.make_settings_table(result)),
      page.make_code('Every field of the config:', config, 'json'),
    ],
    'Commands': [
      page.make_code(
        about, code, 'python' if code.startswith('import') else 'sh'
      )
      for about, code in list_commands(result)
    ],
  }
  blocks = first_page.make_blocks(
    result,
    found,
    belongs_to or Provenance(result.date),
    figure=first,
  )
  return page.define_words(Page(f'{kind}: {result.task}', blocks, appendix))


def make_audit_page(
  audit: Audit,
  captions: Mapping[str, str] = {},
  *,
  title: str = '',
  design: str = '',
) -> Page:
  """The report of an audit without a run: of scores from any system, or of a record."""
  first, others = _make_figures(captions)
  notes = [f'Warning: {x}.' for x in audit_notes.list_other_warnings(audit)]
  # Those of one attacker are on the first page.
  if len(audit.attacks) > 1:
    notes += [f'Note: {x}.' for x in audit_notes.list_notes(audit)]
  appendix = {
    'Notes': [page.make_list(notes)],
    'Every estimate': _list_estimates(audit),
    'Figures': others,
  }
  blocks = first_page.make_audit_blocks(audit, design=design, figure=first)
  return page.define_words(Page(title, blocks, appendix))


def write_report(workdir: str | os.PathLike[str]) -> pathlib.Path:
  """Writes report.html, report.md and the figures of a run.

  The report of a run without canaries shows how it trained, and needs no scores.

  Args:
    workdir: the directory of a finished run.

  Returns:
    The path of report.md, which is written last.

  Raises:
    FileNotFoundError: a file of the run is missing.
    ModuleNotFoundError: a package of the extra `reports` is missing.
    ValueError: a file is damaged, or of another version of this library.
  """
  # Here and not above: estimates are printed where Matplotlib is missing.
  with extras.explain_missing():
    from epe_jax.report import html
    from epe_jax.report.figures import of_audit

  files = workdirs.workdir_at(workdir)
  run = load_finished_run(workdir)
  result = dataclasses.replace(
    run.result,
    data=io.hide_paths(run.result.data),
    config=io.hide_paths(run.result.config),
  )
  belongs_to = provenance.identify_run(result, model=files.model)
  figures = of_audit.draw_run(result, run.record, run.history)
  content = make_page(
    result,
    {name: of_audit.CAPTIONS[name] for name in figures},
    belongs_to,
  )
  # report.md says that all of them are there: it comes last, and until then the one
  # before is out of date.
  if files.report.exists():
    os.utime(files.report, (0, 0))
  return html.write_page(files.folder, files.report.stem, content, figures)


def _make_figures(captions: Mapping[str, str]) -> tuple[str, list[str]]:
  """The first figure, which everybody sees, and the others."""
  first, *others = [*itertools.starmap(page.make_figure, captions.items())] or [
    ''
  ]
  return first, others


def _list_estimates(audit: Audit) -> list[str]:
  made = run_tables.make_estimate_tables(audit.attacks)
  return [*map(tables.format_plain_markdown, made)]


def _list_attackers(result: RunResult, found: Sequence[Leak]) -> list[str]:
  """All attackers with ranges of their estimates, and notes on these."""
  if not result.is_audited:
    return []
  headline = result.audit.headline
  table = run_tables.make_summary_table(
    result.audit,
    participations=leaks.count_participations(result),
  )
  marked = headline and result.audit.attacks.index(headline.attack)
  return [
    tables.format_plain_markdown(table, marked_row=marked),
    page.make_list(first_page.list_other_notes(result, found)),
  ]


def _state_risks(result: RunResult) -> list[str]:
  """The risks of a person, and what to know of their numbers."""
  table = run_tables.make_risk_table(
    result.audit.attacks, leaks.count_participations(result)
  )
  if table is None:
    return []
  return [
    tables.format_plain_markdown(table),
    page.make_paragraph(sentences.ABOUT_RISKS),
  ]


def list_commands(result: RunResult) -> list[tuple[str, str]]:
  """The purpose and the text of each command that reproduces a run."""
  again = 'To repeat the run in a new directory'
  if not result.is_simulation:
    again += ' (with new noise and clients)'
  if result.argv is None:
    training = (
      f'{again}, from the config in its workdir:',
      'import json\n'
      'from ml_collections import config_dict\n'
      'from epe_jax.experiment import audited_run\n\n'
      "with open('WORKDIR/config.json') as file:\n"
      '  config = config_dict.ConfigDict(json.load(file))\n'
      "audited_run.run(config, 'NEW')",
    )
  else:
    training = f'{again}:', _write_command(result.argv)
  return [
    training,
    (
      'To write this page and its figures again, without training:',
      'epe-jax report WORKDIR',
    ),
  ]


def _write_command(argv: Sequence[str]) -> str:
  """The command line of a run, with a line per flag."""
  text = 'epe-jax run'
  for word in (*argv, '--workdir=NEW'):
    text += (' \\\n  ' if word.startswith('-') else ' ') + shlex.quote(word)
  return text
