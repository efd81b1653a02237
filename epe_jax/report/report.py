"""What a person reads of a finished audit, made from the files of its run.

`format_summary` is what a terminal shows first, `format_report` has every estimate,
and `write_report` writes report.md and its figures. None of them needs the data, the
model or the code of the training run: a directory with result.json,
private/scores.npz and private/metrics.jsonl is enough.
"""

import functools
import os
import pathlib

from epe_jax import extras, io
from epe_jax.audit import summary_table
from epe_jax.audit.estimates import SIGNIFICANCE, Attack, Audit
from epe_jax.experiment import workdirs
from epe_jax.experiment.finished_runs import load_finished_run
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import estimate_table, facts, narrative, page, verdict
from epe_jax.text import cells, tables

_SECTIONS = (
  ('Point estimates: no guarantee', 'point estimate', None),
  ('Lower bounds, no shape assumed', 'confidence bound', True),
  (
    'Lower bounds if scores or mechanism have the assumed shape',
    'confidence bound',
    False,
  ),
  ('Credible bounds: beliefs, not frequencies', 'credible bound', None),
)


def format_summary(result: RunResult) -> str:
  """One line for each attacker, and a verdict of three sentences.

  An estimate that is not calibrated is left out, and the line says so.

  Args:
    result: what result.json holds.

  Returns:
    Text without a final newline, of at most 100 columns.
  """
  parts = [tables.fill_paragraph(facts.describe_run(result))]
  if result.is_audited:
    # Results from before every attacker had one have that of the strongest alone.
    worst_case = facts.find_analytic_epsilon(result)
    parts.append(
      summary_table.format_summary_table(
        result.audit, worst_case_epsilon=worst_case
      )
    )
  parts.append(_format_list(verdict.give_verdict(result)))
  return '\n\n'.join(parts)


def format_report(result: RunResult) -> str:
  """Every estimate, under its attacker, and paragraphs on what they mean.

  Args:
    result: what result.json holds. Every number comes from it; those that are
      not finite may be strings, since JSON has none.

  Returns:
    Text without a final newline, of at most 100 columns.
  """
  paragraphs = [facts.describe_run(result), f'Data: {result.data}.']
  paragraphs += [
    f'Analytic ε = {analytic.epsilon} for {analytic.who}: {analytic.assumes}.'
    for analytic in facts.list_analytic_epsilons(result)
  ]
  if result.amplification:
    paragraphs.append(f'Amplified by sampling: {result.amplification}.')
  lines = [
    *map(tables.fill_paragraph, paragraphs),
    *estimate_table.format_groups(result.audit.attacks),
    '',
    _format_list(narrative.narrate(result)),
  ]
  return '\n'.join(lines)


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
      table = tables.format_markdown(estimate_table.make_table(attacks))
      parts.append(f'## {title}\n\n{table}')
    else:
      groups = estimate_table.format_groups(attacks)
      parts.append('\n'.join([title, '=' * len(title), *groups]))
  notes = [
    f'{attack.threat_model.statistic}: {doubt}.'
    for attack in audit.attacks
    for doubt in attack.doubts
  ]
  if audit.headline is not None:
    notes.insert(0, _explain_headline(audit))
  parts.append(_format_list(notes))
  return '\n\n'.join(parts)


def write_report(workdir: str | os.PathLike[str]) -> pathlib.Path:
  """Writes report.md and the figures that `figures.of_run` draws.

  The report of a run without canaries shows how it trained, and needs no scores.

  Args:
    workdir: the directory of a finished run.

  Returns:
    The path of report.md.

  Raises:
    FileNotFoundError: a file of the run is missing.
    ModuleNotFoundError: Matplotlib is missing.
    ValueError: a file is damaged, or of another version of this library.
  """
  # Here and not above: estimates are printed where Matplotlib is missing.
  with extras.explain_missing():
    from epe_jax.report.figures import of_run

  run, files = load_finished_run(workdir), workdirs.workdir_at(workdir)
  figures = of_run.draw_run(*run)
  for name, figure in figures.items():
    save = functools.partial(figure.savefig, format='png', dpi=150)
    io.write_atomically(files.folder / name, save)
  captions = {name: of_run.CAPTIONS[name] for name in figures}
  io.write_text(files.report, page.format_page(run.result, captions))
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
      attacks.append(attack._replace(estimates=estimates, doubts=()))
  return attacks


def _explain_headline(audit: Audit) -> str:
  """Which bound was fixed before any score was computed."""
  assert audit.headline is not None
  attack, bound = audit.headline
  assert bound.confidence is not None, 'bounds have one'
  text = (
    f'The bound to report, fixed before looking: '
    f'{estimate_table.describe_method(bound)}, '
    f'{attack.threat_model.statistic}, ε ≥ '
    f'{cells.format_epsilon(bound)} at '
    f'{100 * bound.confidence:.6g} %. '
  )
  if audit.is_simultaneous:
    level = 100 * (1 - SIGNIFICANCE)
    return f'{text}All bounds hold together at {level:g} %.'
  return (
    f'{text}To choose the largest of the bounds is no bound; --simultaneous makes '
    'all of them hold together.'
  )


def _format_list(paragraphs: list[str]) -> str:
  return '\n'.join(
    tables.fill_paragraph(paragraph, bullet='- ') for paragraph in paragraphs
  )
