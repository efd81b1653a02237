"""What a person reads of a finished audit, made from the files it left.

`format_summary` is what a terminal shows first, `format_report` all of it, and
`write_report` makes report.md and its figures. None of them needs the data, the model or the code of the training run: a directory with
result.json, private/scores.npz and private/metrics.jsonl is enough.
"""

from collections.abc import Mapping, Sequence
import functools
import json
import os
import pathlib
import re
import textwrap
from typing import Any

from epe_jax import extras, io
from epe_jax.audit import publication
from epe_jax.audit.estimates import SIGNIFICANCE, Attack, Audit
from epe_jax.audit.record import load_record
from epe_jax.epsilon.types import Estimate
from epe_jax.experiment import metrics, result_file, workdirs
from epe_jax.report import narrative, tables

_WIDTH = 100
_HEAD = ('ε', '90 % interval', 'floor 5-95 %', 'kind')
_NOT_AUDITED = 'not audited: no canaries'
_METHODS = {
  'two_gaussian_null': 'two Gaussians, std of the null',
  'two_gaussian_fitted': 'two Gaussians, std fitted',
  'eps_lo': "the paper's ε_lo (no bound)",
  'max_threshold': 'best threshold',
  'max_threshold_gaussian': 'best threshold, Gaussian rates',
  'max_threshold_empirical': 'best threshold, counted rates',
  'clopper_pearson_uncorrected': 'best threshold, uncorrected',
  'clopper_pearson_band': 'best threshold under a band',
  'rank_test': 'all thresholds, one test',
  'clopper_pearson_bonferroni': 'a few thresholds, Bonferroni',
  'clopper_pearson_split': 'threshold from half of them',
  'clopper_pearson_multisplit': 'the same, median of many splits',
  'epsilon_credible_split': 'threshold from half of them',
  'gdp_clopper_pearson_band': 'under a band, if f is Gaussian',
  'gdp_rank_test': 'all thresholds, if f is Gaussian',
  'gdp_credible_split': 'the same, if f is Gaussian',
  'one_run': 'from one run, by fair coins',
  'one_run_gdp': 'the same, if f is Gaussian',
  'gaussian_lower_bound': 'both Gaussians, spread free',
  'gaussian_lower_bound_rejected': 'both Gaussians, rejected',
  'location_mixture': 'Gaussians, shifts known',
  'most_exposed': 'the same, most exposed canary',
  'location_mixture_bound': 'Gaussians, shifts known',
  'location_mixture_bound_rejected': 'Gaussians, shifts known, rejected',
  'maximum_over_rounds': 'law of a maximum',
  'shifted_cosine': 'law of a cosine',
}
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


def format_summary(result: Mapping[str, Any]) -> str:
  """One line for each attacker, and a verdict of three sentences.

  What is not calibrated is said to be that in place of an estimate.

  Args:
    result: what result.json holds.

  Returns:
    Text without a final newline, of at most 100 columns.
  """
  parts = [_fill(_run(result))]
  if narrative.is_audited(result):
    body = [_summarized(result, attack) for attack in result['audit'].attacks]
    head = ('attacker reads', 'ε', *_HEAD[1:3], 'bound, 95 %', 'analytic ε')
    parts.append(tables.format_text(tables.Table('', head, body)))
  verdict = narrative.give_verdict(result)
  parts.append('\n'.join(_fill(one, bullet='- ') for one in verdict))
  return '\n\n'.join(parts)


def _summarized(result: Mapping[str, Any], attack: Attack) -> list[str]:
  first, bounds = attack.first, attack.bounds
  epsilon, interval, floor, _ = _cells(first)
  if not attack.is_calibrated:
    epsilon, interval, floor = 'not calibrated', '-', '-'
  analytic = '-'
  if attack.threat_model.is_worst_case:
    analytic = narrative.format_number(narrative.analytic_epsilon(result))
  bound = narrative.format_number(float(bounds[0].epsilon)) if bounds else '-'
  return [attack.threat_model.name, epsilon, interval, floor, bound, analytic]


