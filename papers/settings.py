"""The sizes at which `scripts/reproduce.py` makes the papers' tables and figures.

'paper' has the papers' sizes; 'medium' trains the paper's LSTM on text, a quarter of an
hour for each run on two cores; 'small' takes about half an hour for each item on two
cores; 'smoke' shows within a minute or two that everything is in place.

An experiment of runs names a config in configs/, the fields that it sets, and
the axes of its grid. Items that need the same runs share them.
"""

from collections.abc import Sequence
import math
from typing import Any

from ml_collections import config_dict

# Noise multipliers of the paper; for StackOverflow ε is 299, 99 and 29.
_STACKOVERFLOW = (0.0, 0.0496, 0.0986, 0.2317)
_EMNIST = (0.0, 0.0487, 0.0958, 0.2207)
_EMNIST_5X34 = (0.0, 0.16, 0.18, 0.195, 0.25, 0.315)
_ACCURACY = (0.0, 0.0644, 0.1023, 0.1836, 0.2344)

_PAPERS = dict(observed=1000, unobserved=1000)
_FEWER_ROUNDS = {
  'paper': {},
  'medium': {},
  # 48 rounds of 34 clients. A canary replaces a client in one to eight of them: 8
  # periods of 6 rounds each hold up to 204 canaries.
  'small': dict(
    rounds=48,
    clients_per_round=34,
    canaries=dict(observed=200, unobserved=200),
    evaluate_every=48,
    checkpoint_every=48,
  ),
  'smoke': dict(
    rounds=4,
    clients_per_round=4,
    canaries=dict(observed=8, unobserved=12),
    evaluate_every=4,
    checkpoint_every=4,
  ),
}

_IMAGES = {
  'paper': {},
  'small': dict(
    data=dict(only_digits=True),
    client=dict(max_examples=16),
    evaluate_examples=2000,
  ),
  'smoke': dict(
    data=dict(num_clients=8, num_examples=200),
    model=dict(width=2),
    client=dict(max_examples=16),
    evaluate_examples=50,
  ),
}

_TEXT = {
  'paper': {},
  # Set by the mode of the config.
  'medium': {},
  # A smaller LSTM and vocabulary, d = 0.5 million.
  'small': dict(
    data=dict(vocabulary_size=4000),
    model=dict(embedding_size=48, hidden_size=128),
    client=dict(max_examples=32),
    evaluate_examples=2000,
  ),
  'smoke': dict(
    data=dict(num_clients=12, max_sentences=8, vocabulary_size=100),
    model=dict(embedding_size=4, hidden_size=6),
    client=dict(max_examples=16),
    evaluate_examples=50,
  ),
}


def _make_runs(scale: str) -> dict[str, Any]:
  """Makes the comparison of one run with several that share its canaries."""
  configs = {'paper': 'stackoverflow', 'medium': 'stackoverflow:medium'}
  settings: dict[str, Any] = dict(
    config=configs.get(scale, 'digits'),
    sets=[],
    noises=(0.0496, 0.0986),
    experiments=50,
    runs=10,
  )
  if scale == 'medium':
    sets = dict(canaries=dict(unobserved=0))
    sets |= dict(rounds=12, evaluate_every=12)
    settings |= dict(sets=[sets], experiments=1, noises=(0.0496,))
  if scale == 'small':
    # scikit-learn's digits, whose runs take seconds. With few canaries the rounds
    # of the single run are hardly larger than those of the others.
    sets = dict(
      rounds=50,
      client=dict(epochs=1),
      canaries=dict(observed=200, unobserved=0),
    )
    settings |= dict(sets=[sets], experiments=20, runs=5)
  if scale == 'smoke':
    sets = dict(
      rounds=2,
      clients_per_round=4,
      client=dict(epochs=1),
      canaries=dict(observed=8, unobserved=0),
      model=dict(width=2),
    )
    settings |= dict(sets=[sets], experiments=2, runs=2, noises=(0.0496,))
  return settings


