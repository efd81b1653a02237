"""The reports of a finished audit, made from the files of its run.

`format_summary` is what a terminal shows first, `format_report` has every estimate,
and `write_report` writes report.md, report.html, audit_card.json and the figures. None
of them needs the data, the model or the code of the training run: a directory with
result.json, private/scores.npz and private/metrics.jsonl is enough.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import os
import pathlib

from epe_jax import extras, io
from epe_jax.audit.attack_results import SIGNIFICANCE, Attack, Audit
from epe_jax.epsilon.types import Scores
from epe_jax.experiment import workdirs
from epe_jax.experiment.finished_runs import load_finished_run
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import facts, page, reproduction, run_tables, sentences
from epe_jax.report.page import Cells, Code, Figure, Items, Page, Section, Text
from epe_jax.text import audit_notes, cells, methods, summary_table, tables
from epe_jax.text.headline import format_headline

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
  last = Items(
    sentences.give_verdict(result)
    + audit_notes.format_further_remarks(result.audit)
  )
  blocks = [
    Text(sentences.describe_run(result)),
    *_state_headline(result.audit),
  ]
  return page.render_text(
    Page('', [Section('', [*blocks, *_summarize_attackers(result), last])])
  )


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
    f'Analytic ε = {cells.format_number(analytic.epsilon)} for {analytic.who}: '
    f'{analytic.assumes}.'
    for analytic in facts.list_analytic_epsilons(result)
  ]
  paragraphs += filter(None, [sentences.describe_participation(result)])
  if result.amplification:
    paragraphs.append(f'Amplified by sampling: {result.amplification}.')
  lines = [
    *map(tables.fill_paragraph, paragraphs),
    *run_tables.format_groups(result.audit.attacks),
    '',
    *(
      tables.fill_paragraph(paragraph, bullet='- ')
      for paragraph in sentences.narrate(result)
    ),
  ]
  return '\n'.join(lines)


def format_headline_estimates(audit: Audit, *, markdown: bool = False) -> str:
  """The headline, one line for each attacker if there are several, and warnings.

  Args:
    audit: what `audit.evaluate` or `evaluate_scores` returns.
    markdown: whether the text is Markdown.

  Returns:
    Text without a final newline.
  """
  headline = audit.headline
  if headline is None:
    return format_estimates(audit, markdown=markdown)
  attack = headline.attack
  blocks: list[page.Block] = [*_state_headline(audit)]
  if len(audit.attacks) > 1:
    blocks.append(Cells(summary_table.make_summary_table(audit)))
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
  return _render(Page('', [Section('', [*blocks, Items(notes)])]), markdown)


def format_estimates(audit: Audit, *, markdown: bool = False) -> str:
  """Estimates without a run around them: point estimates first, then bounds.

  Args:
    audit: what `audit.evaluate` returns.
    markdown: whether the text is Markdown.

  Returns:
    Text without a final newline.
  """
  return _render(Page('', _list_estimates(audit)), markdown)


def make_page(
  result: RunResult, captions: Mapping[str, str], warnings: Sequence[str] = ()
) -> Page:
  """The page of a run: what was found, what it means, figures, how to repeat it.

  Args:
    result: what result.json holds.
    captions: file name -> caption of each figure, in their order.
    warnings: of its training, as `sentences.describe_overflow` gives them.
  """
  is_audited = result.is_audited
  kind = 'Privacy audit' if is_audited else 'Training run, not audited'
  verdict = [Text(sentence) for sentence in sentences.give_verdict(result)]
  if facts.is_alarming(result):
    verdict[-1] = verdict[-1]._replace(role='alarm')
  config = json.dumps(result.config, indent=2, ensure_ascii=False)
  return Page(
    f'{kind}: {result.task}',
    [
      Section(
        '',
        [
          Text(sentences.describe_run(result), 'muted'),
          *_state_headline(result.audit, has_attacker=True),
          *(Text(f'Warning: {warning}', 'alarm') for warning in warnings),
          *verdict,
        ],
      ),
      Section(
        'What each attacker learns',
        [*_summarize_attackers(result), *_list_remarks(result.audit)],
        key='attackers',
      ),
      _show_figures(captions),
      Section('What it means for a person', _state_risks(result), key='risks'),
      Section(
        'Settings and data',
        [
          Cells(run_tables.make_settings_table(result)),
          Code('Every field of the config:', config, 'json', is_folded=True),
        ],
        key='settings',
      ),
      Section(
        'What is assumed',
        [Items(sentences.list_assumptions(result))],
        key='assumptions',
      ),
      Section(
        'What was not measured',
        [Items(sentences.list_not_measured(result))],
        key='not-measured',
      ),
      Section('In words', [Items(sentences.narrate(result))], key='words'),
      _show_estimates(result.audit),
      Section(
        'How to reproduce',
        [
          Code(about, code, 'python' if code.startswith('import') else 'sh')
          for about, code in reproduction.list_commands(result)
        ],
        key='reproduce',
      ),
    ],
  )


def make_score_page(
  scores: Scores, audit: Audit, captions: Mapping[str, str]
) -> Page:
  """The page of scores from any system.

  Args:
    scores: of canaries that took part and of those that did not.
    audit: what `audit.evaluate_scores` returns of them.
    captions: file name -> caption of each figure, in their order.
  """
  about = (
    f'{scores.observed.size:,} canaries took part, {scores.unobserved.size:,} did '
    f'not; design {scores.design}.'
  )
  lead = [*_state_headline(audit), Text(about, 'muted')]
  return Page(
    'Privacy audit of scores',
    [
      Section('', lead),
      *_list_estimates(audit),
      _show_figures(captions),
    ],
  )


def write_report(workdir: str | os.PathLike[str]) -> pathlib.Path:
  """Writes report.md, report.html, audit_card.json and the figures of a run.

  The report of a run without canaries shows how it trained, and needs no scores.

  Args:
    workdir: the directory of a finished run. Its result.json is completed if the
      audit has no estimates by round.

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
    from epe_jax.report.figures import of_audit

  files = workdirs.workdir_at(workdir)
  run = load_finished_run(workdir, by_round=True)
  result = dataclasses.replace(
    run.result,
    data=io.hide_paths(run.result.data),
    config=io.hide_paths(run.result.config),
  )
  figures = of_audit.draw_run(result, run.record, run.history)
  content = make_page(
    result,
    {name: of_audit.CAPTIONS[name] for name in figures},
    sentences.describe_overflow(run.history),
  )
  # report.md says that all of them are there: it goes first and comes last.
  files.report.unlink(missing_ok=True)
  if result.is_audited:
    card = audit_card.make_card(result, record=run.record)
    audit_card.write_card(files.folder / audit_card.FILE, card)
  return html.write_page(files.folder, files.report.stem, content, figures)


