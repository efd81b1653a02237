"""Flags that say what scores are read from, and how."""

from collections.abc import Sequence
import pathlib
import sys
from typing import Any, NamedTuple

from absl import flags

from epe_jax.cli import command_flags
from epe_jax.cli.command_flags import Flag
from epe_jax.fact import Fact

_SETTINGS = 'dim', 'design', 'inclusion_probability', 'higher'
_ROLES = 'score', 'label', 'labels', 'baseline', 'num_in', 'num_out'
# What flags are of; others are of anything.
_APPLIES = {
  **dict.fromkeys((*_SETTINGS, 'out'), ('scores',)),
  **dict.fromkeys(
    (*_ROLES, 'in_scores', 'out_scores', 'from'), ('scores', 'counts')
  ),
  **dict.fromkeys(
    ('every', 'last', 'models', 'by_round', 'deltas'), ('a run',)
  ),
  'simultaneous': ('scores', 'a run', 'an auditor'),
  'all': ('scores', 'a run'),
}


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of scores and of what attackers see of a run."""
  command_flags.define(
    values,
    command_flags.DELTA._replace(
      help="δ, in (0, 1). Required for external scores. Default for a run: the run's."
    ),
    Flag(
      'in_scores',
      'File with the scores of canaries that took part, one per line, or .npy; next '
      'to a file of scores, its column.',
    ),
    Flag('out_scores', 'File or column with those of canaries that did not.'),
    Flag(
      'score',
      'Column of the scores of all canaries; A-B is the difference of two.',
    ),
    Flag('label', 'Column that says who took part: 1 or 0.'),
    Flag(
      'labels', 'File of labels, one per line, or .npy, of a file of scores.'
    ),
    Flag(
      'baseline',
      'Column, or with --labels a file, with scores of the same examples by what has '
      'never seen the model, such as another model: ε is then of pairs of '
      'neighbours in its order. none says that both groups are of one population.',
    ),
    Flag(
      'num_in',
      'Of a ROC (fpr and tpr): how many canaries took part.',
      int,
      smallest=1,
    ),
    Flag('num_out', 'How many did not.', int, smallest=1),
    Flag('dim', 'd, if external scores are cosines in R^d.', int),
    command_flags.DESIGN._replace(
      help='How the canaries of external scores were included. Default: the '
      'convention of the tool that wrote them, or fixed.'
    ),
    Flag(
      'from',
      'Tool that wrote the external scores, such as rmia; auto recognizes it. Any '
      'other word lists all tools.',
      default='auto',
    ),
    Flag(
      'higher',
      'Which group scores higher in a file of external scores: canaries that took '
      'part (in) or the others (out). Default: the convention of the tool, or in.',
      ('in', 'out'),
    ),
    Flag(
      'inclusion_probability',
      'With --design=coin_flip: the probability that a canary took part; if they '
      'differ, the largest where all are below 1/2, the smallest where all are above. '
      'Default: 1/2.',
      float,
    ),
    Flag(
      'every',
      'Assume that only every n-th round of a run is published.',
      int,
    ),
    Flag(
      'last', 'Assume that only the last n rounds of a run are published.', int
    ),
    Flag(
      'models',
      'With --every or --last: the models after the rounds are published, not the '
      'aggregates.',
      bool,
      False,
    ),
  )


class ScoreInput(NamedTuple):
  """What was read.

  Attributes:
    path: what to call it in messages.
    scores: `Scores`, `Counts` or a `Record`.
    failed_check: that the sign of scores is probably wrong; else None.
    baseline: scores of a baseline, if one is named.
    doubt: that the groups differ otherwise than by what was asked for; else None.
  """

  path: str
  scores: Any
  failed_check: Fact | None = None
  baseline: Any = None
  doubt: Fact | None = None

  @property
  def doubts(self) -> tuple[Fact, ...]:
    """Why a claim cannot be judged."""
    return tuple(x for x in (self.failed_check, self.doubt) if x is not None)


def load(values: flags.FlagValues, paths: Sequence[str]) -> ScoreInput:
  """Loads external scores, or the part of a run that attackers see.

  Args:
    paths: one file or workdir; none with --in_scores and --out_scores.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it has no scores, or flags do not go together.
  """
  from epe_jax.epsilon.types import Scores
  from epe_jax.scores import counts, formats
  from epe_jax.watch import published_models

  path, loaded = _read(values, paths)
  scores = loaded.scores
  if isinstance(scores, counts.Counts):
    refuse_flags(values, path, 'counts')
    return ScoreInput(path, scores)
  refuse_flags(
    values, path, 'scores' if isinstance(scores, Scores) else 'a run'
  )
  is_part = values.every is not None or values.last is not None or values.models
  if is_part and values.by_round:
    raise ValueError(
      '--by_round is for a whole run; remove --every, --last and --models.'
    )
  if isinstance(scores, Scores):
    higher = values.higher or (loaded.tool.higher if loaded.tool else 'in')
    _tell_conventions(path, scores, loaded.tool, higher)
    failed = formats.find_reversed(scores, higher=higher, option='--higher')
    return ScoreInput(path, scores, failed, loaded.baseline, loaded.doubt)
  part = published_models.restrict_record(
    scores, every=values.every, last=values.last, models=values.models
  )
  return ScoreInput(path, part)


def refuse_flags(values: flags.FlagValues, path: str, kind: str) -> None:
  """Refuses flags that say nothing of what a path holds, one of `_APPLIES`."""
  for name, kinds in _APPLIES.items():
    if values[name].present and kind not in kinds:
      raise ValueError(
        f'--{name} is of {kinds[0]}, but {path} holds {kind}; leave it out.'
      )


def is_auditor(paths: Sequence[str]) -> bool:
  """Whether the first of some files is one that `Auditor.save` wrote."""
  from epe_jax import io

  path = pathlib.Path(*paths[:1])
  is_archive = path.suffix == '.npz' and path.is_file()
  return is_archive and {'key', 'config', 'schema'} <= io.list_arrays(path)


def refuse_claim(values: flags.FlagValues, path: str, *doubts: Fact) -> None:
  """Refuses to judge a claim by scores that may say nothing of the model.

  Raises:
    ValueError: there is a doubt.
  """
  from epe_jax.report import checks

  for fact in doubts:
    why = checks.describe_check(fact)
    raise ValueError(
      f'--claim={values.claim:g} cannot be judged: {why}; see {path}.'
    )


def warn_of_delta(delta: float, num_clients: float | None = None) -> None:
  """Says on stderr if a δ is too large, as `epsilon.checks.warn_of_delta` has it."""
  from epe_jax.epsilon import checks

  if warning := checks.warn_of_delta(delta, num_clients):
    tell(f'warning: {warning}.')


def tell(text: str) -> None:
  """Says something on stderr, as stdout has the table or JSON."""
  print(text, file=sys.stderr)


def _read(values: flags.FlagValues, paths: Sequence[str]) -> tuple[str, Any]:
  """What to call the scores in messages, and `score_files.Loaded`."""
  from epe_jax.experiment import finished_runs
  from epe_jax.scores import score_files

  probability = values.inclusion_probability
  if probability is not None and values.design != 'coin_flip':
    raise ValueError(
      f'--inclusion_probability={probability} is for canaries that were included '
      'by coin flips; add --design=coin_flip.'
    )
  settings: Any = {
    name: values[name].value
    for name in _SETTINGS
    if values[name].value is not None
  }
  pair = values.in_scores, values.out_scores
  if paths:
    (path,) = paths
    finished_runs.check_record(path)
    for name, given in zip(('in_scores', 'out_scores'), pair):
      if given is not None and pathlib.Path(given).is_file():
        raise ValueError(
          f'--{name}={given} is a file, but {path} is given, too; leave one of them '
          'out, or name a column of it.'
        )
    roles = score_files.Roles(
      *(values[name].value for name in score_files.Roles._fields)
    )
    source = getattr(values, 'from')
    loaded = score_files.load(path, source=source, roles=roles, **settings)
    return path, loaded
  if None in pair:
    missing = 'out_scores' if pair[1] is None else 'in_scores'
    raise ValueError(
      f'--{missing} is missing: an audit compares canaries that took part with '
      'others. Give both files, or one with both groups.'
    )
  for name in _ROLES:
    if values[name].value is not None:
      raise ValueError(
        f'--{name}={values[name].value} is of one file of scores, but each group has a '
        'file of its own; leave it out.'
      )
  scores = score_files.load_groups(*pair, **settings)
  return f'{pair[0]}, {pair[1]}', score_files.Loaded(scores)


def _tell_conventions(path: str, scores: Any, tool: Any, higher: str) -> None:
  """Says how scores were read."""
  if tool is not None:
    tell(
      f'{path}: read as {tool.label}; higher={higher}, design={scores.design}, '
      f'inclusion probability {scores.inclusion_probability:g}.'
    )
