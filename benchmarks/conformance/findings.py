"""Findings of the conformance suite about released frameworks: docs/findings.md.

  python -m benchmarks.conformance.findings --subjects=jax
  .venv-frameworks/torch/bin/python -m benchmarks.conformance.findings --subjects=torch
  python -m benchmarks.conformance.findings --page=docs/findings.md

Each module NAME_subjects is checked in the environment of its framework, which
tests/auditor/adapters/install.sh makes: appfl in that of torch, jax_newest in `jax`, that
of jax_privacy's repository. The table of the page is made from the results. The rest of
the page is written by hand.

FedJAX 0.0.17 adds no noise anywhere: its aggregators average and
quantize, and MimeLite only clips.
"""

import contextlib
import dataclasses
import importlib
from importlib import metadata
import json
import math
import pathlib
import platform
import re
from typing import Any

from absl import app, flags

from epe_jax import io
from epe_jax.conformance import Claim, check
from epe_jax.report import cells, tables
from papers import origins

_MODULES = ['jax', 'jax_newest', 'torch', 'appfl', 'nvflare']
_SUBJECTS = flags.DEFINE_enum(
  'subjects', None, _MODULES, 'Which mechanisms to check.'
)
_BUDGET = flags.DEFINE_float(
  'budget', 60.0, 'Seconds that the rounds of a mechanism may take.'
)
_OUT = flags.DEFINE_string('out', 'runs/findings', 'Folder of the results.')
_PAGE = flags.DEFINE_string('page', None, 'Page to write the table into.')

# What a rule cannot see, and its ε depends on.
_CONDITIONS = {'resume': ' if the batch differs'}


def check_subjects(module: str) -> list[dict[str, Any]]:
  """Checks all mechanisms of a module; returns a JSON value for each.

  Raises:
    SystemExit: rules of some were out of time, so that their rows are not whole.
  """
  rows, late = [], []
  for subject in importlib.import_module(f'{__package__}.{module}').SUBJECTS:
    report = check(subject.make, subject.claim, budget=_BUDGET.value)
    rows.append(
      {
        'name': subject.name,
        'package': subject.package,
        'version': _describe_version(subject.package),
        'note': subject.note,
        'claim': dataclasses.asdict(subject.claim),
        'report': report.to_json(),
      }
    )
    broken = ', '.join(finding.rule for finding in report.findings)
    unknown = ', '.join(report.not_checked)
    print(
      f'{subject.package} {subject.name}: broken: {broken or "none"}; '
      f'not checked: {unknown or "none"}'
    )
    if report.out_of_time:
      late.append(subject.name)
  if late:
    raise SystemExit(
      f'--budget={_BUDGET.value:g}: rules of {", ".join(late)} were out of time; give '
      'more, so that their rows are whole.'
    )
  return rows


def format_table(rows: list[dict[str, Any]]) -> str:
  """One row for each mechanism, and a paragraph for each finding."""
  lines = [
    '| mechanism | rules that hold | broken | not checked | values of noise '
    '| rounds | seconds |',
    '|---|---|---|---|---|---|---|',
  ]
  details = []
  for row in rows:
    results = row['report']['results']
    by_status = {
      status: [r['rule'] for r in results if r['status'] == status]
      for status in ('passed', 'broken', 'not checked')
    }
    title = f'{row["package"]} {row["version"]}: {row["name"]}'
    lines.append(
      f'| {title} | {len(by_status["passed"])} '
      f'| {", ".join(by_status["broken"]) or "none"} '
      f'| {", ".join(by_status["not checked"]) or "none"} '
      f'| {_describe_values(results)} | {row["report"]["rounds"]:,} | {row["report"]["seconds"]:.0f} |'
    )
    findings = [r['finding'] for r in results if r['finding']]
    if findings or row['note']:
      details += ['', f'### {title}', '']
    if row['note']:
      details += [row['note'], '']
    for finding in findings:
      details.append(_describe_finding(finding, row['report']))
  return '\n'.join([*lines, *details])


def tabulate_local_dp() -> str:
  """The exact ε of the noise of LocalDpMod whose sensitivity is the clip norm."""
  body = []
  for claimed in (1, 5, 10, 20, 50):
    std = math.sqrt(2 * math.log(1.25 / 1e-5)) / claimed
    claims = [
      Claim(1.0, std, 1, ((1,),), release='sum', adjacency=adjacency)
      for adjacency in ('zero_out', 'replace')
    ]
    body.append(
      [str(claimed), *(cells.format_number(x.epsilon) for x in claims)]
    )
  head = ['claimed ε', 'an update or none', 'any two updates']
  return tables.format_markdown(tables.Table('', head, body))


def describe_environment() -> dict[str, Any]:
  """What checks these mechanisms, besides their packages."""
  versions = {'python': platform.python_version()}
  for name in ('numpy', 'scipy', 'jaxlib', 'torch'):
    with contextlib.suppress(metadata.PackageNotFoundError):
      versions[name] = metadata.version(name)
  return origins.describe_state(versions)


def _describe_version(package: str) -> str:
  """As pip has it, and the commit if that is what was installed."""
  distribution = metadata.distribution(package)
  origin = json.loads(distribution.read_text('direct_url.json') or '{}')
  if 'vcs_info' not in origin:
    return distribution.version
  return f'{distribution.version} at {origin["vcs_info"]["commit_id"][:8]}'


def _describe_values(results: list[dict[str, Any]]) -> str:
  """What `noise_grid` measured, without its words."""
  (measured,) = (r['measured'] for r in results if r['rule'] == 'noise_grid')
  if match := re.search(r'noise has ([\d.e+]+) values', measured):
    return match[1]
  return 'too many to count' if 'more values' in measured else ''


def _describe_finding(finding: dict[str, Any], report: dict[str, Any]) -> str:
  text = f'- **{finding["rule"]}**: {finding["measured"]}.'
  if finding['epsilon'] is not None:
    text += (
      f' ε = {cells.format_number(finding["epsilon"])} of one client'
      f'{_CONDITIONS.get(finding["rule"], "")}, where '
      f'{cells.format_number(report["claimed_epsilon"])} is claimed for a round, at '
      f'δ = {report["delta"]:g}.'
    )
  return text


def main(argv: list[str]) -> None:
  if argv[1:] or (_SUBJECTS.value is None) == (_PAGE.value is None):
    raise app.UsageError('Give --subjects or --page.')
  out = pathlib.Path(_OUT.value)
  if _SUBJECTS.value is not None:
    out.mkdir(parents=True, exist_ok=True)
    made = describe_environment()
    rows = check_subjects(f'{_SUBJECTS.value}_subjects')
    io.write_json(out / f'{_SUBJECTS.value}.json', {'made': made, 'rows': rows})
    return
  found = {name: io.read_json(out / f'{name}.json') for name in _MODULES}
  assert _PAGE.value is not None, 'checked above'
  page = pathlib.Path(_PAGE.value)
  rows = [row for module in found.values() for row in module['rows']]
  blocks = {
    'made': '\n'.join(
      f'- `python -m benchmarks.conformance.findings --subjects={name}`: '
      f'{origins.format_origin(module["made"])}'
      for name, module in found.items()
    ),
    'findings': format_table(sorted(rows, key=lambda row: row['package'])),
    'local_dp': tabulate_local_dp(),
  }
  text = tables.splice(page.read_text('utf-8'), blocks)
  io.write_text(page, text)


if __name__ == '__main__':
  app.run(main)