def format_report(result: Mapping[str, Any]) -> str:
  """The audit as plain text of at most 100 columns, ending in plain words.

  Args:
    result: what result.json holds. Every number comes from it; those that are
      not finite may be strings, since JSON has none.

  Returns:
    Text without a final newline.
  """
  lines = [_fill(_run(result)), _fill(f'Data: {result["data"]}.')]
  for who, epsilon, assumes in _analytic(result):
    lines.append(_fill(f'Analytic ε = {epsilon} for {who}: {assumes}.'))
  if result['amplification']:
    lines.append(_fill(f'Amplified by sampling: {result["amplification"]}.'))
  lines += _groups(result['audit'].attacks)
  lines.append('')
  lines += [_fill(said, bullet='- ') for said in narrative.narrate(result)]
  return '\n'.join(lines)


def format_estimates(audit: Audit, *, markdown: bool = False) -> str:
  """Estimates without a run around them: points first, then bounds.

  Args:
    audit: as `estimates` gives it.
    markdown: tables in Markdown instead of text.

  Returns:
    Text without a final newline.
  """
  delta = audit.attacks[0].first.delta
  parts = [f'δ = {narrative.format_delta(delta)}']
  for title, kind, is_shape_free in _SECTIONS:
    some = [
      attack._replace(estimates=estimates, doubts=())
      for attack in audit.attacks
      if (
        estimates := tuple(
          e
          for e in attack.estimates
          if e.kind == kind and is_shape_free in (None, e.is_shape_free)
        )
      )
    ]
    if not some:
      continue
    if markdown:
      parts.append(f'## {title}\n\n{_markdown_estimates(some)}')
    else:
      underlined = [title, '=' * len(title), *_groups(some)]
      parts.append('\n'.join(underlined))
  notes = [
    f'{attack.threat_model.statistic}: {doubt}.'
    for attack in audit.attacks
    for doubt in attack.doubts
  ]
  if audit.headline is not None:
    notes.insert(0, _pre_declared(audit))
  parts.append('\n'.join(_fill(note, bullet='- ') for note in notes))
  return '\n\n'.join(parts)


