"""Audits of scores from any system: a value that shows itself, and a page."""

import dataclasses
import os
import pathlib
from typing import Any, Literal
import warnings

from epe_jax import extras, io
from epe_jax.audit import evaluation
from epe_jax.audit.results import Audit, Headline
from epe_jax.epsilon.checks import check_delta
from epe_jax.epsilon.types import Estimate, Scores
from epe_jax.report import (
  audit_notes,
  checks,
  first_page,
  page,
  report,
  tables,
  terminal,
)
from epe_jax.scores import baseline as baselines
from epe_jax.scores import formats


@dataclasses.dataclass(frozen=True, repr=False)
class ScoreAudit:
  """Every estimate of ε from scores of any system.

  Its text is the headline and one row, with letters spelt out that stdout cannot
  encode; a notebook shows the same as Markdown. `plot()` is a figure.

  Attributes:
    scores: of canaries that took part and of those that did not.
    audit: point estimates and bounds, as `audit.evaluate_scores` gives them.
    warning: what to do where the sign of scores is probably wrong; else None.
  """

  scores: Scores
  audit: Audit
  warning: str | None

  @property
  def lower_bound(self) -> Estimate:
    """The bound that was fixed before any score was seen, 95 %."""
    return self._headline.bound

  @property
  def point_estimate(self) -> Estimate | None:
    """The estimate with a 90 % interval; None where a test speaks against it."""
    return self._headline.point

  @property
  def text(self) -> str:
    """The page that everybody reads, as the command line prints it."""
    return report.format_headline_estimates(self.audit)

  @property
  def _summary(self) -> page.Page:
    return page.Page('', first_page.make_summary_blocks(self.audit))

  @property
  def _headline(self) -> Headline:
    found = self.audit.headline
    assert found is not None, 'scores have a bound'
    return found

  def __repr__(self) -> str:
    return terminal.spell_for_stdout(page.render_text(self._summary))

  def _repr_markdown_(self) -> str:
    return page.render_markdown(self._summary)

  def plot(self) -> Any:
    """Draws the scores and the trade-off of the attack; needs Matplotlib.

    Returns:
      A `matplotlib.figure.Figure`, which a notebook shows.

    Raises:
      ModuleNotFoundError: Matplotlib is missing.
    """
    with extras.explain_missing():
      from epe_jax.report.figures import of_audit

    return of_audit.draw_scores(self.audit)['densities.png']


def estimate(
  in_scores: Any,
  out_scores: Any,
  *,
  delta: float,
  higher: Literal['in', 'out'] = 'in',
  dim: int | None = None,
  design: Literal['fixed', 'coin_flip'] = 'fixed',
  inclusion_probability: float = 0.5,
  simultaneous: bool = False,
  baseline: tuple[Any, Any] | None = None,
) -> ScoreAudit:
  """Estimates ε from the scores of canaries, or members, of any system.

  Args:
    in_scores: [n1] real numbers, n1 >= 2, of canaries that took part: a list or
      anything that NumPy takes for an array.
    out_scores: [n0] of canaries that did not, n0 >= 2; empty only if `dim` is given.
    delta: δ, in (0, 1).
    higher: which group scores higher. 'out' is for losses, which are lower for what was
      trained on. Do not choose it by the result.
    dim: d, if scores are cosines in R^d with a known law; otherwise None.
    design: 'coin_flip' if each canary took part by a coin of its own.
    inclusion_probability: of these coins, in (0, 1).
    simultaneous: lower bounds hold all together at 95 %, not each by itself.
    baseline: [n1] and [n0] scores of the same examples by what has never seen the model,
      where the groups may not be of one population: ε is of pairs of neighbours
      in its order.

  Returns:
    The bound and the estimate to report; `audit` has all as values.

  Warns:
    UserWarning: canaries that took part score lower beyond chance, so that the sign
      is probably wrong.

  Raises:
    ValueError: a setting is out of range, or scores are too few, not finite or no
      real numbers [n].

  >>> import numpy as np
  >>> rng = np.random.default_rng(0)
  >>> found = estimate(rng.normal(2, 1, 200), rng.normal(0, 1, 200), delta=1e-5)
  >>> found.lower_bound.confidence, found.lower_bound.epsilon > 0.5
  (0.95, True)
  """
  check_delta(delta)
  scores = formats.make_scores(
    None,
    in_scores,
    out_scores,
    names=('in_scores', 'out_scores'),
    higher=higher,
    dim=dim,
    design=design,
    inclusion_probability=inclusion_probability,
  )
  failed_check = formats.find_reversed(scores, higher=higher)
  warning = None
  if failed_check is not None:
    warning = f'{checks.describe_check(failed_check)}.'
    warnings.warn(warning, stacklevel=2)
  known = None
  if baseline is not None:
    names = 'baseline[0]', 'baseline[1]'
    blind = formats.make_scores(None, *baseline, names=names)
    scores, known = baselines.keep_neighbors(
      scores, blind, delta=delta, name='baseline'
    )
  audit = evaluation.evaluate_scores(
    scores, delta=delta, simultaneous=simultaneous
  )
  if known is not None:
    audit = audit_notes.add_check(audit, known)
  if failed_check is not None:
    audit = audit_notes.replace_checks(audit, failed_check)
  return ScoreAudit(scores, audit, warning)


def write_score_report(
  folder: str | os.PathLike, scores: Scores, audit: Audit
) -> pathlib.Path:
  """Writes report.md, report.html, estimates.json and figures of scores.

  Args:
    folder: made if it is not there; files of these names are replaced.
    scores: of any system.
    audit: what `audit.evaluate_scores` returns of them.

  Returns:
    The path of report.md.

  Raises:
    ModuleNotFoundError: Matplotlib is missing.
    OSError: the folder cannot be written.
  """
  with extras.explain_missing():
    from epe_jax.report import html as pages
    from epe_jax.report.figures import of_audit

  figures = of_audit.draw_scores(audit)
  content = report.make_audit_page(
    audit,
    of_audit.SCORE_CAPTIONS,
    title='Privacy audit of scores',
    design=scores.design,
  )
  with tables.limit_width(tables.WIDTH):  # Whatever the terminal's is.
    path = pages.write_page(folder, 'report', content, figures)
  io.write_json(
    path.parent / 'estimates.json', first_page.describe_in_json(audit)
  )
  return path
