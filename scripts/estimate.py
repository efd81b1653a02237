"""Every estimate of ε from a file of scores, without training.

  python scripts/estimate.py WORKDIR
  python scripts/estimate.py WORKDIR --every=10 --models
  python scripts/estimate.py WORKDIR --by_round
  python scripts/estimate.py scores.csv --delta=1e-5 --format=markdown

A file is the workdir of a finished run, its scores.npz, an .npz with arrays
observed and unobserved (or in_canary_scores and out_canary_scores), or a CSV
with the columns score and observed, from any system. Point estimates, which
guarantee nothing, stand apart from lower bounds, which hold at the confidence
they state.

Of a run, --every or --last shows attackers some rounds only: their aggregates,
or with --models the models after them. --by_round gives what had leaked after
each of some rounds.
"""

import json

from absl import app, flags

from epe_jax import (
  estimates,
  leakage,
  leakage_report,
  report,
  results,
  run_files,
  score_files,
)

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


def main(argv: list[str]) -> None:
  if len(argv) != 2:
    raise app.UsageError(f'Give one file of scores. {score_files.CURE}')
  markdown, rows, audit = _FORMAT.value == 'markdown', [], None
  try:
    run_files.check_audited(argv[1])
    scores = score_files.read(argv[1], dim=_DIM.value, design=_DESIGN.value)
    foreign = not isinstance(scores, results.Recorded)
    part = _EVERY.value is not None or _LAST.value is not None or _MODELS.value
    if not foreign and (_DIM.value is not None or _DESIGN.value != 'fixed'):
      raise ValueError('--dim and --design are for files of other systems.')
    if foreign and (part or _BY_ROUND.value):
      raise ValueError(
        '--every, --last, --models and --by_round are for runs of ours.'
      )
    if part and _BY_ROUND.value:
      raise ValueError(
        '--by_round is of a whole run; leave out --every, --last and --models.'
      )
    if foreign:
      if _DELTA.value is None:
        raise ValueError(f'{argv[1]} names no delta; give --delta, as 1e-5.')
      audit = estimates.evaluate_scores(
        scores, delta=_DELTA.value, simultaneous=_SIMULTANEOUS.value
      )
    elif _BY_ROUND.value:
      rows = leakage.by_round(scores, delta=_DELTA.value)
    else:
      scores = run_files.shown(
        scores,
        every=_EVERY.value,
        last=_LAST.value,
        models=_MODELS.value,
      )
      audit = estimates.evaluate(
        scores,
        delta=_DELTA.value,
        more=True,
        simultaneous=_SIMULTANEOUS.value,
      )
  except (FileNotFoundError, ValueError) as error:
    raise SystemExit(f'error: {error}') from error
  if _FORMAT.value == 'json':
    made = rows if audit is None else audit._asdict()
    print(json.dumps(results.finite(made), indent=2, ensure_ascii=False))
  elif audit is None:
    print(leakage_report.text(rows, markdown=markdown))
  else:
    print(report.estimates_table(audit, markdown=markdown))


if __name__ == '__main__':
  app.run(main)
