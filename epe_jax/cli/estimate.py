"""Estimates ε from scores of any system, or of a finished run, without training.

  epe-jax estimate scores.csv --delta=1e-5
  epe-jax estimate losses.csv --delta=1e-5 --higher=out --out=report
  epe-jax estimate --in_scores=in.txt --out_scores=out.txt --delta=1e-5
  epe-jax estimate attack.csv --delta=1e-5 --score=target-reference --label=member
  epe-jax estimate attack.csv --delta=1e-5 --score=target --label=split --baseline=reference
  epe-jax estimate losses.npy --labels=members.npy --delta=1e-5 --higher=out
  epe-jax estimate roc.json --num_in=500 --num_out=500 --delta=1e-5
  attack | epe-jax estimate - --delta=1e-5 --claim=3
  epe-jax estimate report/exp/attack_result_0.npz --delta=1e-5
  epe-jax estimate runs/digits --all
  epe-jax estimate runs/digits --every=10 --models
  epe-jax estimate runs/digits --by_round
  epe-jax estimate runs/seed0 runs/seed1 runs/seed2
  epe-jax estimate auditor.npz --claim=3

A file of scores is a table (.csv, .tsv, .json, .jsonl, .parquet) with columns in and
out (or member and nonmember), or score and label; or an .npz with such arrays. --score,
--label, --in_scores and --out_scores name columns that are called otherwise. A ROC, and
guesses or their counts, are read too. - reads a table from stdin. Files of ML Privacy
Meter, RMIA and privacy-estimates are recognized. For a run, give its workdir or its
private/scores.npz; for a loop of another framework, what `Auditor.save` wrote.

The command prints the first page of a report, whose headline the design fixes before
any score is seen. --all prints every estimate: those without a guarantee; lower bounds,
which hold at their stated confidence; and credible bounds, which hold only on average
over a prior.

--out=DIR writes report.md and report.html of external scores, with figures. With
--claim=EPS the exit status is 1 if the headline bound exceeds EPS.

With --every or --last, attackers see only some rounds of a run: their aggregates, or
with --models the models after them. --by_round prints how much had leaked by several
rounds.

For several runs of one config, the command prints the μ and ε of each, their mean with
an interval over runs, and a prediction for one more run.
"""

from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Any, NamedTuple

from absl import app, flags

from epe_jax.cli import claims, command_flags, score_input
from epe_jax.cli.command_flags import Flag

# Scores whose floors take so long that somebody waits.
_MANY = 100_000


