"""Items that are made from the finished runs of a federated grid."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from epe_jax.experiment import finished_runs
from epe_jax.experiment.setup import config as config_lib
from epe_jax.experiment.sweeps import sweep, sweep_points
from epe_jax.report import cells
from papers import item

ROUNDS: dict[str, dict[str, Any]] = {
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
"""Fields of runs at each scale."""

IMAGES: dict[str, dict[str, Any]] = {
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
"""Further ones of runs on EMNIST."""

# Canaries as in the paper, whatever the config has.
_SPHERE = dict(canaries=dict(family='sphere'))

TEXT: dict[str, dict[str, Any]] = {
  'paper': _SPHERE,
  # Set by the mode of the config.
  'medium': _SPHERE,
  # A smaller LSTM and vocabulary, d = 0.5 million.
  'small': dict(
    **_SPHERE,
    data=dict(vocabulary_size=4000),
    model=dict(embedding_size=48, hidden_size=128),
    client=dict(max_examples=32),
    evaluate_examples=2000,
  ),
  'smoke': dict(
    **_SPHERE,
    data=dict(num_clients=12, max_sentences=8, vocabulary_size=100),
    model=dict(embedding_size=4, hidden_size=6),
    client=dict(max_examples=16),
    evaluate_examples=50,
  ),
}
"""And on StackOverflow."""

# Estimates from fewer canaries scatter widely.
_FEWEST_CANARIES = 200


class Run(finished_runs.FinishedRun):
  """A finished run of a grid over noise and repetitions."""

  __slots__ = ()

  @property
  def noise(self) -> float:
    """The noise multiplier z."""
    return self.result.noise_multiplier

  @property
  def repetitions(self) -> int:
    """The number of rounds with a canary that is observed."""
    return self.result.participations

  @property
  def is_audited(self) -> bool:
    """Whether there were canaries."""
    return bool(self.result.audit.attacks)


def from_grid(
  title: str,
  source: str,
  experiment: item.Experiment,
  make: Callable[..., item.Product],
  *,
  fixed: Mapping[str, Any] | None = None,
  adjust: Callable[[Sequence[sweep_points.Point]], None] | None = None,
  **options: Any,
) -> item.Item:
  """An item of the runs of a grid, which trains those that are missing.

  Args:
    title: as in `item.Item`, and so are source and experiment, whose settings are a
      config in configs/ by name, sets, the fields that change it, and axes.
    source: see there.
    experiment: see there.
    make: (runs, **options) -> tables and figures.
    fixed: axis of the grid -> the one value of it that the item needs.
    adjust: changes the configs of the runs.
    **options: for `make`.
  """

  def make_item(settings: Any, workspace: item.Workspace) -> item.Product:
    axes = [
      (
        names,
        choose_values(names, values, {**(fixed or {}), **workspace.fields}),
      )
      for names, values in settings.axes
    ]
    points = sweep_points.make_grid(make_base_config(settings, workspace), axes)
    if adjust is not None:
      adjust(points)
    outcome = sweep.run_sweep(
      points,
      workspace.folder,
      launch=workspace.launch,
      retry=workspace.retry,
    )
    if outcome.failed:
      reasons = '\n'.join(f'  {k}: {why}' for k, why in outcome.failed.items())
      raise ValueError(
        f'{workspace.folder.name}: {len(outcome.failed)} of {len(points)} runs '
        f'failed; --retry tries them again.\n{reasons}'
      )
    runs = [
      Run(*finished_runs.load_finished_run(outcome.finished[point.name]))
      for point in points
    ]
    return make(runs, **options)

  return item.Item(title, source, experiment, make_item)


def choose_values(
  names: str | Sequence[str], values: Sequence[Any], fields: Mapping[str, Any]
) -> Sequence[Any]:
  """The values of an axis: those of a scale, or the one that `fields` gives.

  Raises:
    ValueError: one of several fields is given, which move together.
  """
  if isinstance(names, str):
    return [fields[names]] if names in fields else values
  if given := [name for name in names if name in fields]:
    raise ValueError(
      f'--field={given[0]}={fields[given[0]]}, but the item compares runs that differ '
      f'in {" and ".join(names)}; leave it out.'
    )
  return values


def make_base_config(settings: Any, workspace: item.Workspace) -> Any:
  """The config of an experiment with its data, before the axes of a grid.

  Raises:
    ValueError: the path of the data is not given, or a field that the workspace sets
      has another type.
  """
  config = config_lib.load_config(settings.config)
  for fields in settings.sets:
    config.update(fields)
  (point,) = sweep_points.make_grid(
    config, [(field, [value]) for field, value in workspace.fields.items()]
  )
  config = point.config
  if config.task == 'digits':
    return config
  path = workspace.data.get(config.task)
  if path is None and not workspace.synthetic:
    raise ValueError(
      f'--{config.task} is not given. Give the data file, or --synthetic to '
      'train on generated data.'
    )
  config.data.path = path and str(path)
  config.data.synthetic = workspace.synthetic
  if config.task == 'emnist' and workspace.only_digits:
    config.data.only_digits = True
  if config.task == 'stackoverflow':
    words = workspace.data.get('word_count')
    config.data.word_count = words and str(words)
  return config


def describe_runs(runs: Sequence[Run]) -> list[str]:
  """The data and the sizes of runs, as sentences without repetition."""
  sentences = []
  for run in runs:
    r, server = run.result, run.result.config['server']
    most = run.result.config['client'].get('max_examples')
    canaries = (
      f'{r.num_observed:,} observed canaries and '
      f'{r.num_unobserved:,} unobserved'
      if run.is_audited
      else 'no canaries'
    )
    sentences.append(f'Data: {r.data}.')
    sentences.append(
      f'{r.rounds:,} rounds of {r.config["clients_per_round"]:,} clients'
      + (f' with at most {most:,} examples each' if most else '')
      + f', server rate {server["learning_rate"]:g} with momentum '
      f'{server.get("momentum", 0):g}, d = {r.dim:,}, {canaries}, '
      f'δ = {cells.format_delta(r.delta)}.'
    )
  audited = [run.result.num_observed for run in runs if run.is_audited]
  return [
    *dict.fromkeys(sentences),
    *describe_learning(runs),
    *(warn_of_few(min(audited)) if audited else []),
  ]


def warn_of_few(num: int, of: str = 'canaries') -> list[str]:
  """A caution if an estimate is of few canaries, or of other things."""
  if num >= _FEWEST_CANARIES:
    return []
  return [
    f'{item.CAUTION}estimates are of {num:,} {of} alone, and scatter widely.'
  ]


def warn_of_models(
  accuracies: Iterable[tuple[str, float]], baseline: float
) -> list[str]:
  """A caution if models learnt nothing.

  Args:
    accuracies: what tells a model from others, as 'noise 0.1', and its accuracy.
    baseline: the accuracy of the majority class, in [0, 1].
  """
  lowest: dict[str, float] = {}
  for name, accuracy in accuracies:
    if accuracy <= item.LEARNT * baseline:
      lowest[name] = min(accuracy, lowest.get(name, accuracy))
  if not lowest:
    return []
  failed = [
    f'{name} (accuracy {cells.format_percent(accuracy)})'
    for name, accuracy in lowest.items()
  ]
  return [
    f'{item.CAUTION}at {", ".join(failed)} the model did not learn: the '
    f'majority class alone has {cells.format_percent(baseline)}.'
  ]


def _name_noise(run: Run) -> str:
  """The noise of a run, and how it is correlated."""
  correlation = run.result.config['noise']['correlation']
  kind = '' if correlation == 'independent' else f'{correlation} '
  return f'{kind}noise {run.noise:g}'


def describe_learning(runs: Sequence[Run]) -> list[str]:
  """What the accuracies of runs are worth, a sentence or two."""
  baselines = dict.fromkeys(run.result.baseline_accuracy for run in runs)
  listed = ', '.join(f'{100 * baseline:.2f} %' for baseline in baselines)
  return [
    f'The majority class alone has an accuracy of {listed}.',
    *(
      caution
      for baseline in baselines
      for caution in warn_of_models(
        (
          (_name_noise(run), run.result.accuracy)
          for run in runs
          if run.result.baseline_accuracy == baseline
        ),
        baseline,
      )
    ),
  ]
