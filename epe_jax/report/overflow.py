"""Updates of clients that were too large to be clipped: they count as zero."""

from collections.abc import Mapping, Sequence
import math
from typing import Any


def describe_overflow(history: Sequence[Mapping[str, Any]]) -> list[str]:
  """Says in how many rounds clients diverged, so that their updates were lost.

  CLIP(x; S) = x min(1, S / |x|) is 0 where |x| overflows float32. Metrics have the
  mean norm of a round's updates, so they do not tell how many of its clients it was.

  Args:
    history: the lines of metrics.jsonl. Those that may be published have no norms of
      updates, and nothing is said of them.

  Returns:
    A sentence or two as one paragraph; nothing if all norms are finite.
  """
  rounds = [line for line in history if 'update_norm' in line]
  lost = [x for x in rounds if not math.isfinite(float(x['update_norm']))]
  if not lost:
    return []
  empty = sum(float(line.get('sum_norm', math.nan)) == 0 for line in lost)
  text = (
    f'In {len(lost):,} of {len(rounds):,} rounds clients diverged: the norm of at '
    'least one update overflowed, and clipping made such updates zero.'
  )
  if empty:
    text += (
      f' In {empty:,} of them nothing was left of any update, so the model learned '
      'nothing from its clients.'
    )
  return [f'{text} Lower config.client.learning_rate.']