def _make_tight(scale: str) -> dict[str, Any]:
  """Makes the items of "Tight Auditing of Differentially Private Machine Learning".

  Items that simulate observations by their law have the paper's size, or that of its
  longest runs if it gives none. Items that train have smaller models and data at
  'small', and as many steps as two cores do in minutes.
  """
  sizes = {'paper': 2, 'small': 1, 'smoke': 0}[scale]
  audits = (3, 10, 20)[sizes]
  common = dict(delta=1e-5, seed=0)
  hunt = common | dict(
    claimed=1.27,
    audits=(3, 20, 50)[sizes],
    # 2,500 steps are those of the paper's WRN-16, 20,000 those of its ConvNet.
    nums=(
      (100, 1000),
      (250, 1000, 2500, 5000),
      (250, 500, 1000, 2500, 5000, 10_000, 20_000),
    )[sizes],
  )
  epsilons = tuple(1.27 + 0.1 * i for i in range(10))
  return dict(
    tight_figure3=common
    | dict(
      epsilons=(1.0, 2.0, 4.0, 6.0),
      nums=tuple(10**i for i in range(2, (4, 8, 10)[sizes])),
      audits=audits,
    ),
    tight_figure4=common
    | dict(
      noise_multiplier=1.0,
      num=5000,
      audits=audits,
      thresholds=(-1.0, 0.0, 0.5, 1.0, 2.0, 3.0),
    ),
    tight_figure5=common
    | dict(
      canary_probability=0.25,
      noise_variance=0.3,
      num=(1000, 10_000, 10_000)[sizes],
      audits=audits,
      fprs=(0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9),
    ),
    tight_figure13=common
    | dict(
      # A Gaussian step with ε = 1, and the step of figure 5.
      mechanisms=((1.0, 3.73), (0.25, 0.3**0.5)),
      num_lines=(3, 10) if sizes == 0 else (3, 10, 30, 100, 1000),
    ),
    tight_figure14=common
    | dict(
      noise_multiplier=1.0,
      nums=tuple(10**i for i in range(3, (5, 8, 11)[sizes])),
      audits=audits,
      thresholds=(0.5, 1.0, 2.0, 3.0),
    ),
    tight_table1_simulated=common
    | dict(
      epsilons=(1.0, 8.0) if sizes == 0 else (1.0, 4.0, 8.0, 16.0),
      audits=(2, 3, 5)[sizes],
      runs=dict(
        cifar10_wrn16=dict(
          title='CIFAR-10 WRN-16',
          steps=(50, 2500, 2500)[sizes],
          sampling_probability=4096 / 50_000,
        ),
        cifar10_convnet=dict(
          title='CIFAR-10 ConvNet',
          steps=(50, 20_000, 20_000)[sizes],
          sampling_probability=256 / 50_000,
        ),
      ),
    ),
    tight_clipping_bug=hunt,
    tight_seeds_bug=hunt,
    **_make_trained(scale),
    tight_scale_bug=hunt
    | dict(
      epsilons=(1.27, 1.57)
      if sizes == 0
      else tuple(round(e, 2) for e in epsilons),
      shown=1.57,
      num=1000 if sizes == 0 else 2500,
    ),
  )


# The paper states neither the width nor the learning rate. Steps, pool, minibatch,
# Adam's learning rate and the norm are those of CANIFE's released code.
_CANIFE = dict(
  num_train=60_000,
  num_test=10_000,
  batch=128,
  width=128,
  learning_rate=0.5,
  clip_norm=1.0,
  noise_multiplier=0.2,
  observed=1000,
  unobserved=1000,
  family='hadamard',
  audit_every=100,
  scores=100,
  pool=512,
  minibatch=128,
  craft_steps=2500,
  craft_learning_rate=1.0,
  norm_target=1.0,
  # Hidden layer and learning rate of further runs, one each.
  variants=(
    (128, 0.5),
    (128, 0.05),
    (128, 0.005),
    (32, 0.5),
    (32, 0.05),
    (32, 0.005),
    (8, 0.05),
    (8, 0.005),
  ),
)


def _make_canife(scale: str) -> dict[str, Any]:
  """Makes the comparison with CANIFE; 'small' has fewer runs of the same size."""
  if scale == 'smoke':
    few = dict(num_train=512, num_test=64, batch=32, width=8, audit_every=5)
    fewer = dict(observed=20, unobserved=20, scores=10, pool=32, minibatch=8)
    return (
      _CANIFE
      | few
      | fewer
      | dict(craft_steps=20, runs=2, variants=((4, 0.05),))
    )
  return _CANIFE | dict(runs=20 if scale == 'paper' else 5)


