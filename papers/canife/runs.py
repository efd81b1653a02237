"""Runs that both CANIFE and our canaries audit, each kept in a file."""

from collections.abc import Mapping
import functools
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float
import numpy as np
import tqdm

from epe_jax import streams
from epe_jax.audit import evaluation, statistics
from epe_jax.audit.record import Record
from epe_jax.epsilon import paper_estimates, two_gaussians
from epe_jax.epsilon.types import Scores
from epe_jax.types import Array, Key, Params
from papers import item
from papers.canife import crafting, training, two_layer

PAPER = 'paper'
"""Key of the first paper's own estimate: maxima over rounds, two Gaussians fitted."""

Ours = Mapping[str, Mapping[str, float | None]]
"""Key of the attacker -> its first 'estimate', the pre-declared lower 'bound', and the
'limit' of the mechanism for it, if known; and `PAPER` -> the first paper's estimate and
its ε_lo, which is not a bound."""


class Audited(NamedTuple):
  """The scores of CANIFE and our estimates of one run.

  Attributes:
    included: scores of rounds with the crafted canary, [audits, n]. The first half
      are those of an audit with half as many.
    excluded: the same without it.
    random_included: the same of the initial example of crafting.
    random_excluded: the same without it.
    norms: |g| of crafted canaries, unclipped, [audits].
    random_norms: of the initial examples.
    ours: our estimates.
    accuracy: in [0, 1].
    source: of the images.
    dim: d.
  """

  included: np.ndarray
  excluded: np.ndarray
  random_included: np.ndarray
  random_excluded: np.ndarray
  norms: np.ndarray
  random_norms: np.ndarray
  ours: Ours
  accuracy: float
  source: str
  dim: int


class Variant(NamedTuple):
  """A run of another width and learning rate.

  Attributes:
    width: of the hidden layer.
    learning_rate: of the server.
    dim: d.
    accuracy: in [0, 1].
    noise: √(mean over rounds of z² + |Σ clients|² / (S² d)), the effective z of an
      attacker who does not remove the other updates.
    ours: our estimates.
  """

  width: int
  learning_rate: float
  dim: int
  accuracy: float
  noise: float
  ours: Ours


def list_audits(settings: Any) -> tuple[int, ...]:
  """The audited rounds: one after each `audit_every` rounds."""
  rounds = training.count_rounds(settings)
  return tuple(range(settings.audit_every, rounds, settings.audit_every))


def list_stretches(settings: Any) -> list[int]:
  """The number of rounds since the last audit; the last audit has the rest too."""
  edges = [0, *list_audits(settings)]
  edges[-1] = training.count_rounds(settings)
  return np.diff(edges).tolist()


def train_runs(
  settings: Any, folder: pathlib.Path, data: Mapping[str, pathlib.Path]
) -> tuple[list[Audited], list[Variant]]:
  """Trains the runs of the experiment that are not in the folder yet.

  Args:
    settings: of the experiment.
    folder: of the files of its runs.
    data: the folder of Fashion-MNIST as 'fashion_mnist'; without it images are
      generated.

  Returns:
    The runs that both methods audit, and a run of each of `settings.variants`, which
    only our canaries audit.

  Raises:
    ValueError: the folder has runs of other settings.
  """
  images = training.load_images(
    data.get('fashion_mnist'),
    num_train=settings.num_train,
    num_test=settings.num_test,
  )
  own = {**settings.to_dict(), 'source': images.source}
  del own['runs'], own['variants']
  audited = []
  for seed in tqdm.tqdm(range(settings.runs), unit='run'):
    run = item.cached(
      folder / f'run{seed}.json',
      own,
      functools.partial(_audit_run, settings, images, seed),
    )
    fields: Any = {
      name: np.asarray(x) if isinstance(x, list) else x
      for name, x in run.items()
    }
    audited.append(Audited(**fields))
  variants = [
    Variant(
      **item.cached(
        folder / f'width{width}_rate{rate:g}.json',
        own,
        functools.partial(_train_variant, settings, images, width, rate),
      )
    )
    for width, rate in tqdm.tqdm(settings.variants, unit='variant')
  ]
  return audited, variants


def _train_variant(
  settings: Any, images: training.Images, width: int, rate: float
) -> dict[str, Any]:
  changed = settings.copy_and_resolve_references()
  changed.update(width=width, learning_rate=rate)
  trained = training.train(changed, images, seed=0, keep=())
  rounds = trained.record.rounds
  assert rounds is not None, 'our runs have the scalars of their rounds'
  others = np.square(rounds.sum_norm / rounds.clip_norm, dtype=np.float64)
  noise = settings.noise_multiplier**2 + others / trained.record.dim
  return dict(
    width=width,
    learning_rate=rate,
    dim=trained.record.dim,
    accuracy=trained.accuracy,
    noise=float(np.sqrt(np.mean(noise))),
    ours=_read_record(trained.record),
  )


