"""Matrix mechanisms and rings side by side: accuracy, and what attackers find."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib import figure
import numpy as np

from epe_jax.audit import attackers, release, upper_bounds
from epe_jax.audit.attack_scores import ThreatModel
from epe_jax.audit.results import AttackResult
from epe_jax.report import cells, tables, words
from epe_jax.report.figures import style
from epe_jax.watch import by_round
from papers import grid, item
from papers.production import deployed

_COLUMNS = (
  attackers.CHANGE,
  attackers.OWN,
  attackers.RESIDUAL,
  attackers.DECORRELATED,
)
# Of each mechanism, in every figure.
_STYLES = {
  'independent': (style.BLACK, 'o'),
  'tree': (style.GREEN, 's'),
  'banded': (style.BLUE, 'D'),
  'bisr': (style.PURPLE, 'v'),
  'blt': (style.VERMILLION, '^'),
}


def make_mechanisms(runs: Sequence[grid.Run]) -> item.Product:
  """Makes the table and figures of runs that differ in mechanism and noise.

  Args:
    runs: with a trace.
  """
  table = _make_table(
    'ε of canaries in the worst rounds, and accuracy',
    runs,
    {'noise of rounds': [_name(run) for run in runs]},
    _COLUMNS,
    [
      'z: noise of one round in clip norms, if noise is independent; otherwise such '
      'that one participation leaks no more.',
      'After each round: the analytic ε is of the canary whose rounds so far give away '
      'most, and the measured one of all that took part by then. Each panel shows the '
      'run of a mechanism whose accuracy is nearest to a level that all reach.',
      'Canaries take part in the rounds that give away most of those a client may have.',
      'The analytic ε of a client in a tree is that of all its nodes; prefix sums, which '
      'are released, show less.',
    ],
  )
  rounds = [(run, _evaluate_rounds(run)) for run in _choose_equal(runs)]
  return item.Product(
    [table],
    {
      'utility': _draw_utility(runs),
      'by_round': _draw_by_round(rounds),
    },
  )


def make_rings(runs: Sequence[grid.Run]) -> item.Product:
  """Makes the table of runs behind secure aggregation, by the bits of its ring.

  Args:
    runs: with a trace.
  """
  rings = [run.record.ring if run.record else None for run in runs]
  table = _make_table(
    'ε of canaries behind secure aggregation, and accuracy',
    runs,
    {
      'bits': [
        str(run.result.config['secure_aggregation']['bits'] or 'float32')
        for run in runs
      ],
      'norm of a message': [
        # A ring has the noise, z clip norms, in steps of its grid.
        f'{ring.l2 * run.noise / ring.std:.4g}' if ring else '-'
        for run, ring in zip(runs, rings)
      ],
      'wrapped around': [
        f'{ring.wrapped:,}' if ring else '-' for ring in rings
      ],
    },
    _COLUMNS[:3],
    [
      'The norm of a message is the largest, in clip norms: rotated and rounded to the '
      'grid. Coordinates of the sums wrapped around the ring, of all rounds.',
      'z: noise of one round in clip norms. float32: sums of updates, with Gaussian '
      'noise; otherwise of integers with Skellam noise.',
    ],
  )
  return item.Product([table], {})


def _make_table(
  title: str,
  runs: Sequence[grid.Run],
  names: Mapping[str, Sequence[str]],
  models: Sequence[ThreatModel],
  notes: Sequence[str],
) -> tables.Table:
  """A row for each run: columns with its names, accuracy, and ε of attackers."""
  body = [
    [
      *named,
      f'{run.noise:g}',
      cells.format_percent(run.result.accuracy),
      *(
        cells.format_with_interval(run.result.audit.find_first(model))
        for model in models
      ),
      cells.format_analytic(_find_worst(run).analytic),
      cells.format_number(run.result.clients_analytic_epsilon),
    ]
    for named, run in zip(zip(*names.values()), runs)
  ]
  head = [
    *names,
    'z',
    'accuracy',
    *(f'ε, {words.spell_name(model)}' for model in models),
    'analytic ε, canary',
    'client',
  ]
  notes = [
    *notes,
    'Point estimates with 90 % intervals.',
    *cells.explain_rejected(c for line in body for c in line),
    *grid.describe_runs(runs),
  ]
  return tables.Table(title, head, body, notes)


def _name(run: grid.Run) -> str:
  return run.result.config['noise']['correlation']


def _find_worst(run: grid.Run) -> AttackResult:
  """The strongest attacker, who knows all other updates."""
  return run.result.audit.by_strength[-1]


def _group(runs: Sequence[grid.Run]) -> Mapping[str, list[grid.Run]]:
  groups: dict[str, list[grid.Run]] = {}
  for run in runs:
    groups.setdefault(_name(run), []).append(run)
  return groups


def _choose_equal(runs: Sequence[grid.Run]) -> list[grid.Run]:
  """Of each mechanism the run whose accuracy is next to one that all reach."""
  groups = _group(runs)
  target = min(max(r.result.accuracy for r in g) for g in groups.values())
  return [
    min(group, key=lambda r: abs(r.result.accuracy - target))
    for group in groups.values()
  ]


def _draw_utility(runs: Sequence[grid.Run]) -> figure.Figure:
  """Accuracy against the measured ε of the models and of the worst case."""
  fig, panels = style.make_panels(2, columns=2, height=4.0)
  titles = 'worst case', 'first and last model'
  for axes, title in zip(panels, titles):
    shown = []
    for name, group in _group(runs).items():
      color, marker = _STYLES[name]
      epsilons = [
        float(attack.first.epsilon)
        for run in group
        if (
          attack := _find_worst(run)
          if title == titles[0]
          else run.result.audit.find(attackers.CHANGE)
        )
      ]
      shown += epsilons
      axes.plot(
        epsilons,
        [100 * run.result.accuracy for run in group],
        marker + '-',
        color=color,
        label=name,
      )
    axes.set(xlabel=f'ε of a canary, {title}', ylabel='test accuracy, %')
    style.set_epsilon_axis(axes, 'x', style.find_highest(shown))
  style.draw_legend(fig, list(panels))
  return fig


class _Rounds(NamedTuple):
  """ε of a run after its rounds, in the worst case: measured and analytic."""

  measured: Sequence[by_round.RoundEstimate]
  analytic: Mapping[int, float]


def _evaluate_rounds(run: grid.Run) -> _Rounds:
  record = run.record
  assert record is not None, 'it is audited'
  worst = (
    attackers.RESIDUAL if record.strategy is None else attackers.DECORRELATED
  )
  measured = [
    row
    for row in by_round.evaluate_by_round(record, models=[worst])
    if row.estimate.confidence is None and row.threat_model == worst
  ]
  # From the round on by which two canaries have taken part.
  num = np.logical_or.accumulate(record.assigned).sum(axis=1)
  analytic = {}
  for t in range(1 + int(np.argmax(num >= 2)), record.num_rounds + 1):
    limit = upper_bounds.bound_known_rounds(
      release.truncate_after(record, t), record.delta
    )
    if limit is not None:
      analytic[t] = limit.epsilon
  return _Rounds(measured, analytic)


def _draw_by_round(runs: Sequence[tuple[grid.Run, _Rounds]]) -> figure.Figure:
  """Draws ε after each round, of mechanisms of like accuracy."""
  fig, panels = style.make_panels(len(runs), columns=3, height=3.4)
  for axes, (run, rounds) in zip(panels, runs):
    color, marker = _STYLES[_name(run)]
    estimates = [row.estimate for row in rounds.measured]
    errors = [np.subtract(e.interval or (0, 0), e.epsilon) for e in estimates]
    axes.errorbar(
      [row.round for row in rounds.measured],
      [float(e.epsilon) for e in estimates],
      yerr=np.abs(errors).T,
      fmt=marker,
      color=color,
      label='measured, 90 % interval',
    )
    axes.plot(
      list(rounds.analytic),
      list(rounds.analytic.values()),
      '--',
      color=color,
      label='analytic',
    )
    axes.set(
      title=f'{_name(run)}, z = {run.noise:g}: '
      f'{cells.format_percent(run.result.accuracy)}',
      xlabel='round',
      ylabel='ε',
    )
    axes.legend(loc='lower right')
  return fig


# Many clients with few sentences: a model that learns in spite of the noise.
_FEW_SENTENCES = dict(
  client=dict(max_examples=8),
  # A fixed norm cannot grow with the updates, of norm 0.7.
  clipping=dict(initial=0.5),
  evaluate_every=100,
  checkpoint_every=50,
)


def _choose_base(config: str, scale: str) -> tuple[str, list[dict[str, Any]]]:
  """The config of runs, and the fields that change its sizes."""
  smoke, small = scale == 'smoke', scale == 'small'
  if config == 'digits':
    # The δ of configs that set none.
    sizes = dict(rounds=60, audit=dict(delta=400**-1.1))
    sizes |= dict(canaries=dict(observed=400, unobserved=400))
    if smoke:
      sizes = dict(rounds=6, clients_per_round=40)
    return 'digits:smoke' if smoke else 'digits', [sizes]
  if config == 'emnist':
    sizes = [grid.ROUNDS[scale], grid.IMAGES[scale]]
    # Eight epochs of six rounds.
    return config, sizes + [dict(data=dict(num_clients=204))] * small
  if small:
    return 'stackoverflow:medium', [grid.TEXT[scale], _FEW_SENTENCES]
  return config, [grid.ROUNDS[scale], grid.TEXT[scale]]


def _make_item(
  title: str,
  name: str,
  config: str,
  axis: tuple[Any, Sequence[Any], Sequence[Any]],
  noises: Sequence[float],
  make: Callable[[Sequence[grid.Run]], item.Product] = make_mechanisms,
) -> item.Item:
  """An item of a grid of noise multipliers and another axis.

  Clients come back in a fixed order, so that separation and number of their rounds
  are known.

  Args:
    title: of the item.
    name: of its experiment.
    config: 'digits', 'emnist' or 'stackoverflow'.
    axis: fields, their values, and those at 'smoke'.
    noises: noise multipliers; the smallest alone at 'smoke'.
    make: of the item.
  """

  def choose(scale: str) -> dict[str, Any]:
    smoke = scale == 'smoke'
    base, sizes = _choose_base(config, scale)
    runs = dict(
      participation=dict(kind='one_order'),
      clipping=dict(kind='fixed'),
      # 'worst_case' is what correlated noise has by itself.
      canaries=dict(schedule='worst_case', repetitions=1),
    )
    fields, values, few = axis
    noise = ('noise_multiplier', noises[:1] if smoke else noises)
    return dict(
      config=base,
      sets=[*sizes, runs],
      axes=((fields, few if smoke else values), noise),
    )

  words = ('word_count',) if config == 'stackoverflow' else ()
  data = () if config == 'digits' else (config, *words)
  experiment = item.Experiment(f'production_{name}', choose, data)
  return grid.from_grid(title, 'of this project', experiment, make)


REMARKS = (
  'Digits again with sums in another order (`JAX_NUM_CPU_DEVICES=1`): rounding, which '
  'training amplifies, changes accuracies by up to 4.2 points, and ε by 0.01.',
)

_MECHANISMS = (
  ('noise.correlation', 'noise.buffers'),
  # Two buffers, of which three are the default.
  (*((k, 3) for k in ('independent', 'tree', 'banded', 'bisr')), ('blt', 2)),
  (('independent', 3), ('banded', 3)),
)

ITEMS = {
  'deployed': deployed.ITEM,
  **{
    config: _make_item(
      f'{title}: matrix mechanisms, audited',
      config,
      config,
      _MECHANISMS,
      noises,
    )
    for config, title, noises in (
      ('digits', 'Digits', (0.3, 0.6, 1.2)),
      ('emnist', 'EMNIST', (0.2, 0.5, 1.0)),
      ('stackoverflow', 'StackOverflow', (0.6, 1.2, 2.4)),
    )
  },
  'rings': _make_item(
    'EMNIST behind secure aggregation, audited',
    'rings',
    'emnist',
    ('secure_aggregation.bits', (None, 12, 16, 20), (None, 16)),
    (0.5, 1.0),
    make_rings,
  ),
}
