"""Poisson batches for DP-SGD, padded to one size.

The batches of all steps are drawn before the first step, so that a batch that does
not fit is an error before training.
"""

import bisect

from jaxtyping import Int
import numpy as np
from scipy import stats

from epe_jax import extras, streams

OVERFLOW_PROBABILITY = 1e-12
"""Probability that any batch of a run has more examples than places."""


def choose_padded_batch(
  num_examples: int,
  expected_batch: float,
  *,
  steps: int,
  multiple: int = 1,
) -> int:
  """The number of places that all Poisson batches of a run fit into.

  Args:
    num_examples: N >= 1.
    expected_batch: m, 0 < m <= N. Each example is sampled in each step with
      probability m / N.
    steps: T >= 1.
    multiple: the result is a multiple of it, >= 1, as of the size of microbatches.

  Raises:
    ValueError: an argument is out of range.

  >>> choose_padded_batch(50_000, 4096, steps=2500)
  4599
  >>> choose_padded_batch(10, 10, steps=5, multiple=4)
  12
  """
  _check_batch(num_examples, expected_batch, steps)
  if multiple < 1:
    raise ValueError(f'multiple={multiple}; give 1 or more.')
  rate = expected_batch / num_examples
  # Its own isf is of 1 - q, which float64 rounds to 1.
  largest = bisect.bisect_left(
    range(num_examples),
    True,
    key=lambda k: (
      stats.binom.sf(k, num_examples, rate) <= OVERFLOW_PROBABILITY / steps
    ),
  )
  return -(-max(largest, 1) // multiple) * multiple


def draw_poisson_batches(
  seed: int,
  purpose: str,
  *,
  num_examples: int,
  expected_batch: float,
  steps: int,
  microbatch: int | None = None,
) -> Int[np.ndarray, 'steps b']:
  """Draws each example in each step with probability m / N.

  The indices take 4 T b bytes. The seed is as secret as the batches.

  Args:
    seed: root of `streams.sequence`.
    purpose: of the stream; batches of different purposes are independent.
    num_examples: N >= 1.
    expected_batch: m, 0 < m <= N.
    steps: T >= 1.
    microbatch: size of microbatches, which divides b; microbatches without
      examples come last. None for none.

  Returns:
    int32, -1 in places that are padding.

  Raises:
    ValueError: an argument is out of range; or a batch does not fit, with a
      probability of `OVERFLOW_PROBABILITY` at most. Batches are never truncated.
    ModuleNotFoundError: jax-privacy is not installed.
  """
  with extras.explain_missing():
    from jax_privacy import batch_selection

  size = choose_padded_batch(
    num_examples,
    expected_batch,
    steps=steps,
    multiple=microbatch or 1,
  )
  sampling = batch_selection.CyclicPoissonSampling(
    sampling_prob=expected_batch / num_examples, iterations=steps
  )
  rng = streams.host_rng(seed, purpose)
  batches = np.full((steps, size), -1, np.int32)
  for t, indices in enumerate(sampling.batch_iterator(num_examples, rng)):
    if indices.size > size:
      raise ValueError(
        f'seed={seed} gives step {t} a batch of {indices.size} examples, for '
        f'which there are {size} places: an event of probability '
        f'{OVERFLOW_PROBABILITY:g}. Give another seed.'
      )
    (batches[t],) = batch_selection.split_and_pad_global_batch(
      indices.astype(np.int32), size, microbatch
    )
  return batches


def _check_batch(num_examples: int, expected_batch: float, steps: int) -> None:
  if not 0 < expected_batch <= num_examples:
    raise ValueError(
      f'expected_batch={expected_batch}, but there are {num_examples} '
      f'examples; give more than 0 and at most {num_examples}.'
    )
  if steps < 1:
    raise ValueError(f'steps={steps}; give 1 or more.')
