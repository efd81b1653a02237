"""What the suite reports: a result for each rule, and findings where one breaks."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import math
from typing import Any, Literal, NamedTuple

from epe_jax.conformance.claim import Claim
from epe_jax.epsilon import diagnostics
from epe_jax.text import cells, tables

ALPHA = 1e-5
"""Probability at most with which a rule breaks by chance."""
TOLERANCE = 1e-3
"""Relative error allowed to arithmetic, besides chance."""

Status = Literal['passed', 'broken', 'not checked']


class Finding(NamedTuple):
  """A rule that a mechanism breaks.

  Attributes:
    rule: its key.
    cause: key of the likely cause.
    severity: 'privacy' if a client is protected less than claimed, 'utility' if
      updates are lost, which also hides canaries from audits.
    measured: one sentence, with numbers.
    likely: the likely cause or causes.
    cure: what to do.
    mu: measured distance of a round with a client from one without, in standard
      deviations of the noise; None if this is no matter of privacy.
    epsilon: ε of a Gaussian mechanism with that μ, at the δ of the report.
    at: by what the claim was changed where so much noise is missing; '' if by
      nothing.
  """

  rule: str
  cause: str
  severity: Literal['privacy', 'utility']
  measured: str
  likely: str
  cure: str
  mu: float | None = None
  epsilon: float | None = None
  at: str = ''


class Result(NamedTuple):
  """What came of one rule.

  Attributes:
    rule: its key.
    status: whether it holds.
    measured: what was measured, or why nothing was.
    p_value: probability of such a measurement if the rule holds; None if chance
      has no part in it.
    finding: of a broken rule.
  """

  rule: str
  status: Status
  measured: str
  p_value: float | None = None
  finding: Finding | None = None


def hold(rule: str, measured: str, p_value: float | None = None) -> Result:
  """The result of a rule that holds."""
  return Result(rule, 'passed', measured, p_value)


def break_rule(
  rule: str,
  cause: str,
  measured: str,
  *,
  likely: str,
  cure: str,
  mu: float | None = None,
  p_value: float | None = None,
  severity: Literal['privacy', 'utility'] = 'privacy',
  at: str = '',
) -> Result:
  """The result of a rule that does not hold, with its finding."""
  finding = Finding(rule, cause, severity, measured, likely, cure, mu, at=at)
  return Result(rule, 'broken', measured, p_value, finding)


@dataclasses.dataclass(frozen=True)
class Report:
  """Results of all rules.

  Attributes:
    claim: what was checked.
    results: one for each rule, in order of their worth.
    delta: δ of every ε.
    epsilon: ε of one round that was measured at the claim itself, for a client of
      norm S and ordinary weight; None if it was not.
    claimed_epsilon: ε of one round with the claimed noise.
    rounds: how many rounds were run.
    seconds: how long that took.
    resolution: noise that is too small by this fraction is detected with a
      probability of 99 %; None if noise was not measured.
  """

  claim: Claim
  results: tuple[Result, ...]
  delta: float
  epsilon: float | None
  claimed_epsilon: float
  rounds: int
  seconds: float
  resolution: float | None

  @property
  def findings(self) -> tuple[Finding, ...]:
    """Of the rules that break."""
    return tuple(r.finding for r in self.results if r.finding is not None)

  @property
  def passed(self) -> tuple[str, ...]:
    """Rules that hold."""
    return tuple(r.rule for r in self.results if r.status == 'passed')

  @property
  def not_checked(self) -> Mapping[str, str]:
    """Rules that could not be checked, and why."""
    return {
      r.rule: r.measured for r in self.results if r.status == 'not checked'
    }

  def to_json(self) -> dict[str, Any]:
    """All of it as JSON has it."""
    body = dataclasses.asdict(self)
    body['results'] = [
      result._asdict()
      | {'finding': result.finding and result.finding._asdict()}
      for result in self.results
    ]
    return body


def format_report(report: Report) -> str:
  """The report as text: a line for each rule, then each finding in full.

  Returns:
    Text without a final newline.
  """
  parts = [_summarize(report)]
  rows = [
    (r.status, r.rule, r.measured + _format_p(r.p_value))
    for r in report.results
  ]
  parts.append(tables.align_columns(rows, '<<<'))
  for finding in report.findings:
    kind = {'privacy': 'PRIVACY', 'utility': 'UTILITY'}[finding.severity]
    lines = [f'{kind}  {finding.rule}: {finding.cause.replace("_", " ")}']
    texts = [finding.measured, f'Likely: {finding.likely}']
    texts.append(f'To do: {finding.cure}')
    if finding.epsilon is not None:
      where = ''
      if finding.at:
        where = f', if noise is as short as it is with {finding.at}'
      texts.append(
        f'ε = {cells.format_number(finding.epsilon)} of one client at '
        f'δ = {report.delta:g}{where}; claimed '
        f'{cells.format_number(report.claimed_epsilon)}.'
      )
    lines += [tables.fill_paragraph(text, bullet='  ') for text in texts]
    parts.append('\n'.join(lines))
  return '\n\n'.join(parts)


def _format_p(p: float | None) -> str:
  return '' if p in (None, 0, 1) else f' ({diagnostics.format_p_value(p)})'


def _summarize(report: Report) -> str:
  broken, checked = len(report.findings), len(report.results)
  checked -= len(report.not_checked)
  at_claim = 'not measured'
  if report.epsilon is not None:
    at_claim = cells.format_number(report.epsilon)
  error = ''
  if _exceeds_claim_by_chance(report):
    error = ', which is within the error of the measurement'
  text = (
    f'{broken} of {checked} rules that were checked are broken; '
    f'{len(report.not_checked)} were not checked. At the claim, with '
    f'δ = {report.delta:g}, one round has ε = {at_claim} for an ordinary client; '
    f'claimed {cells.format_number(report.claimed_epsilon)}{error}. '
    f'{report.rounds:,} rounds in {report.seconds:.1f} s.'
  )
  if report.resolution is not None:
    text += (
      f' Noise that is {100 * report.resolution:.2g} % too small would have been '
      'detected.'
    )
  claim = report.claim
  shapes = ', '.join('x'.join(map(str, shape)) for shape in claim.shapes)
  head = (
    f'Claim: clip norm {claim.clip_norm:g}, noise multiplier '
    f'{claim.noise_multiplier:g}, {claim.num_clients} clients, {claim.release} of '
    f'tensors {shapes}.'
  )
  return tables.fill_paragraph(head) + '\n' + tables.fill_paragraph(text)


def _exceeds_claim_by_chance(report: Report) -> bool:
  """Whether the measured ε is above the claim, and no rule of the noise broken."""
  if report.epsilon is None or math.isinf(report.epsilon):
    return False
  return report.epsilon > report.claimed_epsilon and {
    'noise_scale',
    'tensor_noise',
  } <= {*report.passed}
