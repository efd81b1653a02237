"""Every estimate of ε from a file of scores, without training.

  python scripts/estimate.py WORKDIR
  python scripts/estimate.py WORKDIR --every=10 --models
  python scripts/estimate.py WORKDIR --by_round
  python scripts/estimate.py scores.csv --delta=1e-5 --all --format=markdown
  python scripts/estimate.py report/exp/attack_result_0.npz --delta=1e-5
  python scripts/estimate.py WORKDIR WORKDIR2 WORKDIR3

A file is the workdir of a finished run, its private/scores.npz, an .npz with arrays
observed and unobserved (or in_canary_scores and out_canary_scores), or a CSV
with the columns score and observed, from any system. Files of ML Privacy Meter,
LiRA, RMIA and privacy-estimates are recognized (docs/scores.md). The headline is
printed, which the design chose before any score was seen (docs/headline.md). With
--all every estimate is: point estimates, which guarantee nothing, then lower bounds,
which hold at the confidence they state, then credible bounds, which do not.

With --every or --last, attackers see some rounds of a run only: their aggregates,
or with --models the models after them. --by_round prints how much had leaked after
each of some rounds.

For several runs of one config it prints the μ and ε of each, their mean with an
interval over runs, and what to expect of one more run.
"""

from collections.abc import Sequence
import dataclasses
import json
import sys
from typing import Any

from absl import app, flags

from epe_jax import epsilon, io
from epe_jax.audit import (
  audit_json,
  estimates,
  over_rounds,
  published_models,
  run_effects,
  sequential,
)
from epe_jax.audit.record import Record
from epe_jax.experiment import finished_runs, score_files
from epe_jax.experiment.score_formats import (
  groups,
  privacy_estimates,
  registry,
)
from epe_jax.report import (
  over_rounds_report,
  over_runs_report,
  report,
)

_DELTA = flags.DEFINE_float(
  'delta', None, "δ, in (0, 1). Needed for external scores; else the run's."
)
_DIM = flags.DEFINE_integer(
  'dim', None, 'd, if external scores are cosines in R^d.'
)
_DESIGN = flags.DEFINE_enum(
  'design',
  None,
  ['fixed', 'coin_flip'],
  'How the canaries of external scores were included. Without it, as the tool '
  'does that wrote them, and fixed if that is not known.',
)
_FROM = flags.DEFINE_enum(
  'from',
  'auto',
  ['auto', *registry.FORMATS],
  'Which tool wrote external scores.',
)
_HIGHER = flags.DEFINE_enum(
  'higher',
  None,
  ['in', 'out'],
  'Who scores higher in a file of external scores: canaries that took part, or '
  'the others. Without it, the convention of the tool, and else in.',
)
_INCLUSION_PROBABILITY = flags.DEFINE_float(
  'inclusion_probability',
  None,
  'With --design=coin_flip: how probable it was that a canary took part; the '
  'largest, if coins differed. Without it, that of the tool, and else 1/2.',
)
_EVERY = flags.DEFINE_integer(
  'every', None, 'Only every n-th round of a run is published.'
)
_LAST = flags.DEFINE_integer(
  'last', None, 'Only the last n rounds of a run are published.'
)
_MODELS = flags.DEFINE_bool(
  'models', False, 'The models after rounds are published, not the aggregates.'
)
_BY_ROUND = flags.DEFINE_bool(
  'by_round', False, 'ε after each of some rounds of a run.'
)
_CLAIM = flags.DEFINE_float(
  'claim',
  None,
  'With --by_round: ε that the run claims to have; tested as it goes.',
)
_SIMULTANEOUS = flags.DEFINE_bool(
  'simultaneous',
  False,
  'Lower bounds hold all together at 95 %, not each: of all attackers and, with '
  '--by_round or --deltas, rounds and δ.',
)
_DELTAS = flags.DEFINE_list(
  'deltas', None, 'With --simultaneous: bounds at all of these δ together.'
)
_ALL = flags.DEFINE_bool(
  'all', False, 'Print every estimate, and not the headline alone.'
)
_FORMAT = flags.DEFINE_enum(
  'format', 'text', ['text', 'json', 'markdown'], 'How to print the table.'
)