def _make_trained(scale: str) -> dict[str, Any]:
  """Makes the white-box games on models that are trained.

  The paper gives steps, batch sizes and models; clip norms and learning rates are
  ours, without its augmentation.
  """
  sizes = {'paper': 2, 'small': 1, 'smoke': 0}[scale]
  common = dict(delta=1e-5, seed=0)
  purchase = dict(
    title='Purchase-100' + ('' if sizes == 2 else ', small network'),
    data='purchase100',
    num_train=(400, 10_000, None)[sizes],
    num_test=(100, 2000, None)[sizes],
    task='fully_connected',
    model=dict(hidden=((4,), (64, 64), (256, 256))[sizes]),
    steps=(30, 2500, 2500)[sizes],
    expected_batch=(8.0, 128.0, 2048.0)[sizes],
    clip_norm=1.0,
    learning_rate=1.0,
    momentum=0.0,
    microbatch=(None, None, 256)[sizes],
  )
  convnet = dict(
    title='CIFAR-10 ConvNet',
    data='cifar10',
    num_train=None,
    num_test=None,
    task='convnet',
    model=dict(width=32),
    steps=20_000,
    expected_batch=256.0,
    clip_norm=1.0,
    learning_rate=0.5,
    momentum=0.0,
    microbatch=64,
  )
  wrn16 = convnet | dict(
    title='CIFAR-10 WRN-16',
    task='wide_resnet',
    model=dict(depth=16, width=4),
    steps=2500,
    expected_batch=4096.0,
    learning_rate=2.0,
  )
  works = dict(purchase=purchase)
  if sizes == 2:
    works = dict(
      cifar10_wrn16=wrn16,
      cifar10_convnet=convnet,
      purchase=purchase,
      random_wrn16=wrn16 | dict(title='Random WRN-16', data='random'),
    )
  images = (
    dict(
      title='ConvNet of width 1',
      data='random',
      num_train=200,
      num_test=100,
      model=dict(width=1),
      steps=4,
      expected_batch=4.0,
      microbatch=None,
    ),
    dict(
      title='Fashion-MNIST ConvNet, width 8',
      data='fashion_mnist',
      model=dict(width=8),
      steps=500,
      microbatch=None,
    ),
    dict(title='Fashion-MNIST ConvNet', data='fashion_mnist', steps=2500),
  )[sizes]
  # Few images, so that few steps suffice for ε = 8 at a noise near that of others.
  few = dict(
    title='Fashion-MNIST ConvNet, width 8',
    data='fashion_mnist',
    num_train=4000,
    num_test=2000,
    model=dict(width=8),
    steps=300,
    expected_batch=32.0,
    microbatch=None,
  )
  augmented = (convnet | images, convnet | few, wrn16)[sizes]

  def make_depth(depth: int) -> dict[str, Any]:
    name = f'WRN-{depth}'
    sized = (
      images | dict(title=f'{name}, width 1'),
      few
      | dict(
        title=f'Fashion-MNIST {name}, width 1',
        num_train=1000,
        expected_batch=8.0,
      ),
      wrn16 | dict(title=f'CIFAR-10 {name}'),
    )[sizes]
    model = dict(depth=depth, width=(1, 1, 4)[sizes])
    return convnet | sized | dict(task='wide_resnet', model=model)

  # Thousands of models: few and small examples without a GPU.
  small_box = purchase | dict(
    num_train=(100, 500)[min(sizes, 1)],
    num_test=(50, 500)[min(sizes, 1)],
    model=dict(hidden=((4,), (32,))[min(sizes, 1)]),
    steps=(5, 100)[min(sizes, 1)],
    expected_batch=(10.0, 50.0)[min(sizes, 1)],
  )
  one_box = wrn16 if sizes == 2 else small_box
  boxes = works if sizes == 2 else dict(purchase=small_box)
  box_kinds = ('mislabelled', 'blank')[: 2 if sizes else 1]
  models = dict(num_models=(4, 100, 1000)[sizes], chunk=(2, 20, 4)[sizes])
  pair = ((10,), (16, 40), (16, 40))[sizes]
  depths = {f'wrn{depth}': make_depth(depth) for depth in pair}
  one = dict(work=wrn16 if sizes == 2 else purchase)
  kinds = ('dirac', 'moving random')
  inputs = ('mislabelled', 'crafted')
  if sizes:
    kinds = ('dirac', 'constant', 'random', 'moving dirac', 'moving random')
    inputs = ('mislabelled', 'blank', 'adversarial', 'crafted')
  bug = dict(kind='dirac', epsilon=1.27)
  return dict(
    tight_table1=common
    | dict(
      works=works,
      games=_make_games_by_epsilon(
        'dirac', (8.0,) if sizes == 0 else (1.0, 4.0, 8.0, 16.0)
      ),
    ),
    tight_convnet=common
    | dict(
      works=dict(convnet=convnet | images),
      games=_make_games_by_epsilon('dirac', (8.0,)),
    ),
    tight_inputs_by_epsilon=common
    | dict(
      works=works,
      # The paper does not say which inputs its figure has.
      games=_make_games_by_epsilon(
        'crafted',
        (4.0, 8.0) if sizes == 0 else (1.0, 4.0, 8.0, 16.0),
        first=(10, 250, 250)[sizes],
      ),
    ),
    tight_depths=common
    | dict(works=depths, games=_make_games_by_epsilon('dirac', (8.0,))),
    tight_gradient_canaries=common
    | dict(works=one, games=_make_games_by_kind(kinds)),
    tight_input_canaries=common
    | dict(works=one, games=_make_games_by_kind(inputs)),
    tight_augmentations=common
    | dict(
      works=dict(work=augmented),
      games=tuple(
        dict(
          name=f'augmentations={num}',
          label=f'K = {num}',
          kind='dirac',
          epsilon=8.0,
          augmentations=num,
        )
        for num in ((1, 2), (1, 2, 4, 8), (1, 2, 4, 8, 16))[sizes]
      ),
    ),
    tight_trained_bugs=common
    | dict(
      works=dict(purchase=purchase),
      games=(
        bug | dict(name='correct', label='correct'),
        bug | dict(name='clipping', label='clipping', bug='clipping'),
        bug | dict(name='seeds', label='seeds', bug='seeds'),
        bug | dict(name='scale', label='scale', bug='scale', true_epsilon=1.57),
      ),
    ),
    tight_clipped_black_box=common
    | models
    | dict(
      works=dict(work=one_box),
      audits=tuple(
        dict(
          name=f'clip_norm={clip_norm:g}_{kind}',
          kind=kind,
          epsilon=math.inf,
          clip_norm=clip_norm,
        )
        for clip_norm in (0.1, 1.0, 10.0)[: 3 if sizes else 1]
        for kind in box_kinds
      ),
    ),
    tight_black_box=common
    | models
    | dict(
      works=boxes,
      audits=tuple(
        dict(name=kind, kind=kind, epsilon=8.0) for kind in box_kinds
      ),
    ),
  )


