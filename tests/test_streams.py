"""Streams of random numbers: a purpose has its own, and all of a seed counts."""

import collections
import hashlib
import itertools
import pathlib
import sys

import jax
import numpy as np
import pytest

import epe_jax
from epe_jax import streams
from epe_jax.configs import digits, emnist, stackoverflow
from epe_jax.data import cohort
from epe_jax.experiment.setup import build
from epe_jax.experiment.setup import config as config_lib


def test_streams_differ_wherever_root_purpose_or_place_do():
  roots = (0, 7, 7 + 2**32, 7 + 2**64, 7 + 2**128, 7 + 2**256, 7 * 2**128)
  purposes = ('clients', 'client', 'clients0')
  places = ((), (0,), (0, 0), (1,), (0, 1), (1, 0), (2**32,), (10,))
  found = {
    tuple(streams.host_rng(root, purpose, *place).integers(2**62, size=2))
    for root, purpose, place in itertools.product(roots, purposes, places)
  }
  assert len(found) == len(roots) * len(purposes) * len(places)


def test_a_stream_is_the_same_on_every_machine():
  # sha256("(3, 'clients', 5)") as the entropy of a SeedSequence, which NumPy
  # never changes, and neither PCG64.
  stream = np.random.PCG64(streams.sequence(3, 'clients', 5))
  digest = hashlib.sha256(b"(3, 'clients', 5)").hexdigest()
  same = np.random.PCG64(np.random.SeedSequence(int(digest, 16)))
  assert stream.random_raw() == same.random_raw()


@pytest.mark.parametrize('root', [-1, 0.5, True, '7', None])
def test_a_root_that_is_no_natural_number_is_refused(root):
  # The type checker, active in tests, refuses a wrong word first.
  with pytest.raises((ValueError, TypeError)):
    streams.sequence(root, 'clients')


@pytest.mark.integration
def test_all_bits_of_a_seed_count_in_keys_and_in_what_the_host_draws():
  config = configured('digits')
  seeds = (7, 7 + 2**32, 7 + 2**64, 7 + 2**200)
  keys = set()
  cohorts = set()
  for seed in seeds:
    run = build.build(config_lib.replace_fields(config, seed=seed))
    for key in (run.randomness.noise, run.randomness.training):
      keys.add(jax.random.key_data(key).tobytes())
    cohorts.add(
      (run.participants.clients(0).tobytes(), run.train.offsets.tobytes())
    )
  assert len(keys) == 2 * len(cohorts) == 2 * len(seeds)


def configured(name):
  """A config, with synthetic data and every use of random numbers."""
  if name == 'emnist':
    config = emnist.get_config('smoke')
    config.data.update(dict(num_clients=12, num_examples=240))
    config.model.width = 2
  elif name == 'stackoverflow':
    config = stackoverflow.get_config('smoke')
    config.data.update(dict(num_clients=12, max_sentences=3))
    config.data.vocabulary_size = 50
    config.model.update(dict(embedding_size=4, hidden_size=4))
  else:
    config = digits.get_config('smoke')
    config.model.width = 2
    return config_lib.replace_fields(config, evaluate_examples=50)
  config.data.synthetic = True
  return config_lib.replace_fields(config, evaluate_examples=5)


def _asks(filename):
  """Whether it is a module that asks for numbers, and does not make them."""
  path, package = pathlib.Path(filename), pathlib.Path(epe_jax.__file__).parent
  return package in path.parents and path.stem != 'streams'


@pytest.mark.integration
@pytest.mark.parametrize(
  ('name', 'fields'),
  [
    ('digits', {}),
    ('digits', {'participation.kind': 'one_order'}),
    ('digits', {'participation.kind': 'fixed_size'}),
    ('digits', {'participation.kind': 'poisson'}),
    ('digits', {'participation.kind': 'limited'}),
    ('digits', {'canaries.schedule': 'replace'}),
    ('digits', {'canaries.schedule': 'coin_flip'}),
    ('emnist', {}),
    ('stackoverflow', {}),
  ],
)
def test_no_two_purposes_of_a_run_share_a_stream(
  monkeypatch, tmp_path, name, fields
):
  # What a generator follows from -> where in the package it was made.
  makers = collections.defaultdict(set)

  def record(make):
    def made(*args):
      generator = make(*args)
      bits = getattr(generator, 'bit_generator', generator)
      frame = sys._getframe(1)
      while not _asks(frame.f_code.co_filename):
        frame = frame.f_back
      state = bits.seed_seq.generate_state(8).tobytes()
      makers[state].add((frame.f_code.co_filename, frame.f_lineno))
      return generator

    return made

  for function in ('default_rng', 'PCG64'):
    monkeypatch.setattr(
      np.random, function, record(getattr(np.random, function))
    )
  config = configured(name)
  if name != 'digits':
    config.data.cache = str(tmp_path)
  config.update_from_flattened_dict(fields)
  run = build.build(config)
  for t in range(config.rounds):
    clients = run.participants.clients(t)
    cohort.gather(run.train, clients, run.plan, seed=config.seed, round=t)
  places = set().union(*makers.values())
  # Data, evaluation sample, clients, canaries, batches.
  assert len(places) >= 5
  shared = [where for where in makers.values() if len(where) > 1]
  assert not shared