# What makes no sense of counts.
_SCORE_FLAGS = (
  'dim',
  'design',
  'inclusion_probability',
  'higher',
  'every',
  'last',
  'models',
  'by_round',
  'claim',
  'simultaneous',
  'deltas',
)


def _load_scores(path: str) -> Record | epsilon.Scores:
  """Loads external scores, or the part of a run that attackers see."""
  finished_runs.check_audited(path)
  probability = _INCLUSION_PROBABILITY.value
  if probability is not None and _DESIGN.value != 'coin_flip':
    raise ValueError(
      f'--inclusion_probability={probability} is of coins; add '
      '--design=coin_flip.'
    )
  scores = score_files.load_scores(
    path,
    dim=_DIM.value,
    design=_DESIGN.value,
    inclusion_probability=probability,
    source=_FROM.value,
    higher=_HIGHER.value,
  )
  if _CLAIM.value is not None and not _BY_ROUND.value:
    raise ValueError(
      f'--claim={_CLAIM.value} is tested by rounds; add --by_round.'
    )
  is_external = isinstance(scores, epsilon.Scores)
  is_part = _EVERY.value is not None or _LAST.value is not None or _MODELS.value
  if not is_external and (_DIM.value is not None or _DESIGN.value is not None):
    raise ValueError('--dim and --design are for files of other systems.')
  if is_external and (is_part or _BY_ROUND.value):
    raise ValueError(
      '--every, --last, --models and --by_round are for runs of ours.'
    )
  if is_part and _BY_ROUND.value:
    raise ValueError(
      '--by_round is of a whole run; leave out --every, --last and --models.'
    )
  if isinstance(scores, epsilon.Scores):
    _print_conventions(path, scores)
    return scores
  return published_models.restrict_record(
    scores, every=_EVERY.value, last=_LAST.value, models=_MODELS.value
  )


def _print_conventions(path: str, scores: epsilon.Scores) -> None:
  """Prints to stderr how scores were read, and whether the sign is wrong."""
  tool = score_files.find_format(path, _FROM.value)
  higher = _HIGHER.value or (tool.higher if tool else 'in')
  if tool is not None:
    print(
      f'{path}: read as {tool.label}; higher={higher}, design={scores.design}, '
      f'inclusion probability {scores.inclusion_probability:g}.',
      file=sys.stderr,
    )
  if warning := groups.warn_if_reversed(scores, higher=higher):
    print(f'warning: {path}: {warning}', file=sys.stderr)


def _bound_counts(path: str, markdown: bool) -> tuple[Any, str]:
  for name in _SCORE_FLAGS:
    if flags.FLAGS[name].present:
      raise ValueError(
        f'--{name} is of scores, but {path} has counts; leave it out.'
      )
  counts = privacy_estimates.read_counts(path)
  bounds = privacy_estimates.bound_by_intervals(
    counts, delta=_require_delta(path)
  )
  text = privacy_estimates.format_counts(counts, bounds, markdown=markdown)
  return [dataclasses.asdict(bound) for bound in bounds], text


def _require_delta(path: str) -> float:
  if _DELTA.value is None:
    raise ValueError(
      f'{path} names no delta; give --delta, for example --delta=1e-5.'
    )
  return _DELTA.value


def _evaluate_runs(paths: Sequence[str]) -> list[run_effects.OverRuns]:
  if _BY_ROUND.value or _SIMULTANEOUS.value:
    raise ValueError(
      f'--by_round and --simultaneous are for one run, but {len(paths)} files are '
      'given; give one of them.'
    )
  files = [score_files.find_scores(path).resolve() for path in paths]
  for path, file in zip(paths, files):
    if files.count(file) > 1:
      raise ValueError(
        f'{path} is given more than once, but runs must be independent; give '
        'it once.'
      )
  runs = {path: _load_scores(path) for path in paths}
  return run_effects.evaluate_runs(runs, delta=_DELTA.value)


