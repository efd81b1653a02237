"""Flags that say what scores are read from, and how."""

from collections.abc import Sequence
import sys
from typing import Any

from absl import flags

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
  'simultaneous',
  'deltas',
  'out',
)

# The names in `score_formats.registry.FORMATS`, which needs more than help does.
_FORMATS = (
  'privacy_meter',
  'rmia',
  'lira',
  'lira_offline',
  'lira_global',
  'privacy_estimates',
)


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of scores and of what attackers see of a run."""
  own: Any = {'flag_values': values}
  flags.DEFINE_float(
    'delta',
    None,
    "δ, in (0, 1). Required for external scores. Default for a run: the run's.",
    **own,
  )
  flags.DEFINE_string(
    'in_scores',
    None,
    'File with the scores of canaries that took part, one per line, or .npy.',
    **own,
  )
  flags.DEFINE_string(
    'out_scores', None, 'File with those of canaries that did not.', **own
  )
  flags.DEFINE_integer(
    'dim', None, 'd, if external scores are cosines in R^d.', **own
  )
  flags.DEFINE_enum(
    'design',
    None,
    ['fixed', 'coin_flip'],
    'How the canaries of external scores were included. Default: the convention of '
    'the tool that wrote them, or fixed.',
    **own,
  )
  flags.DEFINE_enum(
    'from',
    'auto',
    ['auto', *_FORMATS],
    'Tool that wrote the external scores.',
    **own,
  )
  flags.DEFINE_enum(
    'higher',
    None,
    ['in', 'out'],
    'Which group scores higher in a file of external scores: canaries that took '
    'part (in) or the others (out). Default: the convention of the tool, or in.',
    **own,
  )
  flags.DEFINE_float(
    'inclusion_probability',
    None,
    'With --design=coin_flip: the probability that a canary took part; the largest, '
    'if they differ. Default: that of the tool, or 1/2.',
    **own,
  )
  flags.DEFINE_integer(
    'every',
    None,
    'Assume that only every n-th round of a run is published.',
    **own,
  )
  flags.DEFINE_integer(
    'last',
    None,
    'Assume that only the last n rounds of a run are published.',
    **own,
  )
  flags.DEFINE_bool(
    'models',
    False,
    'With --every or --last: the models after the rounds are published, not the '
    'aggregates.',
    **own,
  )


def load(values: flags.FlagValues, paths: Sequence[str]) -> tuple[str, Any]:
  """Loads external scores, or the part of a run that attackers see.

  Args:
    values: flags, parsed.
    paths: one file or workdir; none with --in_scores and --out_scores.

  Returns:
    What to call it in messages, and `Scores` or a `Record`.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it has no scores, or flags do not go together.
  """
  from epe_jax.audit import published_models
  from epe_jax.epsilon.types import Scores

  path, scores = _read(values, paths)
  is_external = isinstance(scores, Scores)
  is_part = values.every is not None or values.last is not None or values.models
  if not is_external and (values.dim is not None or values.design is not None):
    raise ValueError('--dim and --design are for files of other systems.')
  if is_external and (is_part or values.by_round):
    raise ValueError(
      '--every, --last, --models and --by_round need a run of epe_jax.'
    )
  if is_part and values.by_round:
    raise ValueError(
      '--by_round is for a whole run; remove --every, --last and --models.'
    )
  if isinstance(scores, Scores):
    _tell_conventions(values, path, scores)
    return path, scores
  return path, published_models.restrict_record(
    scores, every=values.every, last=values.last, models=values.models
  )


def has_counts(values: flags.FlagValues, path: str) -> bool:
  """Whether a file has counts of guesses instead of scores."""
  from epe_jax.experiment import score_files

  tool = score_files.find_format(path, getattr(values, 'from'))
  return tool is not None and tool.read is None


def refuse_flags_of_scores(values: flags.FlagValues, path: str) -> None:
  """Refuses what makes no sense of counts.

  Raises:
    ValueError: a flag of scores is given.
  """
  for name in _SCORE_FLAGS:
    if values[name].present:
      raise ValueError(
        f'--{name} is of scores, but {path} has counts; leave it out.'
      )


def refuse_reversed(values: flags.FlagValues, path: str, scores: Any) -> None:
  """Refuses to judge a claim by scores whose sign is probably reversed.

  Raises:
    ValueError: canaries that took part score lower beyond chance.
  """
  from epe_jax.experiment.score_formats import groups

  higher = _find_higher(values, path)
  if groups.warn_if_reversed(scores, higher=higher):
    other = 'in' if higher == 'out' else 'out'
    raise ValueError(
      f'--claim={values.claim:g} cannot be judged by scores whose sign is probably '
      f'reversed; if {"lower" if other == "out" else "higher"} '
      f'scores mean "took part", give --higher={other}.'
    )


def tell(text: str) -> None:
  """Says something on stderr, as stdout has the table or JSON."""
  print(text, file=sys.stderr)


def _read(values: flags.FlagValues, paths: Sequence[str]) -> tuple[str, Any]:
  from epe_jax.experiment import finished_runs, score_files

  probability = values.inclusion_probability
  if probability is not None and values.design != 'coin_flip':
    raise ValueError(
      f'--inclusion_probability={probability} is for canaries that were included '
      'by coin flips; add --design=coin_flip.'
    )
  settings = {
    'dim': values.dim,
    'design': values.design,
    'inclusion_probability': probability,
    'higher': values.higher,
  }
  pair = values.in_scores, values.out_scores
  if pair == (None, None):
    (path,) = paths
    finished_runs.check_audited(path)
    source = getattr(values, 'from')
    scores, note = score_files.load(path, source=source, **settings)
    if note is not None:
      tell(f'{path}: {note}.')
    return path, scores
  if paths:
    raise ValueError(
      f'--in_scores and --out_scores are all scores there are, but {paths[0]} is '
      'given, too; leave it out.'
    )
  if None in pair:
    missing = 'out_scores' if pair[1] is None else 'in_scores'
    raise ValueError(
      f'--{missing} is missing: an audit compares canaries that took part with '
      'others. Give both files, or one with both groups.'
    )
  return f'{pair[0]}, {pair[1]}', score_files.load_groups(*pair, **settings)


def _find_format(values: flags.FlagValues, path: str) -> Any:
  """The format of another tool; None of tables, and a file for each group."""
  from epe_jax.experiment import score_files

  if values.in_scores is not None:
    return None
  return score_files.find_format(path, getattr(values, 'from'))


def _find_higher(values: flags.FlagValues, path: str) -> str:
  """Who was taken to score higher."""
  tool = _find_format(values, path)
  return values.higher or (tool.higher if tool else 'in')


def _tell_conventions(values: flags.FlagValues, path: str, scores: Any) -> None:
  """Says how scores were read, and whether the sign is probably wrong."""
  from epe_jax.experiment.score_formats import groups

  tool, higher = _find_format(values, path), _find_higher(values, path)
  if tool is not None:
    tell(
      f'{path}: read as {tool.label}; higher={higher}, design={scores.design}, '
      f'inclusion probability {scores.inclusion_probability:g}.'
    )
  if warning := groups.warn_if_reversed(scores, higher=higher):
    tell(f'warning: {path}: {warning}')
