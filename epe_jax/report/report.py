"""The reports of a finished audit, made from the files of its run.

`format_summary` is what a terminal shows first, `format_report` has every estimate,
and `write_report` writes report.md, report.html, audit_card.json and the figures. None of them needs the data, the
model or the code of the training run: a directory with result.json,
private/scores.npz and private/metrics.jsonl is enough.
"""

import dataclasses
import os
import pathlib

from epe_jax import extras, io
from epe_jax.audit.evaluation import SIGNIFICANCE, Attack, Audit
from epe_jax.audit.headline import find_headline, format_headline
from epe_jax.experiment import workdirs
from epe_jax.experiment.finished_runs import load_finished_run
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import facts, markdown, run_tables, sentences
from epe_jax.text import audit_notes, cells, methods, summary_table, tables

_SECTIONS = (
  ('Point estimates: no guarantee', 'point estimate', None),
  ('Lower bounds, no shape assumed', 'confidence bound', True),
  (
    'Lower bounds if scores or mechanism have the assumed shape',
    'confidence bound',
    False,
  ),
  ('Credible bounds: beliefs, no lower bounds', 'credible bound', None),
)


def format_summary(result: RunResult) -> str:
  """The headline, one line for each attacker, a verdict, and notes on the numbers.

  An estimate that is not calibrated is left out, and the line says so.

  Args:
    result: what result.json holds.

  Returns:
    Text without a final newline, of at most 100 columns.
  """
  parts = [tables.fill_paragraph(sentences.describe_run(result))]
  if result.is_audited:
    headline = find_headline(result.audit)
    if headline is not None:
      parts.append(tables.fill_paragraph(format_headline(headline)))
    if whose := sentences.describe_participation(result):
      parts.append(tables.fill_paragraph(whose))
    parts.append(
      summary_table.format_summary_table(
        result.audit,
        # Results from before every attacker had one have that of the strongest.
        worst_case_epsilon=facts.find_analytic_epsilon(result),
        participations=facts.count_participations(result),
      )
    )
  said = sentences.give_verdict(result)
  said += audit_notes.format_further_remarks(result.audit)
  parts.append(_format_list(said))
  return '\n\n'.join(parts)


def format_report(result: RunResult) -> str:
  """Every estimate, under its attacker, and paragraphs on what they mean.

  Args:
    result: what result.json holds. Every number comes from it; those that are
      not finite may be strings, since JSON has none.

  Returns:
    Text without a final newline, of at most 100 columns.
  """
  paragraphs = [sentences.describe_run(result), f'Data: {result.data}.']
  paragraphs += [
    f'Analytic ε = {cells.format_number(analytic.epsilon)} for {analytic.who}: {analytic.assumes}.'
    for analytic in facts.list_analytic_epsilons(result)
  ]
  if whose := sentences.describe_participation(result):
    paragraphs.append(whose)
  if result.amplification:
    paragraphs.append(f'Amplified by sampling: {result.amplification}.')
  lines = [
    *map(tables.fill_paragraph, paragraphs),
    *run_tables.format_groups(result.audit.attacks),
    '',
    _format_list(sentences.narrate(result)),
  ]
  return '\n'.join(lines)


def format_headline_estimates(audit: Audit, *, markdown: bool = False) -> str:
  """The headline, one line for each attacker if there are several, and warnings.

  Args:
    audit: what `audit.evaluate` or `evaluate_scores` returns.
    markdown: whether tables are in Markdown instead of text.

  Returns:
    Text without a final newline.
  """
  headline = find_headline(audit)
  if headline is None:
    return format_estimates(audit, markdown=markdown)
  attack, line = headline.attack, format_headline(headline)
  parts = [f'**{line}**' if markdown else tables.fill_paragraph(line)]
  if len(audit.attacks) > 1:
    if markdown:
      table = summary_table.make_summary_table(audit)
      parts.append(tables.format_markdown(table))
    else:
      parts.append(summary_table.format_summary_table(audit))
  notes = [
    f'{attack.threat_model.who}; {attack.num_observed:,} canaries took part, '
    f'{attack.num_unobserved:,} did not.',
    'The bound was fixed before any score was seen: '
    f'{methods.describe_method(headline.bound)}. --all shows the others; the '
    'largest of several bounds is not a bound.',
    *audit_notes.format_remarks(audit),
  ]
  if audit.is_simultaneous:
    level = 100 * (1 - SIGNIFICANCE)
    notes.append(f'All bounds hold together at {level:g} %.')
  return '\n\n'.join([*parts, _format_list(notes)])


