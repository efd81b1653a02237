"""What is measured, where its figures are, and what they have to reach.

To follow a change in the layout of a result file, change the paths here.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import layout
from layout import Rows
from studies import costs


class Target(NamedTuple):
  """A figure that has to reach something.

  Attributes:
    what: the figure, in words.
    file: stem of the result file it is in.
    at: path to it in the file, as `layout.find` reads it.
    bound: what it has to reach.
    at_most: whether it is to be at most the bound, or at least.
    floor: what limits it, in words or as a path after '='.
    missed: what was tried and what bounds it, said if it is not reached.
  """

  what: str
  file: str
  at: str
  bound: float
  at_most: bool = True
  floor: str = ''
  missed: str = ''


class Section(NamedTuple):
  """A result file and how it is shown.

  Attributes:
    title: of the section.
    file: stem of the result file.
    command: that makes it.
    said: what was done, in a paragraph.
    rows: its tables; none shows everything that is in the file.
    figure: name of an SVG in docs/benchmarks that shows it.
  """

  title: str
  file: str
  command: str
  said: str
  rows: Sequence[Rows] = ()
  figure: str = ''


_LSTM = 'sizes[dim=4050748,canaries=2000,vectors=1]'

_ROUNDS_MISSED = {
  'A': "half of a step are the products of Winograd's method for the second "
  'convolution, near the speed of a large product; the rest is passes over what '
  'they are made of and over the weights of the dense layer.',
  'Ah': 'as work A.',
  'B': 'most of a step are matrix products at the speed of a large one; '
  'the rest is passes over weights and logits.',
}

TARGETS = (
  Target(
    'all 2,000 cosines with Hadamard canaries, d = 4.1M / one pass for the norm',
    'canary_kernels',
    f'{_LSTM}/passes/hadamard',
    5.0,
    floor='1, the vector read once',
  ),
  Target(
    'share of a PyTorch round within an `Auditor`, 2,000 Hadamard canaries, '
    'LSTM of 4M parameters',
    'auditor_overhead',
    'works/lstm/share_of_auditor',
    0.02,
    floor='two passes over the parameters',
  ),
  Target(
    'the same: LSTM of 10M parameters',
    'auditor_overhead',
    'works/large lstm/share_of_auditor',
    0.01,
    floor='two passes over the parameters',
  ),
  Target(
    'audited / unaudited round, 2,000 canaries, all iterates, work B: Hadamard',
    'audited_round',
    'works/B/over_unaudited/hadamard',
    1.005,
    floor='1',
  ),
  Target(
    'the same: sphere',
    'audited_round',
    'works/B/over_unaudited/sphere',
    1.15,
    floor='1',
    missed='bound by making k d normals in each projection; more rounds scored '
    'together make projections rarer, for as much more memory (`audit.memory`).',
  ),
  *(
    Target(
      f'round {work}: {name} seconds / ours',
      'rounds',
      f'works/{work}/ratio/median/{key}?',
      bound,
      at_most=False,
      missed=_ROUNDS_MISSED[work],
    )
    for name, key, bound, works in (
      ('pfl-research', 'fastest pfl', 1.2, ('A', 'Ah', 'B')),
      ('FedJAX, its fastest backend,', 'fastest fedjax', 2.0, ('A', 'B')),
      ('TFF', 'fastest tff', 1.8, ('A', 'B')),
    )
    for work in works
  ),
  *(
    Target(
      f'round {work}: share of the arithmetic floor reached',
      'rounds',
      f'works/{work}/share_of_floor/median',
      0.55,
      at_most=False,
      floor='1',
    )
    for work in ('A', 'B')
  ),
  Target(
    'Algorithm 1, d = 10^6, k = 10^3, 50 literal simulations, Hadamard',
    'algorithm1',
    'families[family=hadamard]/seconds',
    10.0,
    floor='=floor_seconds',
  ),
  Target(
    'crafting for CANIFE: a step of a canary by its loop in PyTorch / ours',
    'canife',
    'ratio/best',
    10.0,
    at_most=False,
  ),
  Target(
    'memory of a work-B audit with 2,000 canaries over the unaudited run',
    'audited_round',
    'works/B/peak_bytes_more/hadamard',
    100e6,
    floor='0',
    missed='by arithmetic, the cosines of 2,048 rounds are 33 MB and the initial '
    'model 16, and the program of a round reserves no more with an audit than '
    'without. What is measured is the memory of a process, with what its '
    'allocator keeps.',
  ),
)
"""Of the machine at hand."""


class Remote(NamedTuple):
  """A target of a device that may not be at hand.

  Attributes:
    target: in a result file that is made there.
    command: that makes it.
    time: at best, by arithmetic and the data sheet; nothing if the target has
      a floor of its own.
  """

  target: Target
  command: str
  time: str = ''


# The EMNIST CNN: multiplications of a forward pass of one image, all layers.
_CNN = 26 * 26 * 32 * 9 + 24 * 24 * 64 * 9 * 32 + 9216 * 128 + 128 * 62
# Backward is twice that, but for the gradient of the pixels.
_CNN_FLOPS = 6.0 * _CNN - 2.0 * 26 * 26 * 32 * 9
_CNN_DIM, _LSTM_DIM = 1_206_590, 4_050_748
# Each weight is used at each of 20 words; the embedding is a table lookup.
_SENTENCE_FLOPS = 6.0 * 20 * (_LSTM_DIM - 10_004 * 96)
_BATCH = 16


def _round_floor(
  *, clients: int, examples: int, flops: float, dim: int
) -> float:
  """Seconds of a round at the peaks of the data sheet.

  In each local step the parameters of a client are read twice and written once,
  and those of the server likewise.
  """
  steps = clients * -(-examples // _BATCH)
  work = clients * examples * flops
  return costs.floor_seconds(work, 12.0 * dim * (steps + 1), costs.H200)


# 671,585 images of 3,400 writers.
_EMNIST = _round_floor(
  clients=101, examples=198, flops=_CNN_FLOPS, dim=_CNN_DIM
)
_NEXT_WORD = _round_floor(
  clients=167, examples=256, flops=_SENTENCE_FLOPS, dim=_LSTM_DIM
)
_WORK_B = _round_floor(
  clients=20, examples=64, flops=_SENTENCE_FLOPS, dim=_LSTM_DIM
)
# A projection reads the vector once, and canaries that are put in write one.
_AUDIT = 8.0 * _LSTM_DIM / costs.H200.bandwidth
_RUN = (
  'python scripts/train.py --config=configs/{config}.py '
  '--config.data.synthetic=True --config.canaries.family=hadamard{more} '
  '--workdir=runs/gpu_{config} && '
  'cp runs/gpu_{config}/result.json benchmarks/results/gpu_{config}.json'
)
_GPU_TEXT = _RUN.format(
  config='stackoverflow', more=' --config.data.max_sentences=256'
)

REMOTE = (
  Remote(
    Target(
      '500 rounds of EMNIST, 101 clients, 2,000 canaries, all iterates',
      'gpu_emnist',
      'seconds',
      120.0,
    ),
    _RUN.format(config='emnist', more=''),
    layout.seconds(500 * _EMNIST),
  ),
  Remote(
    Target(
      'a StackOverflow round, 167 clients of at most 256 sentences',
      'gpu_stackoverflow',
      'seconds_per_round',
      0.5,
    ),
    _GPU_TEXT,
    layout.seconds(_NEXT_WORD),
  ),
  Remote(
    Target(
      'audited / unaudited round, work B, 2,000 canaries, Hadamard',
      'gpu_audited_round',
      'works/B/over_unaudited/hadamard',
      1.01,
      floor=f'{1 + _AUDIT / _WORK_B:.3f}',
    ),
    'python benchmarks/audited_round.py '
    '--out=benchmarks/results/gpu_audited_round.json',
  ),
  Remote(
    Target(
      '2048 StackOverflow rounds on synthetic text in one recorded run: rounds',
      'gpu_stackoverflow',
      'rounds',
      2048,
      at_most=False,
    ),
    _GPU_TEXT,
    layout.seconds(2048 * _NEXT_WORD),
  ),
)
"""Of a GPU; not measured where there is none."""


def _columns(
  heads: Mapping[str, str], before: str, names: Sequence[str], after: str = ''
) -> dict[str, str]:
  return {**heads, **{name: f'{before}/{name}{after}' for name in names}}


_SIZES = {'d': 'dim', 'k': 'canaries', 'vectors': 'vectors'}
_FAMILIES = ('hadamard', 'hadamard2', 'sign', 'sphere', 'dirac')
_SYSTEMS = {
  'epe_jax': 'epe_jax',
  'pfl': 'pfl-research',
  'pfl_last': 'pfl-research, channels_last',
  'fedjax': 'FedJAX',
  'fedjax_pmap': 'FedJAX, pmap',
  'tff': "TFF, the authors' code",
}
_FORMS = ('unaudited', 'hadamard', 'sphere')

SECTIONS = (
  Section(
    'Canary kernels',
    'canary_kernels',
    'python benchmarks/canary_kernels.py',
    'A projection of one vector, or of a stack, onto all canaries of each family; '
    'against the matrix of all canaries where it fits into memory, and against '
    'the same normals made by `jax.random`. The floor is |x|²: all vectors read '
    'once.',
    (
      Rows(
        'Seconds of a projection, the fastest',
        'sizes',
        {
          **_SIZES,
          'floor, |x|²': 'project/|x|^2/best as seconds',
          **{name: f'project/{name}/best as seconds' for name in _FAMILIES},
          'jax.random': 'project/jax.random/best as seconds',
          'stored': 'project/stored/best as seconds',
          'bytes to store': 'stored_bytes',
        },
      ),
      Rows(
        'The same in passes over the vectors, the floor being 1',
        'sizes',
        _columns(_SIZES, 'passes', (*_FAMILIES, 'jax.random', 'stored')),
      ),
      Rows(
        'Two canaries put in',
        'sizes',
        _columns(_SIZES, 'superpose_2', _FAMILIES, '/best as seconds'),
      ),
    ),
    'kernels.svg',
  ),
  Section(
    'The law of unobserved cosines',
    'canary_law',
    'python benchmarks/canary_law.py',
    'How often the test of Anderson and Darling, at 5 %, tells cosines with '
    'canaries that were not put in from the law of the sphere; for an exact law '
    'a share of about 0.05 of the vectors. What the families are right for: '
    '[canaries](canaries.md).',
    (
      Rows(
        'Share of the vectors for which it does',
        'kinds',
        {
          'vector': 'key',
          'd': 'dim',
          'd_eff': 'effective_dimension',
          **{name: f'families/{name}/rejected_share' for name in _FAMILIES},
        },
      ),
    ),
  ),
  Section(
    'The audited round against the unaudited one',
    'audited_round',
    'python benchmarks/audited_round.py',
    'The same rounds with an audit and without, in turn within one process, and '
    'as many of them as come to whole projections. Memory is the peak of a process of '
    'its own for each form.',
    (
      Rows(
        'Seconds of a round, the mean, and the ratio; memory at its peak',
        'works',
        {
          'work': 'key',
          'rounds': 'rounds',
          **{name: f'seconds/{name}' for name in _FORMS},
          **{f'{x} / unaudited': f'over_unaudited/{x}' for x in _FORMS[1:]},
          **{f'{x}, memory': f'peak_bytes/{x}' for x in _FORMS},
          **{f'{x}, more': f'peak_bytes_more/{x}' for x in _FORMS[1:]},
        },
      ),
    ),
  ),
  Section(
    'Rounds against other libraries',
    'rounds',
    'bash benchmarks/peers/install.sh\npython benchmarks/rounds.py',
    'Works A (EMNIST CNN, 100 clients of 100 images), Ah (20 clients of unequal '
    'sizes, 3,500 images) and B (StackOverflow LSTM, 20 clients of 64 '
    'sentences), in turn within one session, each library in an environment of '
    'its own. The floor is the arithmetic of the layers by their definition, at '
    "the speed of a large product; with Winograd's method ours needs 4/9 of it in "
    'the second convolution of A and Ah, so more than all of it is possible. TFF '
    "runs the authors' learning process, three of their files, with a Keras "
    'model and a driver of ours; what else is chosen for each is in '
    '[benchmarks/README.md](../benchmarks/README.md).',
    (
      Rows(
        'Seconds of a round, the median',
        'works',
        {
          'work': 'key',
          'clients': 'clients',
          'examples': 'examples',
          'Gflop': 'gflop',
          'floor': 'floor_seconds',
          **{name: f'seconds/{key}/median' for key, name in _SYSTEMS.items()},
          'share of the floor': 'share_of_floor/median',
        },
      ),
      *(
        Rows(
          f'Their seconds over ours, of {words}',
          'works',
          {
            'work': 'key',
            **{
              name: f'ratio/{kind}/{key}'
              for key, name in _SYSTEMS.items()
              if key != 'epe_jax'
            },
          },
        )
        for kind, words in (('median', 'medians'), ('best', 'fastest rounds'))
      ),
    ),
  ),
  Section(
    'Algorithm 1',
    'algorithm1',
    'python benchmarks/algorithm1.py',
    '50 simulations of the mechanism in all d dimensions at each of three noise '
    'levels. The floor is one pass over the released vector in each simulation.',
    (
      Rows(
        'Seconds, and the mean estimate of ε with the std of the null',
        'families',
        {
          'family': 'family',
          'seconds': 'seconds',
          **{
            f'ε at σ = {sigma}': f'estimates[estimator=null,sigma={sigma}]/mean'
            for sigma in ('4.22', '1.54', '0.541')
          },
        },
      ),
    ),
  ),
  Section(
    'More devices',
    'device_scaling',
    'python benchmarks/device_scaling.py',
    'The same work on more devices, and work that grows with them.',
  ),
  Section(
    'An auditor beside a loop in PyTorch',
    'auditor_overhead',
    '.venv-frameworks/torch/bin/python benchmarks/auditor_overhead.py',
    'Rounds of 20 clients with and without an `Auditor`, in turn; what the share '
    'is of, is the time within its calls. A round of the perceptron trains for '
    'some 30 ms a client and is the worst case.',
  ),
  Section(
    'Models larger than a device',
    'sharded_audit',
    'python benchmarks/sharded_audit.py',
    'The audit of a vector that lies on several devices.',
  ),
  Section(
    'Growth',
    'growth',
    'python benchmarks/growth.py',
    'A multilayer perceptron, 16 examples a step and two steps a client, all '
    'iterates watched, one canary in each round; one of the four sizes varied at '
    'a time. Bytes are what XLA reserves for the program of a round.',
    (
      Rows(
        'Seconds of all rounds, the fastest run, and the floor: products at the '
        'speed of a large one, vectors at the speed of a pass',
        'points',
        {
          'varied': 'direction',
          'm': 'clients',
          'd': 'dim',
          'k': 'canaries',
          'T': 'rounds',
          **{name: f'seconds/{name}' for name in _FORMS},
          'floor, unaudited': 'floor_seconds/unaudited',
          **{f'{name}, memory': f'bytes/{name}' for name in _FORMS},
        },
      ),
      Rows(
        'Exponents, by least squares: 1 is proportional, 0 does not matter',
        'exponents',
        {
          'varied': 'key',
          **{f'time, {name}': f'of_time/{name}' for name in _FORMS},
          **{f'memory, {name}': f'of_memory/{name}' for name in _FORMS},
        },
      ),
    ),
    'growth.svg',
  ),
  Section(
    'Clients that compute in fewer bits',
    'precision',
    'python benchmarks/precision.py',
    'The digits run with `config.precision`, of one seed, with the same canaries '
    'and the same noise. ε is that of two Gaussians, with the std of the null. '
    'tensorfloat32 is float32 on a processor; on a GPU it is not measured.',
  ),
  Section(
    'Training the next-word model',
    'next_word_round',
    'python benchmarks/next_word_round.py',
    'Rounds of the StackOverflow LSTM against its textbook form in Haiku; the '
    'floor is its matrix products at the speed of a large one.',
  ),
  Section(
    'Import of data',
    'import_speed',
    'python benchmarks/import_speed.py',
    'Ten million sentences of the form of the public file into columns. The '
    'floors are its bytes, and a bare cursor over its rows.',
  ),
  Section(
    'Crafting canaries for CANIFE',
    'canife',
    'python benchmarks/canife.py --torch=PYTHON',
    'Seconds of a step of a canary: a network of two layers on images of 28 x 28, '
    'mock clients and a minibatch as in the comparison on Fashion-MNIST. In PyTorch '
    'one canary after another, on two threads: with whole gradients as the released code does '
    'it, with the updates of mock clients as a matrix; with factors, inner products '
    'come from factors of the gradients. Here a compiled scan of a batch of '
    'canaries, with factors; and of one canary with whole gradients. What factors '
    'save, PyTorch could have too.',
    (
      Rows(
        'A step of a canary',
        'forms',
        {
          'program': 'form',
          'canaries side by side': 'canaries',
          'seconds': 'seconds',
          'times as fast': 'times_as_fast',
        },
      ),
    ),
  ),
  Section(
    'Waiting for the default job',
    'waiting',
    'python benchmarks/waiting.py',
    'The job of the README as a user runs it: with an empty cache of compiled '
    'programs, with the one that the first run left, and shown once more.',
  ),
)
"""A section of the page for each result file."""