def _evaluate(path: str, scores: Record | epsilon.Scores) -> estimates.Audit:
  if isinstance(scores, epsilon.Scores):
    return estimates.evaluate_scores(
      scores, delta=_require_delta(path), simultaneous=_SIMULTANEOUS.value
    )
  return estimates.evaluate(
    scores,
    delta=_DELTA.value,
    more=True,
    simultaneous=_SIMULTANEOUS.value,
  )


def _estimate(paths: Sequence[str]) -> tuple[Any, str]:
  """Every estimate from some files, as values for JSON and as text."""
  markdown = _FORMAT.value == 'markdown'
  if len(paths) > 1:
    effects = _evaluate_runs(paths)
    text = over_runs_report.format_over_runs(effects, markdown=markdown)
    return audit_json.runs_to_json(effects), text
  tool = score_files.find_format(paths[0], _FROM.value)
  if tool is not None and tool.read is None:
    return _bound_counts(paths[0], markdown)
  scores = _load_scores(paths[0])
  if _DELTAS.value is not None and not _SIMULTANEOUS.value:
    raise ValueError(
      f'--deltas={",".join(_DELTAS.value)} is of bounds that hold together; add '
      '--simultaneous.'
    )
  if isinstance(scores, epsilon.Scores) and _DELTAS.value is not None:
    raise ValueError('--deltas is for runs of ours.')
  in_family = _BY_ROUND.value or _DELTAS.value is not None
  if (
    _SIMULTANEOUS.value and in_family and not isinstance(scores, epsilon.Scores)
  ):
    return _bound_simultaneously(scores, markdown)
  if _BY_ROUND.value and not isinstance(scores, epsilon.Scores):
    rounds = over_rounds.evaluate_by_round(scores, delta=_DELTA.value)
    bounds = sequential.bound_sequentially(
      scores, delta=_DELTA.value, claim=_CLAIM.value
    )
    text = over_rounds_report.format_over_rounds(
      rounds, bounds, markdown=markdown
    )
    return audit_json.rounds_to_json(rounds, bounds), text
  audit = _evaluate(paths[0], scores)
  form = report.format_estimates
  if not _ALL.value:
    form = report.format_headline_estimates
  text = form(audit, markdown=markdown)
  return audit_json.to_json(audit), text


def _bound_simultaneously(record: Record, markdown: bool) -> tuple[Any, str]:
  deltas = None if _DELTA.value is None else [_DELTA.value]
  if _DELTAS.value is not None:
    try:
      deltas = [float(text) for text in _DELTAS.value]
    except ValueError as error:
      raise ValueError(
        f'--deltas={",".join(_DELTAS.value)}; give numbers in (0, 1), with '
        'commas between.'
      ) from error
  if _CLAIM.value is not None:
    raise ValueError('--claim has a sequence of its own; leave --simultaneous.')
  bounds = over_rounds.bound_simultaneously(
    record,
    rounds=over_rounds.choose_rounds(record).tolist()
    if _BY_ROUND.value
    else None,
    deltas=deltas,
  )
  text = over_rounds_report.format_simultaneous(bounds, markdown=markdown)
  return audit_json.estimates_to_json(bounds), text


def main(argv: list[str]) -> None:
  if len(argv) < 2:
    raise app.UsageError(f'Give a file of scores. {score_files.CURE}')
  try:
    values, text = _estimate(argv[1:])
  except (OSError, ValueError) as error:
    raise SystemExit(f'error: {error}') from error
  if _FORMAT.value == 'json':
    values = io.spell_non_finite(values)
    text = json.dumps(values, indent=2, ensure_ascii=False)
  print(text)


if __name__ == '__main__':
  app.run(main)
