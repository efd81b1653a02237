"""Runs that both CANIFE and our canaries audit, each kept in a file."""

from collections.abc import Callable, Mapping
import functools
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float
import numpy as np
import tqdm

from epe_jax import io, streams
from epe_jax.audit import evaluation, statistics
from epe_jax.audit.record import Record
from epe_jax.epsilon import threshold, two_gaussians
from epe_jax.epsilon.types import Scores
from epe_jax.types import Array, Key, Params
from papers.canife import attack, crafting, training, two_layer
from papers.canife import images as images_lib

PAPER = 'paper'
"""Key of the first paper's own estimate: maxima over rounds, two Gaussians fitted."""


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
    ours: key of the attacker -> its first 'estimate', the pre-declared lower
      'bound', and the 'limit' of the mechanism for it, if known; and `PAPER` -> the
      first paper's estimate and its ε_lo, which is not a bound.
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
  ours: Mapping[str, Mapping[str, float | None]]
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
    ours: as in `Audited`.
  """

  width: int
  learning_rate: float
  dim: int
  accuracy: float
  noise: float
  ours: Mapping[str, Mapping[str, float | None]]


def list_audits(settings: Any) -> tuple[int, ...]:
  """The audited rounds: one after each `audit_every` rounds.

  Raises:
    ValueError: the run is too short for one.
  """
  rounds = training.count_rounds(settings)
  audits = tuple(range(settings.audit_every, rounds, settings.audit_every))
  if not audits:
    raise ValueError(
      f'audit_every={settings.audit_every}, but a run has {rounds} rounds; give '
      'less.'
    )
  return audits


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
    folder: of the files of its runs; created if missing.
    data: the folder of Fashion-MNIST as 'fashion_mnist'; without it images are
      generated.

  Returns:
    The runs that both methods audit, and a run of each of `settings.variants`, which
    only our canaries audit.

  Raises:
    ValueError: the folder has runs of other settings.
  """
  images = images_lib.load_images(
    data.get('fashion_mnist'),
    num_train=settings.num_train,
    num_test=settings.num_test,
  )
  own = {**settings.to_dict(), 'source': images.source}
  own = {k: x for k, x in own.items() if k not in ('runs', 'variants')}
  audited, variants = [], []
  for seed in tqdm.tqdm(range(settings.runs), unit='run'):
    make = functools.partial(_audit_run, settings, images, seed)
    run = _make_or_read(folder / f'run{seed}.json', own, make)
    audited.append(_from_json(run))
  for width, rate in tqdm.tqdm(settings.variants, unit='variant'):
    path = folder / f'width{width}_rate{rate:g}.json'
    make = functools.partial(_train_variant, settings, images, width, rate)
    variants.append(Variant(**_make_or_read(path, own, make)))
  return audited, variants


def _make_or_read(
  path: pathlib.Path,
  own: Mapping[str, Any],
  make: Callable[[], Audited | Variant],
) -> dict[str, Any]:
  if not path.exists():
    run = _to_json(make())
    path.parent.mkdir(parents=True, exist_ok=True)
    io.write_json(path, {'settings': own, 'run': run})
  stored = io.read_json(path)
  if stored['settings'] != own:
    raise ValueError(
      f'{path} is a run of other settings or data; give another --workdir.'
    )
  return stored['run']


def _train_variant(
  settings: Any, images: images_lib.Images, width: int, rate: float
) -> Variant:
  changed = settings.copy_and_resolve_references()
  changed.update(width=width, learning_rate=rate)
  trained = training.train(changed, images, seed=0, keep=())
  rounds = trained.record.rounds
  assert rounds is not None, 'our runs have the scalars of their rounds'
  others = np.square(rounds.sum_norm / rounds.clip_norm, dtype=np.float64)
  noise = settings.noise_multiplier**2 + others / trained.record.dim
  return Variant(
    width=width,
    learning_rate=rate,
    dim=trained.record.dim,
    accuracy=trained.accuracy,
    noise=float(np.sqrt(np.mean(noise))),
    ours=_read_record(trained.record),
  )


def _audit_run(settings: Any, images: images_lib.Images, seed: int) -> Audited:
  audits = list_audits(settings)
  trained = training.train(settings, images, seed=seed, keep=audits)
  params = jax.tree.map(
    lambda *leaves: jnp.stack(leaves), *(trained.models[t] for t in audits)
  )
  rng = streams.host_rng(seed, 'canife attack')
  pool_ids = rng.choice(len(images.test_y), settings.pool, replace=False)
  begin_key, craft_key = jax.random.split(
    jax.random.key(int(streams.host_rng(seed, 'canife craft').integers(2**63)))
  )
  random = crafting.draw_canaries(
    begin_key,
    len(audits),
    inputs=images.test_x.shape[1],
    classes=images_lib.CLASSES,
  )
  one_hot = np.eye(images_lib.CLASSES, dtype=np.float32)
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
  noise_key = jax.random.key(
    int(streams.host_rng(seed, 'canife attack noise').integers(2**63))
  )
  halves = []
  for i, canaries in enumerate((crafted, random)):
    scored = []
    for j in range(len(audits)):
      select = lambda x, j=j: x[j]
      clients = attack.draw_rounds(
        rng,
        rounds=2 * settings.scores,
        clients=settings.batch,
        num_clients=len(images.train_y),
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
    halves.append(np.stack(scored))
  norms = [
    np.asarray(two_layer.norms(jax.vmap(crafting.factor_canary)(params, c)))
    for c in (crafted, random)
  ]
  return Audited(
    *(half for h in halves for half in np.split(h, 2, axis=1)),
    *norms,
    ours=_read_record(trained.record),
    accuracy=trained.accuracy,
    source=images.source,
    dim=trained.record.dim,
  )


@functools.partial(
  jax.jit,
  static_argnames=(
    'steps',
    'minibatch',
    'learning_rate',
    'clip_norm',
    'norm_target',
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
  *,
  clip_norm: float,
  noise_multiplier: float,
) -> Float[Array, ' rounds']:
  """Scores rounds with the canary, and then as many without it."""
  included = jnp.arange(len(x)) < len(x) // 2
  return attack.score_rounds(
    noise_key,
    params,
    crafting.factor_canary(params, canary),
    x,
    y,
    included.astype(jnp.float32),
    clip_norm=clip_norm,
    noise_multiplier=noise_multiplier,
  )


def _read_record(record: Record) -> dict[str, dict[str, float | None]]:
  """Our estimates of every attacker, and the first paper's own."""
  ours: dict[str, dict[str, float | None]] = {}
  for found in evaluation.evaluate(record, floors=False).attacks:
    ours[found.threat_model.key] = {
      'estimate': float(found.first.epsilon),
      'bound': float(found.bounds[0].epsilon),
      'limit': found.analytic and float(found.analytic.epsilon),
    }
  assert record.trace is not None, 'every round is scored'
  largest = statistics.max_over_rounds(record.trace)
  scores = Scores(largest[record.observed], largest[~record.observed])
  paper = {
    'estimate': two_gaussians.two_gaussian(scores, delta=record.delta),
    'bound': threshold.eps_lo(scores, delta=record.delta),
  }
  ours[PAPER] = {name: float(x.epsilon) for name, x in paper.items()}
  return ours


def _to_json(run: Audited | Variant) -> dict[str, Any]:
  return {
    name: x.tolist() if isinstance(x, np.ndarray) else x
    for name, x in run._asdict().items()
  }


def _from_json(stored: Mapping[str, Any]) -> Audited:
  fields: Any = {
    name: np.asarray(x) if isinstance(x, list) else x
    for name, x in stored.items()
  }
  return Audited(**fields)
