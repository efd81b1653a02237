"""The results of all rules, and how they are printed."""

from collections.abc import Collection, Mapping
import dataclasses
import math
from typing import Any

from epe_jax import typed_json
from epe_jax.conformance.causes import CAUSES
from epe_jax.conformance.claim import Claim
from epe_jax.conformance.rule import Finding, Result, Status
from epe_jax.conformance.session import OUT_OF_TIME
from epe_jax.report import cells, tables

SCHEMA_VERSION = 1
"""Of a report as JSON."""
# Fields of a claim that are shown unless they are usual.
_SHOWN = ('adjacency', 'noise', 'norm', 'granularity')
_SHOWN += ('participations', 'min_separation', 'calls_per_release')


@dataclasses.dataclass(frozen=True)
class Report:
  """Results of all rules.

  Attributes:
    claim: what was checked.
    results: one for each rule, most important first.
    delta: δ of every ε.
    epsilon: measured ε of one round at the claim itself, for a client of norm S
      and ordinary weight; None if it was not measured.
    claimed_epsilon: ε of one round with the claimed noise.
    rounds: number of rounds that were run.
    seconds: how long they took.
    resolution: a shortage of noise by this fraction is detected with probability
      99 %; None if noise was not measured.
    num_constant: coordinates that only `constants` sees, as they are constant and
      without noise.
    has_rates: whether coordinates of a tensor have public factors, of sum and noise, by
      which releases were divided.
  """

  claim: Claim
  results: tuple[Result, ...]
  delta: float
  epsilon: float | None
  claimed_epsilon: float
  rounds: int
  seconds: float
  resolution: float | None
  num_constant: int = 0
  has_rates: bool = False

  @property
  def findings(self) -> tuple[Finding, ...]:
    """Findings of the rules that are broken."""
    return tuple(r.finding for r in self.results if r.finding is not None)

  @property
  def passed(self) -> tuple[str, ...]:
    """Rules that hold."""
    return tuple(self._select('passed'))

  @property
  def not_checked(self) -> Mapping[str, str]:
    """Rules that could not be checked, and why; they may be broken."""
    return self._select('not checked')

  @property
  def not_applicable(self) -> Mapping[str, str]:
    """Rules that say nothing of such a claim or mechanism, and why."""
    return self._select('does not apply')

  @property
  def out_of_time(self) -> tuple[str, ...]:
    """Rules that were not checked for lack of time."""
    reasons = self.not_checked.items()
    return tuple(rule for rule, why in reasons if why.startswith(OUT_OF_TIME))

  def _select(self, status: Status) -> Mapping[str, str]:
    return {r.rule: r.measured for r in self.results if r.status == status}

  def to_json(self) -> dict[str, Any]:
    """The report as a JSON value; `io` spells the numbers that are not finite."""
    return {'schema_version': SCHEMA_VERSION} | typed_json.to_plain(self)


def format_report(report: Report) -> str:
  """Formats a report: a line for each rule, then each finding in full.

  Returns:
    Text without a final newline.
  """
  rows = [
    (r.status, r.rule, r.measured + _format_p(r.p_value))
    for r in report.results
  ]
  table = tables.align_columns(rows, '<<<')
  findings = [_format_finding(report, x) for x in report.findings]
  parts = [_summarize(report), table, *findings, _count(report)]
  return '\n\n'.join(parts)


def _format_finding(report: Report, finding: Finding) -> str:
  cause = CAUSES[finding.cause].title or finding.cause.replace('_', ' ')
  lines = [f'{finding.severity.upper()}  {finding.rule}: {cause}']
  texts = [
    finding.measured,
    f'Likely: {finding.likely}',
    f'To do: {finding.cure}',
  ]
  if finding.epsilon is not None:
    epsilon, claimed = map(
      cells.format_number, (finding.epsilon, report.claimed_epsilon)
    )
    where = f', if noise is as short as it is with {finding.at}'
    texts.append(
      f'ε = {epsilon} of one client at δ = {report.delta:g}'
      f'{where * bool(finding.at)}; claimed {claimed}.'
    )
  lines += [tables.fill_paragraph(text, bullet='  ') for text in texts]
  return '\n'.join(lines)