def _audit_run(
  settings: Any, images: training.Images, seed: int
) -> dict[str, Any]:
  audits = list_audits(settings)
  trained = training.train(settings, images, seed=seed, keep=audits)
  params = jax.tree.map(
    lambda *leaves: jnp.stack(leaves), *(trained.models[t] for t in audits)
  )
  rng = streams.host_rng(seed, 'canife attack')
  pool_ids = rng.choice(len(images.test_y), settings.pool, replace=False)
  begin_key, craft_key = jax.random.split(
    training.derive_key(seed, 'canife craft')
  )
  random = crafting.draw_canaries(
    begin_key,
    len(audits),
    inputs=images.test_x.shape[1],
    classes=training.CLASSES,
  )
  one_hot = np.eye(training.CLASSES, dtype=np.float32)
  crafted = _craft(
    craft_key,
    params,
    random,
    jnp.asarray(images.test_x[pool_ids]),
    jnp.asarray(one_hot[images.test_y[pool_ids]]),
    steps=settings.craft_steps,
    minibatch=settings.minibatch,
    learning_rate=settings.craft_learning_rate,
    clip_norm=settings.clip_norm,
    norm_target=settings.norm_target,
  )
  noise_key = training.derive_key(seed, 'canife attack noise')
  run: dict[str, Any] = {}
  for i, (prefix, canaries) in enumerate(
    {'': crafted, 'random_': random}.items()
  ):
    scored = []
    for j in range(len(audits)):
      select = lambda x, j=j: x[j]
      # Without replacement within a round.
      clients = np.stack(
        [
          rng.choice(len(images.train_y), settings.batch, replace=False)
          for _ in range(2 * settings.scores)
        ]
      )
      scores = _score(
        jax.random.fold_in(jax.random.fold_in(noise_key, i), j),
        jax.tree.map(select, params),
        jax.tree.map(select, canaries),
        images.train_x[clients],
        one_hot[images.train_y[clients]],
        clip_norm=settings.clip_norm,
        noise_multiplier=settings.noise_multiplier,
      )
      scored.append(np.asarray(scores, np.float64))
    included, excluded = np.split(np.stack(scored), 2, axis=1)
    norms = two_layer.norms(jax.vmap(crafting.factor_canary)(params, canaries))
    run[f'{prefix}included'] = included.tolist()
    run[f'{prefix}excluded'] = excluded.tolist()
    run[f'{prefix}norms'] = np.asarray(norms).tolist()
  return run | dict(
    ours=_read_record(trained.record),
    accuracy=trained.accuracy,
    source=images.source,
    dim=trained.record.dim,
  )


@functools.partial(
  jax.jit,
  static_argnames=(
    *('steps', 'minibatch', 'learning_rate', 'clip_norm', 'norm_target'),
  ),
)
def _craft(
  key: Key,
  params: Params,
  canaries: crafting.Canary,
  x: Float[Array, 'n p'],
  y: Float[Array, 'n c'],
  *,
  clip_norm: float,
  **settings: Any,
) -> crafting.Canary:
  """Crafts canaries, each against its own model and the same mock clients."""
  pool = jax.vmap(
    lambda p: two_layer.clip(two_layer.factor_gradients(p, x, y), clip_norm)
  )(params)
  return crafting.craft(
    key, params, canaries, pool, clip_norm=clip_norm, **settings
  )[0]


@functools.partial(jax.jit, static_argnames=('clip_norm', 'noise_multiplier'))
def _score(
  noise_key: Key,
  params: Params,
  canary: crafting.Canary,
  x: Float[Array, 'rounds m p'],
  y: Float[Array, 'rounds m c'],
  **mechanism: float,
) -> Float[Array, ' rounds']:
  """Scores rounds with the canary, and then as many without it."""
  included = jnp.arange(len(x)) < len(x) // 2
  gradient = crafting.factor_canary(params, canary)
  included = included.astype(jnp.float32)
  return crafting.score_rounds(
    noise_key, params, gradient, x, y, included, **mechanism
  )


def _read_record(record: Record) -> dict[str, dict[str, float | None]]:
  """Our estimates of every attacker, and the first paper's own."""
  ours: dict[str, dict[str, float | None]] = {}
  for found in evaluation.evaluate(record, floors=False).attacks:
    ours[found.threat_model.key] = {
      'estimate': float(found.first.epsilon) if found.is_calibrated else None,
      'bound': float(found.bounds[0].epsilon),
      'limit': found.analytic and float(found.analytic.epsilon),
    }
  assert record.trace is not None, 'every round is scored'
  largest = statistics.max_over_rounds(record.trace)
  scores = Scores(largest[record.observed], largest[~record.observed])
  paper = {
    'estimate': two_gaussians.two_gaussian(scores, delta=record.delta),
    'bound': paper_estimates.eps_lo(scores, delta=record.delta),
  }
  ours[PAPER] = {name: float(x.epsilon) for name, x in paper.items()}
  return ours