def _render(content: Page, markdown: bool) -> str:
  render = page.render_markdown if markdown else page.render_text
  return render(content)


def _state_headline(audit: Audit, *, has_attacker: bool = False) -> list[Text]:
  """The bound of an audit with its estimate, and whose it is."""
  headline = audit.headline
  if headline is None:
    return []
  who = f'{headline.attack.threat_model.who}.'
  return [
    Text(format_headline(headline), 'headline'),
    *([Text(who, 'muted')] if has_attacker else []),
  ]


def _summarize_attackers(result: RunResult) -> list[page.Block]:
  """What canaries show, and what follows for a client."""
  if not result.is_audited:
    return []
  headline = result.audit.headline
  marked = headline and result.audit.attacks.index(headline[0])
  table = summary_table.make_summary_table(
    result.audit,
    # Results from before every attacker had one have that of the strongest.
    worst_case_epsilon=facts.find_analytic_epsilon(result),
    participations=facts.count_participations(result),
  )
  whose = sentences.describe_participation(result)
  return [
    *([Text(whose)] if whose else []),
    Cells(table, marked, terms={'ε': 'point-estimate'}),
  ]


def _list_remarks(audit: Audit) -> list[page.Block]:
  return [
    Text(remark, 'alarm' if remark.startswith('Warning') else 'muted')
    for remark in audit_notes.format_remarks(audit)
  ]


def _show_figures(captions: Mapping[str, str]) -> Section:
  return Section(
    'Figures', [Figure(*each) for each in captions.items()], key='figures'
  )


def _state_risks(result: RunResult) -> list[page.Block]:
  """The risks of a person, and what to know of their numbers."""
  if not result.is_audited:
    return []
  attacks = result.audit.attacks
  table = run_tables.make_risk_table(
    attacks, facts.count_participations(result)
  )
  if table is None:
    return []
  regret = sentences.explain_regret(attacks)
  return [
    Text(sentences.ABOUT_RISKS),
    Cells(table),
    *([Text(regret)] if regret else []),
  ]


def _show_estimates(audit: Audit) -> Section:
  blocks = []
  if audit.attacks:
    blocks = [Cells(run_tables.make_estimate_table(audit.attacks))]
  return Section('Every estimate', blocks, key='estimates', is_folded=True)


def _list_estimates(audit: Audit) -> list[Section]:
  """Estimates by their kind, and what to know of them."""
  delta = audit.attacks[0].first.delta
  sections = [Section('', [Text(f'δ = {cells.format_delta(delta)}')])]
  for title, kind, is_shape_free in _SECTIONS:
    attacks = _select_estimates(audit, kind, is_shape_free)
    if attacks:
      text = '\n'.join(run_tables.format_groups(attacks)).removeprefix('\n')
      table = run_tables.make_estimate_table(attacks)
      sections.append(Section(title, [Cells(table, text=text)]))
  notes = audit_notes.format_remarks(audit)
  if audit.headline is not None:
    notes.insert(0, _explain_headline(audit))
  return [*sections, Section('', [Items(notes)])]


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
        dataclasses.replace(attack, estimates=estimates, failed_checks=())
      )
  return attacks


def _explain_headline(audit: Audit) -> str:
  """Which bound was fixed before any score was computed."""
  assert audit.headline is not None
  attack, bound, _ = audit.headline
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
