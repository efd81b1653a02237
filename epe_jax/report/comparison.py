"""Runs beside each other: the ε of each attacker, and its difference from the first.

One card for the runs of a person, the points of a sweep and those of a sweep over
seeds. Estimates have intervals, and so have differences.
"""

from collections.abc import Mapping, Sequence
import math
import os
import pathlib
from typing import NamedTuple

from epe_jax import extras, io
from epe_jax.audit import threat_models
from epe_jax.audit.headline import find_headline
from epe_jax.audit.threat_models import ThreatModel
from epe_jax.epsilon.types import Estimate
from epe_jax.experiment import finished_runs
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import facts
from epe_jax.text import audit_notes, cells, tables

CAPTION = (
  'Left, what each attacker is found to learn in each run: estimates with 90 % '
  'intervals, what the same estimator reports when nothing leaks in grey, lower bounds '
  'as ticks and the analytic ε dashed. Right, the difference of the estimates from '
  'those of the first run, with 90 % intervals.'
)
"""What the figure of a comparison shows."""

_NOTES = (
  'Estimates are point estimates with 90 % intervals, not bounds. Differences are from '
  'the first run, with a 90 % interval for the variation between canaries (Zou and '
  'Donner 2008). It assumes independent estimates; those of equal seeds are not.',
  'Runs of one config differ too, so a difference between two runs need not come from '
  'their settings. Use several seeds of each '
  '(`epe-jax estimate A B C`, `epe-jax sweep --seeds`).',
)


class Compared(NamedTuple):
  """A run, or several of one config, among others.

  Attributes:
    label: its name.
    delta: of every ε.
    headline: the lower bound of the strongest attacker, with who that is; None
      where there is none.
    estimates: attacker -> its first point estimate with a 90 % interval, which
      carries its floor; without those that have none.
    bounds: attacker -> its pre-declared lower bound.
    analytic: ε that the mechanism allows; nan if it is not known.
    remarks: warnings and notes on the numbers, a sentence each.
  """

  label: str
  delta: float
  headline: tuple[ThreatModel, Estimate] | None
  estimates: Mapping[ThreatModel, Estimate]
  bounds: Mapping[ThreatModel, Estimate]
  analytic: float
  remarks: Sequence[str] = ()


class Difference(NamedTuple):
  """By how much one ε is above another, with a two-sided interval."""

  epsilon: float
  interval: tuple[float, float] | None


def describe_run(label: str, result: RunResult) -> Compared:
  """A finished run among others.

  Args:
    label: its name.
    result: what its result.json holds; a run that was not audited has no estimates.
  """
  attacks = {attack.threat_model: attack for attack in result.audit.attacks}
  headline = find_headline(result.audit)
  return Compared(
    label,
    result.delta,
    headline and (headline.attack.threat_model, headline.bound),
    {
      one: attack.first_with_interval
      for one, attack in attacks.items()
      if one.is_shift
    },
    {one: attack.bounds[0] for one, attack in attacks.items() if attack.bounds},
    facts.find_analytic_epsilon(result),
    audit_notes.format_remarks(result.audit),
  )


def list_attackers(runs: Sequence[Compared]) -> list[ThreatModel]:
  """The attackers that any of the runs has an estimate of, the weakest first."""
  return threat_models.sort_by_strength(
    attacker for run in runs for attacker in run.estimates
  )


def subtract(estimate: Estimate, first: Estimate) -> Difference:
  """The difference of two estimates, with an interval from both of theirs.

  The distance of a limit from its estimate stands for a standard error on that side;
  those of independent estimates add up in squares (MOVER).

  Args:
    estimate: with an interval, or without.
    first: from which it is counted, at the same δ.

  Returns:
    The difference; without an interval where one of the estimates has none.

  Raises:
    ValueError: they are of different δ.

  Reference: Zou and Donner, "Construction of confidence limits about effect measures:
  a general approach" (2008), equation (2).

  >>> one, other = (
  ...   Estimate(e, 1e-5, 'any', None, interval=(e - 3, e + 4)) for e in (9.0, 20.0)
  ... )
  >>> subtract(other, one)
  Difference(epsilon=11.0, interval=(6.0, 16.0))
  """
  if estimate.delta != first.delta:
    raise ValueError(
      f'delta={estimate.delta} and {first.delta}: ε of different δ have no '
      'difference; compare runs of one δ (config.audit.delta).'
    )
  there, here = float(estimate.epsilon), float(first.epsilon)
  if not (math.isfinite(there) and math.isfinite(here)):
    return Difference(math.nan, None)
  if estimate.interval is None or first.interval is None:
    return Difference(there - here, None)
  (low, high), (low0, high0) = estimate.interval, first.interval
  below = math.hypot(there - low, high0 - here)
  above = math.hypot(high - there, here - low0)
  difference = there - here
  return Difference(difference, (difference - below, difference + above))


def is_comparable(runs: Sequence[Compared]) -> bool:
  """Whether `check_comparable` has nothing against them, and one has estimates."""
  return (
    len(runs) > 1
    and len({run.delta for run in runs}) == 1
    and any(run.estimates for run in runs)
  )


def check_comparable(runs: Sequence[Compared]) -> None:
  """Raises a ValueError unless there are two runs or more, all at one δ."""
  if len(runs) < 2:
    raise ValueError(f'{len(runs)} run is given; give two or more.')
  deltas = {run.delta for run in runs}
  if len(deltas) > 1:
    listed = ', '.join(f'{run.label}: {run.delta:.3g}' for run in runs)
    raise ValueError(
      f'runs differ in δ ({listed}), and ε of different δ do not compare; give '
      'runs of one δ (config.audit.delta).'
    )


