"""report.md: a finished run as a page."""

from collections.abc import Mapping, Sequence
import json

from epe_jax.audit.headline import find_headline, format_headline
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import facts, reproduction, run_tables, sentences
from epe_jax.text import audit_notes, summary_table, tables


def format_page(
  result: RunResult, captions: Mapping[str, str], warnings: Sequence[str] = ()
) -> str:
  """The page of a run: facts, estimates, what they mean, figures, how to repeat.

  Args:
    result: what result.json holds.
    captions: file name -> caption of each figure, in their order.
    warnings: of its training, as `overflow.describe_overflow` gives them.

  Returns:
    Markdown that ends in a newline.
  """
  images = [f'![{text}]({name})\n\n*{text}*' for name, text in captions.items()]
  if result.is_audited:
    title = f'Privacy audit: {result.task}'
    table = run_tables.make_estimate_table(result.audit.attacks)
    estimates = ['## Estimates', tables.format_markdown(table)]
    risks = run_tables.make_risk_table(
      result.audit.attacks, facts.count_participations(result)
    )
    if risks is not None:
      estimates += [
        '## What it means for a person',
        sentences.ABOUT_RISKS,
        tables.format_markdown(risks),
      ]
      estimates += filter(
        None, [sentences.explain_regret(result.audit.attacks)]
      )
  else:
    title, estimates = f'Training run: {result.task}, not audited', []
  parts = [
    f'# {title}',
    *_format_headline(result),
    *(f'**Warning:** {warning}' for warning in warnings),
    *_summarize_attackers(result),
    *audit_notes.format_remarks(result.audit),
    tables.format_markdown(run_tables.make_settings_table(result)),
    *estimates,
    '## In words',
    '\n'.join(f'- {paragraph}' for paragraph in sentences.narrate(result)),
    '## Figures',
    *images,
    '## How to reproduce',
    _explain_reproduction(result),
  ]
  return tables.escape_html('\n\n'.join(parts)) + '\n'


def _format_headline(result: RunResult) -> list[str]:
  headline = find_headline(result.audit)
  if headline is None:
    return []
  who = headline.attack.threat_model.who
  return [f'**{format_headline(headline)}**', f'{who}.']


def _summarize_attackers(result: RunResult) -> list[str]:
  """The first table: what canaries show, and what follows for a client."""
  if not result.is_audited:
    return []
  table = summary_table.make_summary_table(
    result.audit,
    worst_case_epsilon=facts.find_analytic_epsilon(result),
    participations=facts.count_participations(result),
  )
  whose = sentences.describe_participation(result)
  return [*filter(None, [whose]), tables.format_markdown(table)]


def _explain_reproduction(result: RunResult) -> str:
  config = json.dumps(result.config, indent=2, ensure_ascii=False)
  parts = []
  for text, code in reproduction.list_commands(result):
    language = 'python' if code.startswith('import') else 'sh'
    parts.append(f'{text}\n\n```{language}\n{code}\n```')
  parts.append(f'Every field of the config:\n\n```json\n{config}\n```')
  return '\n\n'.join(parts)
