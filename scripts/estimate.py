"""Every estimate of ε from a file of scores, without training.

  python scripts/estimate.py WORKDIR
  python scripts/estimate.py WORKDIR --every=10 --models
  python scripts/estimate.py WORKDIR --by_round
  python scripts/estimate.py scores.csv --delta=1e-5 --format=markdown
  python scripts/estimate.py WORKDIR WORKDIR2 WORKDIR3

A file is the workdir of a finished run, its private/scores.npz, an .npz with arrays
observed and unobserved (or in_canary_scores and out_canary_scores), or a CSV
with the columns score and observed, from any system. Point estimates, which
guarantee nothing, stand apart from lower bounds, which hold at the confidence
they state.

Of a run, --every or --last shows attackers some rounds only: their aggregates,
or with --models the models after them. --by_round gives what had leaked after
each of some rounds.

Of several runs of one config it prints the μ and ε of each, their mean with an
interval over runs, and what to expect of one more run.
"""

from collections.abc import Sequence
import json

from absl import app, flags

from epe_jax import epsilon, io
from epe_jax.audit import audit_json, estimates, over_rounds, published_models
from epe_jax.audit.record import Record
from epe_jax.experiment import finished_runs, score_files
from epe_jax.report import over_rounds_report, over_runs_report, report

_DELTA = flags.DEFINE_float(
  'delta', None, "δ, in (0, 1). Needed for foreign files; else the run's."
)
_DIM = flags.DEFINE_integer(
  'dim', None, 'd, if the scores of a foreign file are cosines in R^d.'
)
_DESIGN = flags.DEFINE_enum(
  'design',
  'fixed',
  ['fixed', 'coin_flip'],
  'How canaries of a foreign file were included.',
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
_SIMULTANEOUS = flags.DEFINE_bool(
  'simultaneous', False, 'Lower bounds hold all together at 95 %, not each.'
)
_FORMAT = flags.DEFINE_enum(
  'format', 'text', ['text', 'json', 'markdown'], 'How to print the table.'
)


def _read(path: str) -> Record | epsilon.Scores:
  """Scores of a file; of a run, what is shown of it."""
  finished_runs.check_audited(path)
  scores = score_files.load_scores(path, dim=_DIM.value, design=_DESIGN.value)
  external = isinstance(scores, epsilon.Scores)
  part = _EVERY.value is not None or _LAST.value is not None or _MODELS.value
  if not external and (_DIM.value is not None or _DESIGN.value != 'fixed'):
    raise ValueError('--dim and --design are for files of other systems.')
  if external and (part or _BY_ROUND.value):
    raise ValueError(
      '--every, --last, --models and --by_round are for runs of ours.'
    )
  if part and _BY_ROUND.value:
    raise ValueError(
      '--by_round is of a whole run; leave out --every, --last and --models.'
    )
  if isinstance(scores, epsilon.Scores):
    return scores
  return published_models.restrict_record(
    scores, every=_EVERY.value, last=_LAST.value, models=_MODELS.value
  )


def _over_runs(paths: Sequence[str]) -> list[over_runs_report.Row]:
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
  runs = {path: _read(path) for path in paths}
  return over_runs_report.evaluate_runs(runs, delta=_DELTA.value)


def _audit(path: str, scores: Record | epsilon.Scores) -> estimates.Audit:
  if isinstance(scores, epsilon.Scores):
    if _DELTA.value is None:
      raise ValueError(f'{path} names no delta; give --delta, as 1e-5.')
    return estimates.evaluate_scores(
      scores, delta=_DELTA.value, simultaneous=_SIMULTANEOUS.value
    )
  return estimates.evaluate(
    scores,
    delta=_DELTA.value,
    more=True,
    simultaneous=_SIMULTANEOUS.value,
  )


def main(argv: list[str]) -> None:
  if len(argv) < 2:
    raise app.UsageError(f'Give a file of scores. {score_files.CURE}')
  markdown, paths = _FORMAT.value == 'markdown', argv[1:]
  try:
    if len(paths) > 1:
      rows = _over_runs(paths)
      made, text = (
        rows,
        over_runs_report.format_over_runs(rows, markdown=markdown),
      )
    else:
      scores = _read(paths[0])
      if _BY_ROUND.value and not isinstance(scores, epsilon.Scores):
        rows = over_rounds.evaluate_by_round(scores, delta=_DELTA.value)
        made, text = (
          audit_json.rounds_to_json(rows),
          over_rounds_report.format_over_rounds(rows, markdown=markdown),
        )
      else:
        audit = _audit(paths[0], scores)
        made = audit_json.to_json(audit)
        text = report.format_estimates(audit, markdown=markdown)
  except (OSError, ValueError) as error:
    raise SystemExit(f'error: {error}') from error
  if _FORMAT.value == 'json':
    text = json.dumps(io.spell_non_finite(made), indent=2, ensure_ascii=False)
  print(text)


if __name__ == '__main__':
  app.run(main)