def write_report(workdir: str | os.PathLike[str]) -> pathlib.Path:
  """Writes report.md and the figures that `figures.of_run` draws.

  Of a run without canaries that is how it trained, and no scores are asked
  for.

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

  result, files = load_result(workdir), workdirs.workdir_at(workdir)
  record = None
  if narrative.is_audited(result):
    record = load_record(_existing(files.scores))
  history = metrics.read_lines(_existing(files.metrics))
  # The report may be published, as the result may.
  drawn = of_run.draw_run(
    result, *publication.redact_run(result, record, history)
  )
  for name, drawing in drawn.items():
    save = functools.partial(drawing.savefig, format='png', dpi=150)
    io.write_atomically(files.folder / name, save)
  text = _markdown(result, {name: of_run.CAPTIONS[name] for name in drawn})
  io.write_text(files.report, text)
  return files.report


def load_result(workdir: str | os.PathLike[str]) -> dict[str, Any]:
  """What the result.json of a finished run holds.

  Raises:
    FileNotFoundError: the workdir has no result.json.
    ValueError: it is damaged, or of another version of this library.
  """
  return result_file.load_result(_existing(workdirs.workdir_at(workdir).result))


def _existing(path: pathlib.Path) -> pathlib.Path:
  if not path.is_file():
    raise FileNotFoundError(
      f'{path} does not exist. Give the workdir of a finished run; '
      'scripts/train.py with the same --workdir finishes one that is not.'
    )
  return path


def _run(result: Mapping[str, Any]) -> str:
  total = result['num_observed'] + result['num_unobserved']
  times = '' if result['repetitions'] == 1 else f' {_times(result)}'
  if narrative.is_coin_flip(result):
    times += ' by fair coins'
  canaries = f'{result["num_observed"]:,} of {total:,} canaries in{times}'
  if not narrative.is_audited(result):
    canaries = _NOT_AUDITED
  return (
    f'{result["task"]}: {result["rounds"]:,} rounds, d = {result["dim"]:,}, '
    f'{canaries}, noise {result["noise_multiplier"]:g}, '
    f'δ = {narrative.format_delta(result["delta"])}, accuracy {_percent(result["accuracy"])} (majority class: '
    f'{_percent(result["baseline_accuracy"])})'
  )


def _analytic(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
  """For whom, ε and what it assumes; once if clients fare as canaries do."""

  def of(who: str) -> tuple[str, str]:
    epsilon = narrative.format_number(result[f'{who}analytic_epsilon'])
    return epsilon, result[f'{who}analytic_assumes'].rstrip('.')

  client = of('clients_')
  if not narrative.is_audited(result):
    return [('clients', *client)]
  if of('') == client:
    return [('canaries and clients', *client)]
  return [('canaries', *of('')), ('clients', *client)]


def _pre_declared(audit: Audit) -> str:
  """Which bound was chosen before looking."""
  assert audit.headline is not None
  attack, bound = audit.headline
  assert bound.confidence is not None, 'bounds have one'
  text = (
    f'The bound to report, fixed before looking: {_method(bound)}, '
    f'{attack.threat_model.statistic}, ε ≥ '
    f'{narrative.format_number(float(bound.epsilon))} at '
    f'{100 * bound.confidence:.6g} %. '
  )
  if audit.is_simultaneous:
    level = 100 * (1 - SIGNIFICANCE)
    return f'{text}All bounds hold together at {level:g} %.'
  return (
    f'{text}To choose the largest of the bounds is no bound; --simultaneous makes '
    'all of them hold together.'
  )


def _groups(attacks: Sequence[Attack]) -> list[str]:
  """Lines of estimates, under a heading for each attacker."""
  lines = []
  for attack in attacks:
    title = f'{attack.sees}: {attack.threat_model.statistic}'
    lines += ['', title[0].upper() + title[1:]]
    lines += [_fill(f'{doubt}.', bullet='  Doubt: ') for doubt in attack.doubts]
    lines.append(_line('', *_HEAD))
    lines += [_line(f'  {_method(e)}', *_cells(e)) for e in attack.estimates]
  return lines


def _markdown_estimates(attacks: Sequence[Attack]) -> str:
  head = ('attacker sees', 'statistic', 'method', *_HEAD)
  body = [
    (attack.sees, attack.threat_model.statistic, _method(e), *_cells(e))
    for attack in attacks
    for e in attack.estimates
  ]
  return tables.format_markdown(tables.Table('', head, body))


def _line(
  first: str, epsilon: str, interval: str, floor: str, kind: str
) -> str:
  line = f'{first:<33}{epsilon:>8}  {interval:<15} {floor:<15} {kind}'
  return line.rstrip()


def _cells(estimate: Estimate) -> tuple[str, str, str, str]:
  """ε, interval, floor and kind of an estimate, as text."""
  return (
    narrative.format_number(float(estimate.epsilon)),
    narrative.format_interval(estimate.interval) or '-',
    narrative.format_floor(estimate) or '-',
    narrative.describe_kind(estimate),
  )


def _method(estimate: Estimate) -> str:
  return _METHODS.get(estimate.method, estimate.method.replace('_', ' '))


def _percent(share: float | str) -> str:
  return f'{100 * float(share):.1f} %'


def _times(result: Mapping[str, Any]) -> str:
  repetitions = result['repetitions']
  return 'once' if repetitions == 1 else f'{repetitions} times'


def _fill(text: str, bullet: str = '') -> str:
  # A number stays on the line of its sign: textwrap breaks at plain spaces.
  glued = re.sub('(?<=[=≈]) | (?=[=≈%])', '\N{NO-BREAK SPACE}', text)
  filled = textwrap.fill(
    glued,
    _WIDTH,
    initial_indent=bullet,
    subsequent_indent=' ' * len(bullet),
    break_on_hyphens=False,
  )
  return filled.replace('\N{NO-BREAK SPACE}', ' ')


def _markdown(result: Mapping[str, Any], captions: Mapping[str, str]) -> str:
  images = [f'![{text}]({name})\n\n*{text}*' for name, text in captions.items()]
  title = f'Privacy audit: {result["task"]}'
  found = ['## Estimates', _markdown_estimates(result['audit'].attacks)]
  if not narrative.is_audited(result):
    title, found = f'Training run: {result["task"]}, not audited', []
  parts = [
    f'# {title}',
    tables.format_markdown(
      tables.Table('', ('run', result['task']), _facts(result))
    ),
    *found,
    '## In words',
    '\n'.join(f'- {sentence}' for sentence in narrative.narrate(result)),
    '## Figures',
    *images,
    '## How to reproduce',
    _reproduce(result),
  ]
  return '\n\n'.join(parts) + '\n'


def _facts(result: Mapping[str, Any]) -> list[tuple[str, str]]:
  noise = f'{result["noise_multiplier"]:g} times the clip norm'
  versions = [f'{name} {value}' for name, value in result['versions'].items()]
  return [
    ('data', result['data']),
    ('rounds', f'{result["rounds"]:,}'),
    ('parameters d', f'{result["dim"]:,}'),
    *_canaries(result),
    ('noise', f'{noise}, {result["noise"]}'),
    ('δ', narrative.format_delta(result['delta'])),
    *(
      (f'analytic ε of {who}', f'{epsilon}: {assumes}')
      for who, epsilon, assumes in _analytic(result)
    ),
    ('amplification by sampling', result['amplification'] or 'none counted'),
    ('test accuracy', _percent(result['accuracy'])),
    (
      'accuracy of the majority class',
      _percent(result['baseline_accuracy']),
    ),
    ('test loss', f'{float(result["loss"]):.4g}'),
    *_time(result),
    ('versions', ', '.join(versions)),
  ]


def _time(result: Mapping[str, Any]) -> list[tuple[str, str]]:
  # A run with fresh noise does not say, for it depends on who took part.
  if 'seconds' not in result:
    return []
  said = (
    f'{result["seconds"]:,.1f} s, {result["seconds_per_round"]:.3g} s a round; '
    f'waited for data {100 * result["waited_share"]:.2g} % of it'
  )
  return [('time', said)]


def _canaries(result: Mapping[str, Any]) -> list[tuple[str, str]]:
  if not narrative.is_audited(result):
    return [('canaries', _NOT_AUDITED)]
  coins = ', each by a fair coin' if narrative.is_coin_flip(result) else ''
  took_part = f'{result["num_observed"]:,}, {_times(result)}{coins}'
  facts = [
    ('canaries that took part', took_part),
    ('canaries that did not', f'{result["num_unobserved"]:,}'),
  ]
  if wide := narrative.effective_dimension_of(result):
    facts.append(('effective dimension of what was seen', _spread(wide)))
  return facts


def _spread(wide: Mapping[str, Any]) -> str:
  needed = 'any' if wide['needed'] is None else f'{wide["needed"]:,.0f}'
  return (
    f'{wide["least"]:,.0f} or more in a round, {wide["median"]:,.0f} in the '
    f'median; final model {wide["final_model"]:,.0f}, its change '
    f'{wide["change"]:,.0f}; {wide["family"]} canaries need {needed}'
  )


def _reproduce(result: Mapping[str, Any]) -> str:
  config = json.dumps(result['config'], indent=2, ensure_ascii=False)
  return textwrap.dedent("""\
    The run again, in a directory of its own:

    ```sh
    python scripts/train.py --config=configs/{task}.py --workdir=NEW
    ```

    with these settings; give one that differs from the default of the config
    as `--config.name=value`:

    ```json
    {config}
    ```

    This page and its figures again, without training:

    ```sh
    python scripts/report.py WORKDIR
    ```""").format(task=result['task'], config=config)
