"""Targets of the figures in result files, and the tables that show them.

If the layout of a result file changes, change the paths here.
"""

from collections.abc import Mapping
from typing import NamedTuple

from layout import Rows

from epe_jax.experiment import placement


class Target(NamedTuple):
  """A bound that a figure has to reach.

  Attributes:
    what: the figure, in words.
    file: stem of its result file.
    at: path to it in the file, as `layout.find` reads it.
    bound: to reach.
    at_most: whether the figure should be at most, or at least, the bound.
  """

  what: str
  file: str
  at: str
  bound: float
  at_most: bool = True


def _at_least(what: str, file: str, at: str, bound: float) -> Target:
  return Target(what, file, at, bound, at_most=False)


_LSTM = 'sizes[dim=4050748,canaries=2000,vectors=1]'
_LARGE = 'sizes[dim=100000000,canaries=2000,vectors=1]'
_PEERS = {
  'pfl-research': ('fastest pfl', {'A': 1.2, 'Ah': 2.0, 'B': 1.5}),
  'FedJAX, its fastest backend,': ('fastest fedjax', {'A': 2.0, 'B': 2.0}),
  'TFF': ('fastest tff', {'A': 1.8, 'B': 1.8}),
}
_GAMES = 'digits', 'EMNIST CNN, 16 examples', 'EMNIST CNN, 128 examples'
# What waits, program and figure, at most.
_WAITING = (
  (
    'seconds of the default job, nothing compiled yet',
    'run, nothing compiled/seconds',
    20.0,
  ),
  (
    'the same: until the first round has ended',
    'run, nothing compiled/seconds_to_first_round',
    10.0,
  ),
  (
    'the same, when programs are kept from another run',
    'run, programs kept/seconds_to_first_round',
    5.0,
  ),
  (
    'seconds of `epe-jax run` on a run that is finished',
    'run that is finished/seconds',
    2.0,
  ),
  (
    'seconds of `epe-jax estimate` on a CSV file',
    'estimate/seconds',
    2.0,
  ),
)

TARGETS = (
  Target(
    'all 2,000 cosines with Hadamard canaries, d = 4.1M / one pass for the norm',
    'canary_kernels',
    f'{_LSTM}/passes/hadamard',
    5.0,
  ),
  Target(
    'share of a PyTorch round within an `Auditor`, 2,000 Hadamard canaries, '
    'LSTM of 4M parameters',
    'auditor_overhead',
    'works/lstm/share_of_auditor',
    0.02,
  ),
  Target(
    'the same: LSTM of 10M parameters',
    'auditor_overhead',
    'works/large lstm/share_of_auditor',
    0.01,
  ),
  Target(
    'audited / unaudited round, 2,000 canaries, all iterates, work B: Hadamard',
    'audited_round',
    'works/B/over_unaudited/hadamard',
    1.005,
  ),
  Target(
    'the same: sphere',
    'audited_round',
    'works/B/over_unaudited/sphere',
    1.05,
  ),
  Target(
    'round of the LSTM: with a banded mechanism / with independent noise',
    'correlated_noise',
    'mechanisms/banded, 4/over_independent',
    1.05,
  ),
  *(
    Target(
      f'round {work}: with exact noise / with float32 noise',
      'exact_noise',
      f'works/{work}/over_unaudited_median/exact_noise',
      1.02,
    )
    for work in 'AB'
  ),
  *(
    _at_least(
      f'round {work}: {name} seconds / ours',
      'rounds',
      f'works/{work}/ratio/median/{key}?',
      bound,
    )
    for name, (key, bounds) in _PEERS.items()
    for work, bound in bounds.items()
  ),
  *(
    _at_least(
      f'round {work}: share of the arithmetic floor reached',
      'rounds',
      f'works/{work}/share_of_floor/median',
      bound,
    )
    for work, bound in (('A', 0.9), ('B', 0.85))
  ),
  Target(
    'Algorithm 1, d = 10^6, k = 10^3, 50 literal simulations, Hadamard',
    'algorithm1',
    'families[family=hadamard]/seconds',
    10.0,
  ),
  *(
    Target(
      f'step of the white-box game / step of DP-SGD: {work}',
      'white_box_step',
      f'works/{work}/over_plain',
      2.1,
    )
    for work in _GAMES
  ),
  _at_least(
    'crafting for CANIFE: a step of a canary by its loop in PyTorch / ours',
    'canife',
    'ratio/best',
    10.0,
  ),
  Target(
    'memory of a work-B audit with 2,000 canaries over the unaudited run',
    'audited_round',
    'works/B/peak_bytes_more/hadamard',
    100e6,
  ),
  *(
    Target(what, 'waiting', f'programs/{at}', bound)
    for what, at, bound in _WAITING
  ),
  *(
    Target(
      f'a sweep by {engine}, seconds of a slot for each point beyond a bare loop',
      'launchers',
      f'engines[engine={engine}]/overhead_seconds_per_point',
      5.0,
    )
    for engine in placement.ENGINES
  ),
  Target(
    'a sweep of EMNIST (smoke) of two jobs on two cores / of one job',
    'launchers',
    'side_by_side/two_over_one',
    0.6,
  ),
  Target(
    'GPU, digits: largest difference of a cosine of the first round from the '
    'processor, in standard deviations',
    'gpu_device_agreement',
    'cosines_moved_in_std/first_round',
    1e-2,
  ),
  Target(
    'the same: largest difference of an ε',
    'gpu_device_agreement',
    'largest_epsilon_difference',
    0.1,
  ),
  Target(
    'GPU, a round of EMNIST, 101 clients, 2,000 canaries, all iterates',
    'gpu_emnist_rounds',
    'round/seconds_in_a_row',
    0.24,
  ),
  Target(
    'the same: audited / unaudited',
    'gpu_emnist_rounds',
    'ratio/audited_over_unaudited',
    1.01,
  ),
  Target(
    'GPU, a round of StackOverflow, 167 clients of at most 256 sentences, float32',
    'gpu_words_float32',
    'round/seconds_in_a_row',
    0.5,
  ),
  Target(
    'GPU, audited / unaudited round, work B, 2,000 canaries, Hadamard',
    'gpu_audited_round',
    'works/B/over_unaudited/hadamard',
    1.01,
  ),
  Target(
    'GPU, all 2,000 cosines with Hadamard canaries, d = 10^8 / one pass for the norm',
    'gpu_kernels_large',
    f'{_LARGE}/passes/hadamard',
    5.0,
  ),
)