def make_table(runs: Sequence[Compared]) -> tables.Table:
  """A line for each attacker and run: estimate, floor, bound and difference.

  Args:
    runs: two or more at one δ, the first to compare with.
  """
  first, body = runs[0], []
  for attacker in list_attackers(runs):
    for run in runs:
      if attacker in run.estimates:
        difference = None
        if run is not first and attacker in first.estimates:
          difference = subtract(
            run.estimates[attacker], first.estimates[attacker]
          )
        body.append(_list_cells(run, attacker, difference))
  notes = [
    *_NOTES,
    *cells.explain_rejected(cell for line in body for cell in line),
    *(f'{run.label}: {text}' for run in runs for text in run.remarks),
  ]
  head = (
    'attacker',
    'run',
    'ε [90 % interval]',
    'floor 5-95 %',
    'bound, 95 %',
    'difference [90 % interval]',
  )
  delta = cells.format_delta(first.delta)
  return tables.Table(f'ε at δ = {delta}', head, body, notes)


def make_headline_table(runs: Sequence[Compared]) -> tables.Table:
  """A line for each run: the bound that the design fixed, and for whom."""
  body = [
    [
      run.label,
      *(
        ('-', '-')
        if run.headline is None
        else (
          f'≥ {cells.format_epsilon(run.headline[1])}',
          run.headline[0].name,
        )
      ),
      cells.format_number(run.analytic),
    ]
    for run in runs
  ]
  head = ('run', 'lower bound, 95 %', 'attacker', 'analytic ε')
  return tables.Table('', head, body)


def find_title(runs: Sequence[Compared]) -> str:
  """What was found of the strongest attacker that all runs have, in one line."""
  shared = [
    attacker
    for attacker in list_attackers(runs)
    if all(attacker in run.estimates for run in runs)
  ]
  if not shared:
    return 'No attacker was estimated in all runs'
  attacker = shared[-1]
  epsilons = {run.label: run.estimates[attacker] for run in runs}
  low = min(epsilons, key=lambda label: float(epsilons[label].epsilon))
  high = max(epsilons, key=lambda label: float(epsilons[label].epsilon))
  return (
    f'{attacker.name}: ε ≈ {cells.format_epsilon(epsilons[low])} ({low}) to '
    f'{cells.format_epsilon(epsilons[high])} ({high})'
  )


def write_comparison(
  folder: str | os.PathLike[str], runs: Sequence[Compared], *, name: str
) -> str:
  """Writes NAME.md, NAME.html and the figure of a comparison, NAME.png and .svg.

  Args:
    folder: where the files go.
    runs: two or more at one δ, the first to compare with.
    name: of the files, without an ending.

  Returns:
    The tables as text, without a final newline.

  Raises:
    ValueError: there are fewer than two runs, or they are of several δ.
  """
  # Here and not above: tables need neither.
  with extras.explain_missing():
    from epe_jax.report import html
    from epe_jax.report.figures import compared, pictures

  check_comparable(runs)
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  title = find_title(runs)
  both = [make_headline_table(runs), make_table(runs)]
  figure = compared.draw_compared(runs, finding=title)
  file = f'{name}.png'
  svg = pictures.write_figure(figure, folder / file)
  parts = [f'# {title}', *map(tables.format_markdown, both)]
  parts.append(f'![{CAPTION}]({file})')
  text = tables.escape_html('\n\n'.join(parts))
  io.write_text(folder / f'{name}.md', f'{text}\n')
  page = html.render_page(
    'comparison.html.jinja',
    title=title,
    headlines=both[0],
    table=both[1],
    figures=[html.make_figure(file, svg, CAPTION)],
  )
  io.write_text(folder / f'{name}.html', page)
  return '\n\n'.join(map(tables.format_text, both))


def compare_workdirs(
  workdirs: Sequence[str | os.PathLike[str]],
) -> list[Compared]:
  """Finished runs by their workdirs, each called by as much of its path as it takes.

  Raises:
    FileNotFoundError: a workdir has no finished run.
    ValueError: a workdir is given twice, or a file is damaged.
  """
  paths = [pathlib.Path(workdir).resolve() for workdir in workdirs]
  for path in paths:
    if paths.count(path) > 1:
      raise ValueError(f'{path} is given more than once; give it once.')
  return [
    describe_run(label, finished_runs.load_result(path))
    for label, path in zip(_shorten(paths), paths)
  ]


def _shorten(paths: Sequence[pathlib.Path]) -> list[str]:
  """The last folders of each path, as many as tell all apart."""
  depth = 1
  while True:
    labels = ['/'.join(path.parts[-depth:]) for path in paths]
    if len(set(labels)) == len(paths):
      return labels
    depth += 1


def _list_cells(
  run: Compared, attacker: ThreatModel, difference: Difference | None
) -> list[str]:
  estimate, bound = run.estimates[attacker], run.bounds.get(attacker)
  text = '-'
  if difference is not None and math.isfinite(difference.epsilon):
    text = _format_signed(difference.epsilon)
    if difference.interval is not None:
      low, high = map(_format_signed, difference.interval)
      text += f' [{low}, {high}]'
  return [
    attacker.name,
    run.label,
    cells.format_with_interval(estimate),
    cells.format_floor(estimate) or '-',
    '-' if bound is None else f'≥ {cells.format_epsilon(bound)}',
    text,
  ]


def _format_signed(value: float) -> str:
  text = cells.format_number(value)
  return text if value < 0 else f'+{text}'