def _make_games_by_epsilon(
  kind: str, epsilons: Sequence[float], first: int | None = None
) -> tuple[dict[str, Any], ...]:
  """Makes a game with one kind of canary for each ε."""
  return tuple(
    dict(
      name=f'epsilon={epsilon:g}',
      kind=kind,
      epsilon=epsilon,
      first=first,
      # With the same noise all of them would be high or low together.
      seed=i,
    )
    for i, epsilon in enumerate(epsilons)
  )


def _make_games_by_kind(kinds: Sequence[str]) -> tuple[dict[str, Any], ...]:
  """Makes a game at ε = 8 for each kind of canary."""
  return tuple(
    dict(name=kind.replace(' ', '_'), kind=kind, epsilon=8.0) for kind in kinds
  )


def _make_production(scale: str) -> dict[str, Any]:
  """Makes grids of mechanisms and rings, and the models whose accounting is public.

  Clients come back in a fixed order, so that separation and number of their rounds are
  known.
  """
  smoke = scale == 'smoke'
  # Two buffers, of which three are the default.
  correlation = (
    ('noise.correlation', 'noise.buffers'),
    (('independent', 3), ('banded', 3))
    if smoke
    else (
      *((kind, 3) for kind in ('independent', 'tree', 'banded', 'bisr')),
      ('blt', 2),
    ),
  )
  runs = dict(
    participation=dict(kind='one_order'),
    clipping=dict(kind='fixed'),
    # 'worst_case' is what correlated noise has by itself.
    canaries=dict(schedule='worst_case', repetitions=1),
  )
  digits = dict(rounds=6, clients_per_round=40) if smoke else dict(rounds=60)
  images = [_FEWER_ROUNDS[scale], _IMAGES[scale]]
  text = [_FEWER_ROUNDS[scale], _TEXT[scale]]
  text_config = 'stackoverflow'
  if scale == 'small':
    # Eight epochs of six rounds.
    images.append(dict(data=dict(num_clients=204)))
    # Many clients with few sentences: a model that learns in spite of the noise.
    text_config = 'stackoverflow:medium'
    text = [
      _TEXT[scale],
      dict(
        client=dict(max_examples=8),
        # A fixed norm cannot grow with the updates, of norm 0.7.
        clipping=dict(initial=0.5),
        evaluate_every=100,
        checkpoint_every=50,
      ),
    ]

  def make_grid(
    config: str,
    sets: Sequence[dict[str, Any]],
    axis: tuple[str | tuple[str, ...], Sequence[Any]],
    noises: Sequence[float],
  ) -> dict[str, Any]:
    levels = noises[:1] if smoke else noises
    return dict(
      config=config,
      sets=[*sets, runs],
      axes=(axis, ('noise_multiplier', levels)),
    )

  return dict(
    production_deployed=dict(
      models=(
        dict(
          title='Gboard, Spanish',
          noise_multiplier=7.0,
          rounds=2000,
          # 313 rounds lie between two of a device.
          min_separation=314,
          max_participations=6,
          delta=1e-10,
        ),
      )
    ),
    production_digits=make_grid(
      'digits:smoke' if smoke else 'digits',
      [digits],
      correlation,
      (0.3, 0.6, 1.2),
    ),
    production_emnist=make_grid('emnist', images, correlation, (0.2, 0.5, 1.0)),
    production_stackoverflow=make_grid(
      text_config, text, correlation, (0.6, 1.2, 2.4)
    ),
    production_rings=make_grid(
      'emnist',
      images,
      ('secure_aggregation.bits', (None, 16) if smoke else (None, 12, 16, 20)),
      (0.5, 1.0),
    ),
  )


