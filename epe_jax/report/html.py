"""report.html: a finished run as one file, which loads nothing."""

from collections.abc import Mapping, Sequence
import json
from typing import Any, NamedTuple

import jinja2
import markupsafe

from epe_jax._version import __version__
from epe_jax.audit import clients
from epe_jax.audit.evaluation import Attack
from epe_jax.audit.headline import Headline, find_headline, format_headline
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import facts, glossary, reproduction, run_tables, sentences
from epe_jax.report.inline_svg import COLORS, inline_svg, name_color
from epe_jax.text import audit_notes, cells

# Facts of a run -> what their numbers are.
_TERMS = {
  'rounds': 'rounds',
  'rounds of a client, at most': 'rounds',
  'parameters d': 'parameters',
  'canaries that took part': 'canary',
  'canaries that did not': 'canary',
  'effective dimension of what was seen': 'dimension',
  'noise': 'noise',
  'δ': 'delta',
  'analytic ε of canaries': 'analytic',
  'analytic ε of clients': 'analytic',
  'analytic ε of canaries and clients': 'analytic',
  'test accuracy': 'accuracy',
  'accuracy of the majority class': 'accuracy',
  'test loss': 'loss',
  'time': 'time',
}


class Figure(NamedTuple):
  """A figure of a page."""

  name: str
  svg: markupsafe.Markup
  caption: str


def format_html(
  result: RunResult,
  pictures: Mapping[str, str],
  captions: Mapping[str, str],
  warnings: Sequence[str] = (),
) -> str:
  """The page of a run.

  Args:
    result: what result.json holds.
    pictures: file name -> SVG of each figure, in their order.
    captions: file name -> what the figure shows.
    warnings: of its training, as `overflow.describe_overflow` gives them.

  Returns:
    HTML that loads nothing, and ends in a newline.
  """
  headline, is_audited = find_headline(result.audit), result.is_audited
  kind = 'Privacy audit' if is_audited else 'Training run, not audited'
  return render_page(
    'report.html.jinja',
    title=f'{kind}: {result.task}',
    run=sentences.describe_run(result),
    headline=headline and split_headline(headline),
    # What alarms stays the last sentence.
    participation=sentences.describe_participation(result),
    verdict=[*warnings, *sentences.give_verdict(result)],
    is_alarm=facts.is_alarming(result),
    attackers=[
      _list_cells(
        attack,
        facts.count_participations(result),
        is_headline=attack is (headline and headline.attack),
      )
      for attack in result.audit.attacks
    ],
    warnings=audit_notes.list_warnings(result.audit),
    notes=audit_notes.list_notes(result.audit),
    delta=cells.format_delta(result.delta),
    figures=[
      make_figure(name, svg, captions[name]) for name, svg in pictures.items()
    ],
    risks=run_tables.make_risk_table(
      result.audit.attacks, facts.count_participations(result)
    )
    if is_audited
    else None,
    risks_explanation=sentences.ABOUT_RISKS,
    facts=[
      (*fact, _TERMS.get(fact[0]))
      for fact in run_tables.make_settings_table(result).body
    ],
    config=json.dumps(result.config, indent=2, ensure_ascii=False),
    assumptions=sentences.list_assumptions(result),
    not_measured=sentences.list_not_measured(result),
    narrative=sentences.narrate(result),
    estimates=run_tables.make_estimate_table(result.audit.attacks)
    if is_audited
    else None,
    reproduction=reproduction.list_commands(result),
  )


def split_headline(headline: Headline) -> dict[str, str]:
  """The bound of a headline, the rest of its line, and of whom it is."""
  return {
    'bound': cells.format_epsilon(headline.bound),
    'text': format_headline(headline).partition(' (')[2].join(('(', '')),
    'who': f'{headline.attack.threat_model.who}.',
  }


def make_figure(file: str, svg: str, caption: str) -> Figure:
  """A figure of a page, by the name of its file."""
  name = file.partition('.')[0]
  return Figure(name, inline_svg(svg, name, caption), caption)


def render_page(template: str, **values: Any) -> str:
  """Fills a template of this package in, with the style of all pages."""
  environment = jinja2.Environment(
    loader=jinja2.PackageLoader('epe_jax.report'),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
  )
  style = environment.get_template('style.css').render(
    light=_declare_colors(0), dark=_declare_colors(1)
  )
  return (
    environment.get_template(template)
    .render(
      **values,
      css=markupsafe.Markup(style),
      version=__version__,
      terms=glossary.TERMS,
      link=glossary.link,
      link_each=glossary.link_each,
      link_numbers=glossary.link_numbers,
    )
    .rstrip()
    + '\n'
  )


def _declare_colors(mode: int) -> markupsafe.Markup:
  return markupsafe.Markup(
    ' '.join(
      f'{name_color(color)}: {shown[mode]};' for color, shown in COLORS.items()
    )
  )


def _list_cells(
  attack: Attack, participations: clients.Participations, *, is_headline: bool
) -> dict[str, Any]:
  """The line of an attacker; what it has not is None."""
  row = cells.format_cells(attack.first)
  analytic = attack.analytic and cells.format_analytic(attack.analytic)
  bounds: Sequence = attack.bounds
  return {
    'name': attack.threat_model.name,
    'who': attack.threat_model.who,
    'is_headline': is_headline,
    'bound': f'≥ {cells.format_epsilon(bounds[0])}' if bounds else None,
    'point': row.epsilon if attack.is_calibrated else None,
    'interval': cells.format_interval(attack.first.interval),
    'floor': cells.format_floor(attack.first),
    'mu': row.mu,
    'analytic': analytic,
    'client': clients.format_client(attack, participations)
    if participations.differ
    else None,
  }
