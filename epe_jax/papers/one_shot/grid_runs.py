"""The finished runs of a grid, from which an item is made."""

from collections.abc import Sequence

from epe_jax.experiment import finished_runs


class Run(finished_runs.FinishedRun):
  """A finished run of a grid, which varies noise and repetitions."""

  __slots__ = ()

  @property
  def noise(self) -> float:
    """The noise multiplier z."""
    return self.result.noise_multiplier

  @property
  def repetitions(self) -> int:
    """The number of rounds in which a canary took part."""
    return self.result.repetitions

  @property
  def is_audited(self) -> bool:
    """Whether canaries took part."""
    return bool(self.result.audit.attacks)


def describe_runs(runs: Sequence[Run]) -> list[str]:
  """The data and the sizes of runs, as sentences, each of them once."""
  sentences = []
  for run in runs:
    r = run.result
    canaries = (
      f'{r.num_observed:,} canaries that took part and '
      f'{r.num_unobserved:,} that did not'
      if run.is_audited
      else 'no canaries'
    )
    sizes = (
      f'{r.rounds:,} rounds of {r.config["clients_per_round"]:,} clients, '
      f'd = {r.dim:,}, {canaries}'
    )
    sentences.append(f'Data: {r.data}.')
    sentences.append(f'{sizes[0].upper()}{sizes[1:]}.')
  return list(dict.fromkeys(sentences))