def get_config(scale: str = 'small') -> config_dict.ConfigDict:
  """Makes the experiments at one scale.

  Args:
    scale: 'smoke', 'small', 'medium' or 'paper'. 'medium' has StackOverflow alone.

  Raises:
    ValueError: there is no such scale.
  """
  if scale not in _FEWER_ROUNDS:
    raise ValueError(f'scale {scale!r}; give smoke, small, medium or paper.')
  smoke = scale == 'smoke'
  repetitions = ('canaries.repetitions', (1, 2) if smoke else (1, 2, 4, 8))
  num_canaries = _FEWER_ROUNDS[scale].get('canaries', _PAPERS)
  utility = (
    ('canaries.observed', 'canaries.unobserved'),
    ((0, 0), (num_canaries['observed'], num_canaries['unobserved'])),
  )

  def make_grid(
    config: str, sizes: dict[str, dict[str, Any]], *axes: Any
  ) -> dict[str, Any]:
    (name, levels), *others = axes
    if smoke:
      # Without noise and with some, where that is not two runs more.
      levels = levels[: 2 if others == [repetitions] else 1]
    return dict(
      config=f'{config}:medium' if scale == 'medium' else config,
      sets=[_FEWER_ROUNDS[scale], sizes[scale]],
      axes=((name, levels), *others),
    )

  noise = 'noise_multiplier'
  text = dict(
    stackoverflow=make_grid(
      'stackoverflow', _TEXT, (noise, _STACKOVERFLOW), repetitions
    ),
    runs=_make_runs(scale),
    accuracy=make_grid(
      'stackoverflow',
      _TEXT,
      (noise, (0.0, 0.0496) if scale == 'medium' else _ACCURACY),
      utility,
    ),
  )
  if scale == 'medium':
    return config_dict.create(**text)
  return config_dict.create(
    **text,
    algorithm1=dict(
      dim=10_000 if smoke else 1_000_000,
      num_canaries=100 if smoke else 1000,
      delta=1e-6,
      simulations=5 if smoke else 50,
    ),
    d_sweep=dict(
      dims=(10_000, 100_000)
      if smoke
      else (10_000, 100_000, 1_000_000, 10_000_000),
      delta=1e-6,
      simulations=5 if smoke else 50,
    ),
    emnist=make_grid('emnist', _IMAGES, (noise, _EMNIST), repetitions),
    emnist_5x34=make_grid('emnist:5x34', _IMAGES, (noise, _EMNIST_5X34)),
    canife=_make_canife(scale),
    emnist_accuracy=make_grid('emnist', _IMAGES, (noise, _EMNIST), utility),
    **_make_tight(scale),
    **_make_production(scale),
  )
