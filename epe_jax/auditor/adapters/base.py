"""What adapters share: the settings of an audit, its auditor, and a warning."""

from collections.abc import Mapping
import dataclasses
import logging
import math
from typing import Any
import warnings

import numpy as np

from epe_jax.auditor.audit_config import AuditConfig
from epe_jax.auditor.auditor import Auditor
from epe_jax.auditor.host_canaries import structures
from epe_jax.epsilon import tradeoff
from epe_jax.fact import Fact
from epe_jax.report import checks

_CURES = {
  'dim': 'the floating-point numbers that a round releases',
  'rounds': 'as many as training will make',
  'clip_norm': 'the norm to which updates are clipped',
  'noise_multiplier': 'or None if no noise is claimed',
  'delta': 'the δ of the claim',
}
"""The settings that have no default, and what to give."""

_LATER: dict[str, Any] = {'dim': 2, 'rounds': 2**53}
"""Values of settings that are not known yet, with which all others are possible."""

BELOW = 1 - 1e-5
"""Canaries times this do not count as clipped, however their numbers are rounded."""

_FIELDS = [field.name for field in dataclasses.fields(AuditConfig)]
_ROUNDING = 1.01


class Settings:
  """The settings of one audit, until all are known and its auditor is made."""

  def __init__(
    self,
    given: Mapping[str, Any],
    *,
    auditor: Auditor | None = None,
    seed: int | None = None,
    rounds: str = 'rounds',
  ):
    """Takes what a caller gave.

    Raises:
      TypeError: a setting is unknown.
      ValueError: there is an auditor besides settings.
    """
    names = [rounds if name == 'rounds' else name for name in _FIELDS]
    if rounds in (given := dict(given)) and given[rounds] is None:
      del given[rounds]
    if rounds != 'rounds' and 'rounds' in given:
      raise TypeError(
        f'rounds of an optimizer are its {rounds}; give {rounds}.'
      )
    if unknown := sorted(given.keys() - set(names)):
      raise TypeError(
        f'{unknown[0]!r} is not a setting of an audit; give some of '
        f'{", ".join(names)}.'
      )
    if auditor is not None and (given or seed is not None):
      settings = [*sorted(given), *['seed'] * (seed is not None)]
      raise ValueError(
        f'an auditor is given besides {", ".join(settings)}, which it has; give '
        'one of the two.'
      )
    self._given = {_FIELDS[names.index(name)]: x for name, x in given.items()}
    self._found: dict[str, dict[str, Any]] = {}
    self._seed, self._rounds = seed, rounds
    self.made = auditor

  @property
  def _known(self) -> dict[str, Any]:
    if self.made is not None:
      return vars(self.made.config)
    found = {n: x for of in self._found.values() for n, x in of.items()}
    return found | self._given

  def find(self, name: str, default: Any = None) -> Any:
    """Returns a setting, or the default while it is not known."""
    return self._known.get(name, default)

  def refuse_other_views(self, why: str) -> None:
    """Raises a ValueError unless releases are aggregates; `why` has the cure."""
    if (view := self.find('view', 'aggregate')) != 'aggregate':
      raise ValueError(f'view={view!r}, but {why}.')

  def require(self, *later: str) -> None:
    """Checks that nothing but what is found later is missing or out of range."""
    if self.made is None:
      self._make_config(*later)

  def _make_config(self, *later: str) -> AuditConfig:
    known = self._known
    for name, cure in _CURES.items():
      if name not in known and name not in later:
        name = self._rounds if name == 'rounds' else name
        raise ValueError(
          f'{name} of the audit is not known; give {name}=..., {cure}.'
        )
    return AuditConfig(**{name: _LATER[name] for name in later} | known)

  def check(self, source: str, **values: Any) -> None:
    """Checks what a framework says against what is known.

    Raises:
      ValueError: a setting is known to be another.
    """
    known = self._known
    for name, value in values.items():
      own = known.get(name, value)
      # A strategy of None is one as well: of independent noise.
      if (own is None and name != 'strategy') or _is_equal(own, value):
        continue
      name, shown = self._rounds if name == 'rounds' else name, _show(value)
      cure = f'set {name}={shown}, or leave it out'
      if name == 'noise_multiplier':
        cure += ', or set None if nothing is claimed'
      raise ValueError(
        f'{name}={_show(own)}, but that of the {source} is {shown}; {cure}.'
      )

  def read(self, source: str, **values: Any) -> None:
    """Checks what a framework says, and adds what was not known."""
    self.check(source, **values)
    if new := {n: x for n, x in values.items() if n not in self._known}:
      self._found.setdefault(source, {}).update(new)

  def read_strategy(
    self,
    source: str,
    strategy: np.ndarray,
    *,
    min_separation: int | None = None,
  ) -> None:
    """Reads the matrix C of correlated noise, and the rounds that it allows.

    Canaries take part as often as these allow, unless `repetitions` are known.

    Args:
      source: what has the matrix.
      strategy: C, [T, T].
      min_separation: rounds from one of a participant to its next; None if unknown.
    """
    self.read(source, strategy=strategy)
    if min_separation is not None and self.find('repetitions') is None:
      self.read(
        source,
        repetitions=-(-len(strategy) // min_separation),
        min_separation=min_separation,
      )

  def read_dim(self, source: str, sizes: Mapping[str, int]) -> None:
    """Reads the size of what a round releases, from the sizes of its arrays."""
    known, dim = self.find('dim'), sum(sizes.values())
    if known is not None and known != dim:
      raise ValueError(
        structures.describe_difference(f'the {source}', sizes, known)
      )
    self.read(source, dim=dim)

  def make(self) -> Auditor:
    """Returns the auditor; the first call makes it.

    Raises:
      ValueError: a setting is missing or out of range.
    """
    if self.made is None:
      self.made = Auditor(self._make_config(), seed=self._seed)
      for source, values in self._found.items():
        # Nobody reads a matrix in a note.
        shown = {n: x for n, x in values.items() if n != 'strategy'}
        if shown:
          fact = Fact('settings_read', {'source': source, **shown})
          self.made.add_note(fact)
          logging.getLogger(__name__).info(checks.describe_check(fact))
    return self.made


class Audited:
  """What `audit` of an adapter returns; its auditor is made when training starts."""

  _settings: Settings

  @property
  def auditor(self) -> Auditor:
    """The auditor.

    Raises:
      ValueError: it is not made yet.
    """
    if self._settings.made is None:
      raise ValueError(
        'the auditor is made when training starts, from the size of the model; '
        'ask for it afterwards.'
      )
    return self._settings.made


def note_larger(
  auditor: Auditor,
  *,
  largest: float,
  canary: float,
  weighted_by: str,
  option: str = '',
  share: float | None = None,
) -> None:
  """Notes the ε of the largest client of a mean, if it weighs more than a canary.

  The report of the auditor has the largest one of all rounds; the first one is also
  a warning. Nothing is noted if no noise is claimed.

  Args:
    auditor: of the round.
    largest: the largest weight of a client.
    canary: the weight of a canary.
    weighted_by: what clients are weighted by.
    option: of the adapter, for the weight of canaries; '' if it has none.
    share: influence of the largest client on the mean, in units of S/n, for which the
      noise is; None if the noise is for the weight of a canary.

  References:
    docs/findings.md: a weighted mean moves by the largest share of the weights.
  """
  z, delta = auditor.config.noise_multiplier, auditor.config.delta
  if not z or largest <= _ROUNDING * canary:
    return
  influence = largest / canary if share is None else share
  epsilon = float(tradeoff.epsilon_gdp(influence / z, delta))
  values = {
    'weighted_by': weighted_by,
    'largest': float(largest),
    'canary': float(canary),
    'epsilon': epsilon,
    'claimed': float(tradeoff.epsilon_gdp(1 / z, delta)),
    'delta': delta,
    'option': option,
  }
  note = Fact('larger_clients', values)
  earlier = [x for x in auditor.notes if x.key == note.key]
  if not earlier:
    warnings.warn(f'{checks.describe_check(note)}.', stacklevel=3)
  if all(float(str(x.values['epsilon'])) < epsilon for x in earlier):
    auditor.add_note(note)


def _is_equal(known: Any, value: Any) -> bool:
  if all(isinstance(x, int | float) for x in (known, value)):
    return math.isclose(known, value, rel_tol=1e-6)
  if isinstance(value, np.ndarray):
    return np.shape(known) == value.shape and np.allclose(
      known, value, atol=1e-5
    )
  return known is value or known == value


def _show(value: Any) -> str:
  is_matrix = isinstance(value, np.ndarray)
  return f'a matrix {list(value.shape)}' if is_matrix else repr(value)
