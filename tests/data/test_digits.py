"""Digits: every image is dealt once, with the skew that was asked for."""

import numpy as np
import pytest
from sklearn import datasets

from epe_jax.data import digits


def _load(seed=0, num_clients=20, concentration=0.5):
  return digits.load(seed, num_clients=num_clients, concentration=concentration)


def _sorted_rows(*parts):
  rows = np.concatenate(
    [
      np.column_stack([d.columns['pixels'].reshape(-1, 64), d.columns['label']])
      for d in parts
    ]
  )
  return rows[np.lexsort(rows.T)]


def test_every_image_is_dealt_exactly_once():
  pixels, labels = datasets.load_digits(return_X_y=True)
  expected = np.column_stack([pixels / 16, labels])
  expected = expected[np.lexsort(expected.T)]
  np.testing.assert_array_equal(_sorted_rows(*_load()), expected)


def test_pixels_and_labels_have_the_range_and_type_of_a_model_input():
  for data in _load():
    pixels, labels = data.columns['pixels'], data.columns['label']
    assert pixels.dtype == np.float32
    assert labels.dtype == np.int32
    assert pixels.shape == (data.num_examples, 8, 8)
    assert pixels.min() == 0
    assert pixels.max() == 1
    assert set(np.unique(labels)) == set(range(10))


def test_equal_seeds_give_equal_data_and_others_do_not():
  (a, a_test), (b, b_test), (c, c_test) = _load(1), _load(1), _load(2)
  np.testing.assert_array_equal(a.offsets, b.offsets)
  for name in ('pixels', 'label'):
    np.testing.assert_array_equal(a.columns[name], b.columns[name])
    np.testing.assert_array_equal(a_test.columns[name], b_test.columns[name])
  assert not np.array_equal(a.columns['label'], c.columns['label'])
  assert not np.array_equal(a_test.columns['label'], c_test.columns['label'])


@pytest.mark.parametrize('concentration', [1e-3, 0.5, 1e3])
@pytest.mark.parametrize('num_clients', [1, 7, 300, 1438])
def test_every_client_has_an_image_and_ids_sort_as_numbers(
  num_clients, concentration
):
  train, test = _load(num_clients=num_clients, concentration=concentration)
  assert train.num_clients == num_clients
  assert train.sizes.min() >= 1
  numbers = [int(i.removeprefix('client')) for i in train.client_ids]
  assert numbers == list(range(num_clients))
  assert test.client_ids.tolist() == ['test']


def _variance_of_shares(concentration):
  """Variance over clients of a client's share of a label, averaged."""
  variances = []
  for seed in range(10):
    train, _ = _load(seed, num_clients=10, concentration=concentration)
    counts = np.array(
      [np.bincount(c['label'], minlength=10) for _, c in train.clients()]
    )
    variances.append((counts / counts.sum(0)).var(axis=0).mean())
  return np.mean(variances), np.std(variances) / np.sqrt(9)


@pytest.mark.parametrize('concentration', [0.1, 1.0, 10.0, 1e6])
def test_the_shares_of_a_label_have_the_variance_of_the_dirichlet_law(
  concentration,
):
  # Shares p ~ Dir(a, ..., a) over N clients have E[mean_i (p_i - 1/N)^2] =
  # (N - 1) / (N^2 (N a + 1)). Counts of n images add E[p (1 - p)] / n.
  n, N = 144, 10
  law = (N - 1) / (N**2 * (N * concentration + 1))
  expected = law + (1 / N - 1 / N**2 - law) / n
  mean, error = _variance_of_shares(concentration)
  # The labels of a seed are ten draws; 5 standard errors fail in 8e-4 of
  # t-distributed cases with 9 degrees of freedom, and the seeds are fixed.
  # 2 % more for label counts other than n.
  assert abs(mean - expected) < 5 * error + 0.02 * expected
  # Another concentration would be seen.
  if concentration < 100:
    wrong = (N - 1) / (N**2 * (2 * N * concentration + 1))
    assert mean - 2 * error > wrong + (1 / N - 1 / N**2 - wrong) / n


def test_a_fifth_of_the_images_is_held_out():
  train, test = _load(num_clients=3)
  assert test.num_examples == round(0.2 * 1797)
  assert train.num_examples + test.num_examples == 1797


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'num_clients': 0}, 'num_clients=0, but 1438 train images'),
    ({'num_clients': -3}, 'num_clients=-3'),
    ({'num_clients': 1439}, 'num_clients=1439, but 1438 train images can'),
  ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    _load(**arguments)
