"""Sentences about a run."""

import math

import jax.numpy as jnp
import pytest

from epe_jax.report import sentences
from epe_jax.training import clipping


def make_line(norm, total):
  return {'round': 1, 'update_norm': norm, 'sum_norm': total}


def test_an_update_whose_norm_overflows_is_clipped_to_zero():
  # What the warning says of clipping.
  update = jnp.full(3, 1e30, jnp.float32)
  clipped, norm = clipping.clip(update, jnp.float32(0.1))
  assert norm == math.inf
  assert not clipped.any()


def test_rounds_whose_updates_were_lost_are_counted():
  history = [
    {'round': 0, 'test_loss': 1.0},
    make_line(2.0, 1.0),
    make_line(math.inf, 1.0),
    make_line(math.inf, 0.0),
  ]
  (text,) = sentences.describe_overflow(history)
  assert text.startswith('In 2 of 3 rounds clients diverged')
  assert 'In 1 of them nothing was left' in text
  assert 'Lower config.client.learning_rate' in text


@pytest.mark.parametrize(
  'history', [[], [make_line(2.0, 1.0)], [{'round': 1, 'clip_norm': 0.1}]]
)
def test_of_finite_norms_nothing_is_said(history):
  assert sentences.describe_overflow(history) == []