def format_estimates(audit: Audit, *, markdown: bool = False) -> str:
  """Estimates without a run around them: point estimates first, then bounds.

  Args:
    audit: what `audit.evaluate` returns.
    markdown: whether tables are in Markdown instead of text.

  Returns:
    Text without a final newline.
  """
  delta = audit.attacks[0].first.delta
  parts = [f'δ = {cells.format_delta(delta)}']
  for title, kind, is_shape_free in _SECTIONS:
    attacks = _select_estimates(audit, kind, is_shape_free)
    if not attacks:
      continue
    if markdown:
      table = tables.format_markdown(run_tables.make_estimate_table(attacks))
      parts.append(f'## {title}\n\n{table}')
    else:
      groups = run_tables.format_groups(attacks)
      parts.append('\n'.join([title, '=' * len(title), *groups]))
  notes = audit_notes.format_remarks(audit)
  if audit.headline is not None:
    notes.insert(0, _explain_headline(audit))
  parts.append(_format_list(notes))
  return '\n\n'.join(parts)


def write_report(workdir: str | os.PathLike[str]) -> pathlib.Path:
  """Writes report.md, report.html, audit_card.json and the figures of a run.

  The report of a run without canaries shows how it trained, and needs no scores.

  Args:
    workdir: the directory of a finished run.

  Returns:
    The path of report.md.

  Raises:
    FileNotFoundError: a file of the run is missing.
    ModuleNotFoundError: a package of the extra `reports` is missing.
    ValueError: a file is damaged, or of another version of this library.
  """
  # Here and not above: estimates are printed where Matplotlib is missing.
  with extras.explain_missing():
    from epe_jax.report import audit_card, html
    from epe_jax.report.figures import of_run, pictures

  run, files = load_finished_run(workdir), workdirs.workdir_at(workdir)
  result = dataclasses.replace(
    run.result,
    data=io.hide_paths(run.result.data),
    config=io.hide_paths(run.result.config),
  )
  figures = of_run.draw_run(result, run.record, run.history)
  captions = {name: of_run.CAPTIONS[name] for name in figures}
  warnings = sentences.describe_overflow(run.history)
  text = markdown.format_page(result, captions, warnings)
  # report.md says that all of them are there: it goes first and comes last.
  files.report.unlink(missing_ok=True)
  drawn = {
    name: pictures.write_figure(figure, files.folder / name)
    for name, figure in figures.items()
  }
  page_path = files.report.with_suffix('.html')
  io.write_text(page_path, html.format_html(result, drawn, captions, warnings))
  if result.is_audited:
    card = audit_card.make_card(result, record=run.record)
    audit_card.write_card(files.folder / audit_card.FILE, card)
  io.write_text(files.report, text)
  return files.report


def _select_estimates(
  audit: Audit, kind: str, is_shape_free: bool | None
) -> list[Attack]:
  """Attackers with their estimates of a kind alone; without those of none."""
  attacks = []
  for attack in audit.attacks:
    estimates = tuple(
      estimate
      for estimate in attack.estimates
      if estimate.kind == kind
      and is_shape_free in (None, estimate.is_shape_free)
    )
    if estimates:
      attacks.append(
        dataclasses.replace(attack, estimates=estimates, doubts=())
      )
  return attacks


def _explain_headline(audit: Audit) -> str:
  """Which bound was fixed before any score was computed."""
  assert audit.headline is not None
  attack, bound = audit.headline
  assert bound.confidence is not None, 'bounds have one'
  text = (
    f'The bound to report, fixed before looking: '
    f'{methods.describe_method(bound)}, '
    f'{attack.threat_model.statistic}, ε ≥ '
    f'{cells.format_epsilon(bound)} at '
    f'{100 * bound.confidence:.6g} %. '
  )
  if audit.is_simultaneous:
    level = 100 * (1 - SIGNIFICANCE)
    return f'{text}All bounds hold together at {level:g} %.'
  return (
    f'{text}The largest of several bounds is not a bound; --simultaneous makes all '
    'of them hold together.'
  )


def _format_list(paragraphs: list[str]) -> str:
  return '\n'.join(
    tables.fill_paragraph(paragraph, bullet='- ') for paragraph in paragraphs
  )