class Estimated(NamedTuple):
  """Results to print.

  Attributes:
    values: for JSON.
    text: for people.
    bounds: lower bounds that hold together, by which a claim is judged.
    test: of the claim by the rounds of a run; None if there is none.
  """

  values: Any
  text: str
  bounds: Sequence[Any]
  test: Any = None


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of `estimate`."""
  score_input.define_flags(values)
  command_flags.define(
    values,
    command_flags.CLAIM_OF_SEVERAL,
    Flag('by_round', 'Print ε after several rounds of a run.', bool, False),
    command_flags.SIMULTANEOUS._replace(
      help='Make all lower bounds hold together at 95 %, not each by itself: for '
      'all attackers and, with --by_round or --deltas, all rounds and δ.'
    ),
    Flag(
      'deltas',
      'With --simultaneous: make the bounds at all these δ hold together.',
      list,
    ),
    command_flags.OUT._replace(
      help='Folder for a report of external scores, with figures.'
    ),
    Flag('all', 'Print every estimate, not only the headline.', bool, False),
    command_flags.FORMAT._replace(kind=('text', 'json', 'markdown')),
  )


def execute(values: flags.FlagValues, argv: Sequence[str]) -> int:
  """Runs the command, as `program` does."""
  paths = values(list(argv))[1:]
  claims.check_claim(values.claim)
  from epe_jax import io
  from epe_jax.scores import score_files

  if values.out is not None:
    _check_figures()
    io.check_folder('out', values.out)
  if not paths and values.in_scores is None and values.out_scores is None:
    raise app.UsageError(f'Give a file of scores. {score_files.CURE}')
  whom = _describe_whom(values.claim, paths, delta=values.delta)
  estimated = _estimate(values, paths)
  score_input.warn_of_delta(
    max(map(float, values.deltas or [values.delta or 0]))
  )
  text, as_json = estimated.text, values.format == 'json'
  if as_json:
    text = io.format_json(estimated.values)
  print(text)
  return claims.report_claim(
    values.claim,
    estimated.bounds,
    test=estimated.test,
    whom=whom,
    to_stderr=as_json,
  )


def _describe_whom(
  claim: float | None, paths: Sequence[str], *, delta: float | None = None
) -> str:
  """Of whom a claim is judged, if paths are of finished runs."""
  if claim is None:
    return ''
  told = ''
  for path in paths:
    if (run := _find_run(path)) is not None:
      told = claims.describe_whom(claim, run[1], delta=delta) or told
  return told


def _find_run(path: str) -> tuple[pathlib.Path, Any] | None:
  """The workdir and the result of a finished run; None if a path is of none."""
  from epe_jax.experiment import finished_runs, workdirs

  folder = pathlib.Path(path).absolute()
  # A run may be given by its scores.
  if folder == workdirs.workdir_at(folder.parent.parent).scores:
    folder = folder.parent.parent
  try:
    return folder, finished_runs.load_result(folder)
  except (FileNotFoundError, NotADirectoryError):
    return None


def _check_figures() -> None:
  """Fails before any work where figures cannot be drawn."""
  from epe_jax.report.figures import of_audit as of_audit


def _estimate(given: flags.FlagValues, paths: Sequence[str]) -> Estimated:
  """Every estimate from some files."""
  from epe_jax.epsilon.types import Scores
  from epe_jax.scores.counts import Counts

  if len(paths) > 1:
    return _estimate_runs(given, paths)
  if score_input.is_auditor(paths):
    return _estimate_auditor(given, paths[0])
  loaded = score_input.load(given, paths)
  scores = loaded.scores
  if isinstance(scores, Counts):
    return _bound_counts(given, loaded.path, scores)
  if isinstance(scores, Scores):
    return _estimate_external(given, loaded)
  if given.deltas is not None and not given.simultaneous:
    raise ValueError(
      f'--deltas={",".join(given.deltas)} is of bounds that hold together; add '
      '--simultaneous.'
    )
  if given.deltas is not None and given.delta is not None:
    raise ValueError(
      f'--delta={given.delta:g} and --deltas are given; leave one out.'
    )
  if given.simultaneous and (given.by_round or given.deltas is not None):
    return _bound_simultaneously(given, scores)
  if given.by_round:
    return _estimate_by_round(given, scores)
  from epe_jax.audit import evaluation

  audit = evaluation.evaluate(
    scores,
    delta=given.delta,
    more=_needs_all(given),
    simultaneous=given.simultaneous,
  )
  is_whole = not (given.every or given.last or given.models)
  has_page = is_whole and given.delta is None
  run = _find_run(loaded.path) if has_page else None
  return _format_audit(given, audit, run)


def _estimate_auditor(given: flags.FlagValues, path: str) -> Estimated:
  """All attackers, as the loop prints them."""
  from epe_jax.auditor import claim_check
  from epe_jax.auditor.auditor import Auditor, format_report
  from epe_jax.report import checks, first_page

  score_input.refuse_flags(given, path, 'an auditor')
  auditor = Auditor.load(path)
  audit = auditor.evaluate(delta=given.delta, simultaneous=given.simultaneous)
  record = auditor.record()
  failed = claim_check.check_claim(record, audit)
  if given.claim is not None:
    doubts = (x for x in failed if x.key == 'canaries_not_as_predicted')
    score_input.refuse_claim(given, path, *doubts)
  text = format_report(auditor, record, audit)
  if given.format == 'markdown':
    text = f'```\n{text}\n```'
  values = first_page.describe_in_json(audit)
  values['warnings'] = [
    *map(checks.describe_check, failed),
    *values['warnings'],
  ]
  return Estimated(values, text, claims.choose_bounds(audit))


def _needs_all(given: flags.FlagValues) -> bool:
  """Whether more is shown than the headline, which is there in any case.

  Bounds that hold together share one level: what they are must not depend on how many
  of them are printed.
  """
  return (
    given.all
    or given.simultaneous
    or given.format == 'json'
    or (given.out is not None)
  )


def _format_audit(
  given: flags.FlagValues,
  audit: Any,
  run: tuple[pathlib.Path, Any] | None = None,
) -> Estimated:
  """The page of an audit, or of a whole run with what only its auditor may know."""
  from epe_jax.report import page, provenance, report
  from epe_jax.report.first_page import describe_in_json

  if run is None:
    content = report.make_audit_page(audit)
  else:
    workdir, result = run
    content = report.make_page(
      dataclasses.replace(result, audit=audit),
      belongs_to=provenance.identify_workdir(workdir, result),
    )
  if not given.all:
    content = content._replace(appendix={})
  text = page.render_text(content, has_appendix=True)
  if given.format == 'markdown':
    text = page.render_markdown(content)
  bounds = claims.choose_bounds(audit)
  return Estimated(describe_in_json(audit), text, bounds)


def _estimate_external(
  given: flags.FlagValues, loaded: score_input.ScoreInput
) -> Estimated:
  from epe_jax.audit import evaluation
  from epe_jax.report import audit_notes, checks

  delta = _require_delta(given, loaded.path)
  if given.claim is not None:
    score_input.refuse_claim(given, loaded.path, *loaded.doubts)
  scores, known = loaded.scores, loaded.doubt
  if loaded.baseline is not None:
    from epe_jax.scores import baseline

    scores, known = baseline.keep_neighbors(
      scores, loaded.baseline, delta=delta, name=given.baseline
    )
  num = sum(map(len, (scores.observed, scores.unobserved)))
  if num > _MANY:
    score_input.tell(
      f'{num:,} scores: simulating what estimators report without a leak takes '
      'about a minute for each half a million of them.'
    )
  audit = evaluation.evaluate_scores(
    scores,
    delta=delta,
    more=_needs_all(given),
    simultaneous=given.simultaneous,
  )
  if known is not None:
    audit = audit_notes.add_check(audit, known)
  if loaded.failed_check is not None:
    audit = audit_notes.replace_checks(audit, loaded.failed_check)
    if given.format == 'json':
      why = checks.describe_check(loaded.failed_check)
      score_input.tell(f'warning: {loaded.path}: {why}.')
  estimated = _format_audit(given, audit)
  if given.out is not None:
    from epe_jax.scores import score_audit

    page = score_audit.write_score_report(given.out, scores, audit)
    score_input.tell(f'Report and figures: {page.with_suffix(".html")}')
  return estimated


def _estimate_runs(given: flags.FlagValues, paths: Sequence[str]) -> Estimated:
  for name in ('by_round', 'simultaneous', 'deltas', 'out', 'baseline', 'all'):
    if given[name].present and given[name].value != 'none':
      raise ValueError(
        f'--{name} is of one file, but {len(paths)} are given; leave it out.'
      )
  from epe_jax.audit import audit_json
  from epe_jax.report.comparisons import over_reports
  from epe_jax.scores import score_files
  from epe_jax.scores.counts import Counts
  from epe_jax.several_runs import run_effects

  files = [score_files.find_scores(path).resolve() for path in paths]
  for path, file in zip(paths, files):
    if files.count(file) > 1:
      raise ValueError(
        f'{path} is given more than once, but runs must be independent; give '
        'it once.'
      )
  loaded = {path: score_input.load(given, [path]) for path in paths}
  if given.claim is not None:
    for one in loaded.values():
      score_input.refuse_claim(given, one.path, *one.doubts)
  runs = {path: one.scores for path, one in loaded.items()}
  for path, scores in runs.items():
    if isinstance(scores, Counts):
      raise ValueError(
        f'{path} has counts of guesses and no scores. Give it alone.'
      )
  effects = run_effects.evaluate_runs(runs, delta=given.delta)
  text = _show(given, over_reports.format_over_runs(effects))
  # Of the strongest attacker, as of a single run.
  bounds = [effects[-1].bound]
  return Estimated(audit_json.to_plain(effects), text, bounds)


def _bound_counts(given: flags.FlagValues, path: str, counts: Any) -> Estimated:
  from epe_jax.scores import counts as counted

  if warning := counted.warn_if_reversed(counts):
    if given.claim is not None:
      raise ValueError(
        f'--claim={given.claim:g} cannot be judged: {path}: {warning}'
      )
    score_input.tell(f'warning: {path}: {warning}')
  bound = counted.bound_counts(counts, delta=_require_delta(given, path))
  text = _show(given, counted.format_counts(counts, bound))
  return Estimated([dataclasses.asdict(bound)], text, [bound])


def _estimate_by_round(given: flags.FlagValues, record: Any) -> Estimated:
  from epe_jax.audit import audit_json
  from epe_jax.epsilon.types import Estimate
  from epe_jax.report.comparisons import over_reports
  from epe_jax.watch import by_round, sequential

  rounds = by_round.evaluate_by_round(record, delta=given.delta)
  bounds = sequential.bound_sequentially(
    record, delta=given.delta, claim=given.claim
  )
  text = _show(given, over_reports.format_over_rounds(rounds, bounds))
  values = audit_json.to_plain(by_round.Rounds(tuple(rounds), bounds))
  if given.claim is None or bounds is None:
    return Estimated(values, text, [])
  # They hold at all rounds at once, so that the largest does.
  bound = Estimate(
    epsilon=float(bounds.epsilon.max()),
    delta=bounds.delta,
    method='epsilon_sequence',
    confidence=1 - bounds.significance,
    kind='confidence_bound',
  )
  return Estimated(values, text, [bound], bounds.test_claim())


def _bound_simultaneously(given: flags.FlagValues, record: Any) -> Estimated:
  from epe_jax.audit import audit_json
  from epe_jax.report.comparisons import over_reports
  from epe_jax.watch import by_round

  deltas = None if given.delta is None else [given.delta]
  if given.deltas is not None:
    try:
      deltas = [float(text) for text in given.deltas]
    except ValueError as error:
      raise ValueError(
        f'--deltas={",".join(given.deltas)}; give numbers in (0, 1), with '
        'commas between.'
      ) from error
  if given.claim is not None:
    raise ValueError(
      f'--claim={given.claim:g} is tested by bounds of its own; remove it, or '
      '--simultaneous and --deltas.'
    )
  rounds = by_round.choose_rounds(record).tolist()
  bounds = by_round.bound_simultaneously(
    record, rounds=rounds if given.by_round else None, deltas=deltas
  )
  text = _show(given, over_reports.format_simultaneous(bounds))
  return Estimated(audit_json.to_plain(bounds), text, [])


def _show(given: flags.FlagValues, markdown: str) -> str:
  from epe_jax.report import tables

  if given.format == 'markdown':
    return markdown
  return tables.render_text(markdown, is_folded=False)


def _require_delta(given: flags.FlagValues, path: str) -> float:
  if given.delta is None:
    raise ValueError(
      f'{path} names no delta; give --delta, for example --delta=1e-5.'
    )
  return given.delta
