"""Labelled examples for training and for the test."""

from typing import NamedTuple

from epe_jax.data import sources


class Examples(NamedTuple):
  """Labelled examples.

  Attributes:
    train: columns: the inputs, uint8 from 0 to `scale`, or float32 in [0, 1] if
      scale is 1; and label, integers [n] in [0, num_classes).
    test: the same columns of other examples.
    source: what they are, a phrase that every result prints.
    inputs: name of the column of inputs: 'pixels' [n, h, w, c] or 'features'
      [n, 600].
    num_classes: number of classes.
    scale: the largest input.
  """

  train: sources.Columns
  test: sources.Columns
  source: str
  inputs: str = 'pixels'
  num_classes: int = 10
  scale: int = 255