def make_badge(report: Report) -> dict[str, Any]:
  """Makes a badge, as JSON for the endpoint of shields.io.

  It is green only if every rule that applies passed, and counts those that were not
  checked.
  """
  num = len(report.results) - len(report.not_applicable)
  counts = [f'{len(report.passed)} of {num} passed']
  color = 'brightgreen'
  if report.not_checked:
    counts.append(f'{len(report.not_checked)} not checked')
    color = 'blue' if report.passed else 'lightgrey'
  if report.findings:
    counts.insert(1, f'{len(report.findings)} failed')
    only_utility = all(f.severity == 'utility' for f in report.findings)
    color = 'orange' if only_utility else 'red'
  return {
    'schemaVersion': 1,
    'label': 'privacy rules',
    'message': ', '.join(counts),
    'color': color,
  }


ESSENTIAL = 'noise_scale', 'clipping'
"""Rules without which nothing is known of the privacy of a mechanism."""


def check_required(names: Collection[str], rules: Collection[str]) -> None:
  """Checks that all names are those of rules, or 'all'.

  Raises:
    ValueError: some are not.
  """
  unknown = sorted(set(names) - {*rules, 'all'})
  if unknown:
    raise ValueError(
      f'{unknown} are no rules; give some of {", ".join(rules)}, or all.'
    )


def list_missing(report: Report, required: Collection[str]) -> list[str]:
  """Required rules that were not checked; 'all' requires every rule that applies."""
  return [
    rule for rule in report.not_checked if rule in required or 'all' in required
  ]


def _count(report: Report) -> str:
  text = (
    f'{len(report.findings)} failed, {len(report.passed)} passed, '
    f'{len(report.not_checked)} not checked'
  )
  if report.not_checked:
    text += f' ({", ".join(report.not_checked)})'
  if late := len(report.out_of_time):
    text += f', {late} of these for lack of time; raise the budget'
  if report.not_applicable:
    text += f'. Not applicable: {", ".join(report.not_applicable)}'
  return tables.fill_paragraph(f'{text}.')


def _format_p(p: float | None) -> str:
  return '' if p in (None, 0, 1) else f' ({cells.format_p_value(p)})'


def _summarize(report: Report) -> str:
  broken, unchecked = len(report.findings), len(report.not_checked)
  measured, error = 'ε of one round was not measured', ''
  if report.epsilon is not None:
    measured = f'one round has ε = {cells.format_number(report.epsilon)}'
    # More than the claim, and yet no rule of the noise is broken.
    is_above = report.claimed_epsilon < report.epsilon < math.inf
    if is_above and {'noise_scale', 'tensor_noise'} <= {*report.passed}:
      error = ', which is within the error of the measurement'
  claim = report.claim
  text = (
    f'{broken + len(report.passed)} rules checked: {len(report.passed)} passed, '
    f'{broken} failed{f"; {unchecked} not checked" if unchecked else ""}. At the '
    f'claimed settings, with δ = {report.delta:g}, {measured} for an ordinary client; '
    f'ε = {cells.format_number(report.claimed_epsilon)} was claimed'
    f'{" for all its rounds" * (claim.participations > 1)}{error}. '
    f'{report.rounds:,} rounds in {report.seconds:.1f} s.'
  )
  if report.resolution is not None:
    mu = claim.mu / (1 - report.resolution)
    short = claim.compute_epsilon(mu, report.delta)
    text += (
      f' This check would catch noise that is {100 * report.resolution:.2g} % too small '
      f'(ε = {cells.format_number(short)}) 99 times in 100.'
    )
  if report.num_constant:
    text += (
      f' {report.num_constant:,} of {claim.dim:,} coordinates are constant and have no '
      'noise: of all rules, only constants sees them.'
    )
  if report.has_rates:
    text += (
      ' Coordinates of a tensor are released with factors of their own, by which '
      'releases were divided.'
    )
  shapes = ', '.join('x'.join(map(str, x)) or '()' for x in claim.shapes)
  unusual = ''.join(
    f', {field.name} {getattr(claim, field.name)}'
    for field in dataclasses.fields(claim)
    if field.name in _SHOWN and getattr(claim, field.name) != field.default
  )
  head = (
    f'Claim: clip norm {claim.clip_norm:g}, noise multiplier '
    f'{claim.noise_multiplier:g}, {claim.num_clients} clients, {claim.release} of '
    f'tensors {shapes}{unusual}.'
  )
  return tables.fill_paragraph(head) + '\n' + tables.fill_paragraph(text)