_SIZES = {'d': 'dim', 'k': 'canaries', 'vectors': 'vectors'}
_FAMILIES = ('hadamard', 'hadamard2', 'sphere')
_SYSTEMS = {
  'epe_jax': 'epe_jax',
  'pfl': 'pfl-research',
  'pfl_last': 'pfl-research, channels_last',
  'fedjax': 'FedJAX',
  'fedjax_pmap': 'FedJAX, pmap',
  'tff': "TFF, the authors' code",
}
_FORMS = ('unaudited', 'hadamard', 'sphere')

ROWS: Mapping[str, Rows] = {
  'canary_kernels': Rows(
    'Seconds per projection, fastest',
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
  'canary_law': Rows(
    'Share of vectors rejected',
    'kinds',
    {
      'vector': 'key',
      'd': 'dim',
      'd_eff': 'effective_dimension',
      **{name: f'families/{name}/rejected_share' for name in _FAMILIES},
    },
  ),
  'audited_round': Rows(
    'Mean seconds per round, ratio, and peak memory',
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
  'exact_noise': Rows(
    'Seconds of a round, the median, and the ratio',
    'works',
    {
      'work': 'key',
      'rounds': 'rounds',
      'float32': 'seconds_median/unaudited',
      'exact': 'seconds_median/exact_noise',
      'exact / float32': 'over_unaudited_median/exact_noise',
    },
  ),
  'correlated_noise': Rows(
    'Seconds of a round, the fastest, and bytes of the state',
    'mechanisms',
    {
      'noise': 'key',
      'state': 'state_bytes',
      'round': 'seconds',
      'over independent': 'over_independent',
      'without clients': 'seconds_without_clients',
      'added': 'added_seconds as seconds',
    },
  ),
  'secure_round': Rows(
    'Seconds of a round, the median, and the ratio',
    'works',
    {
      'work': 'key',
      'rounds': 'rounds',
      'float32': 'seconds_median/unaudited',
      'ring': 'seconds_median/secure_aggregation',
      'ring / float32': 'over_unaudited_median/secure_aggregation',
      'the same of CPU time': 'busy_over_unaudited_median/secure_aggregation',
    },
  ),
  'secure_aggregation': Rows(
    'Share of the cosine of a canary that is lost, and ε of a round',
    'rings',
    {
      'bits': 'key',
      'std of the noise, in steps': 'std',
      'norm of a message / clip norm': 'l2_over_clip',
      'cosine lost': 'cosine_lost',
      'coordinates that went round': 'wrapped',
      'ε': 'epsilon',
      'ε of Gaussian noise': 'epsilon_gaussian',
    },
  ),
  'white_box_step': Rows(
    'Seconds of a step, the median, and the ratio',
    'works',
    {
      'work': 'key',
      'd': 'dim',
      'expected batch': 'expected_batch',
      'padded batch': 'padded_batch',
      'DP-SGD': 'seconds_median/plain as seconds',
      'game': 'seconds_median/game as seconds',
      'temporary arrays of DP-SGD': 'temporary_bytes/plain as bytes',
      'of the game': 'temporary_bytes/game as bytes',
      'game / DP-SGD': 'over_plain',
      'the same, memory kept': 'over_plain_memory_kept',
    },
  ),
  'rounds': Rows(
    'Median seconds per round',
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
  'algorithm1': Rows(
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
  'growth': Rows(
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
  'canife': Rows(
    'A step of a canary',
    'forms',
    {
      'program': 'form',
      'canaries side by side': 'canaries',
      'seconds': 'seconds',
      'times as fast': 'times_as_fast',
    },
  ),
  'launchers': Rows(
    'Sixteen points of digits on two slots',
    'engines',
    {
      'engine': 'engine',
      'sweep': 'seconds',
      'bare loop': 'loop_seconds as seconds',
      'overhead a point': 'overhead_seconds_per_point as seconds',
    },
  ),
  'waiting': Rows(
    'Seconds, medians',
    'programs',
    {
      'program': 'key',
      'in all': 'seconds',
      'of the processor': 'cpu_seconds',
      'to the first round': 'seconds_to_first_round?',
    },
  ),
}
"""The table of a result file that its page shows; of a file without an entry, its first."""
