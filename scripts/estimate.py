"""Every estimate of ε from a file of scores, without training.

  python scripts/estimate.py WORKDIR
  python scripts/estimate.py scores.csv --delta=1e-5 --format=markdown

A file is the workdir of a finished run, its scores.npz, an .npz with arrays
observed and unobserved (or in_canary_scores and out_canary_scores), or a CSV
with the columns score and observed, from any system. Point estimates, which
guarantee nothing, stand apart from lower bounds, which hold at the confidence
they state.
"""

import json

from absl import app, flags

from epe_jax import estimates, report, results, score_files

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
  'published_every', 1, 'Read only every n-th round of a run.'
)
_FORMAT = flags.DEFINE_enum(
  'format', 'text', ['text', 'json', 'markdown'], 'How to print the table.'
)


def main(argv: list[str]) -> None:
  if len(argv) != 2:
    raise app.UsageError(f'Give one file of scores. {score_files.CURE}')
  try:
    scores = score_files.read(argv[1], dim=_DIM.value, design=_DESIGN.value)
    if isinstance(scores, results.Recorded):
      if _DIM.value is not None or _DESIGN.value != 'fixed':
        raise ValueError('--dim and --design are for files of other systems.')
      scores = estimates.published(scores, every=_EVERY.value)
      found = estimates.ladder(scores)
      rows = estimates.of_run(scores, delta=_DELTA.value, more=estimates.MORE)
    elif _DELTA.value is None:
      raise ValueError(f'{argv[1]} names no delta; give --delta, as 1e-5.')
    else:
      found = [estimates.foreign(scores)]
      rows = estimates.of_scores(scores, delta=_DELTA.value)
  except (FileNotFoundError, ValueError) as error:
    raise SystemExit(f'error: {error}') from error
  if _FORMAT.value == 'json':
    print(json.dumps(results.finite(rows), indent=2, ensure_ascii=False))
  else:
    print(report.estimates_table(rows, markdown=_FORMAT.value == 'markdown'))
    for warning in estimates.warnings(found):
      print(f'\nWarning: {warning}')


if __name__ == '__main__':
  app.run(main)
