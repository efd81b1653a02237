"""The settings of an audit, gathered from a framework and from its caller."""

from collections.abc import Mapping
import dataclasses
import logging
import math
from typing import Any

import numpy as np

from epe_jax.auditor.audit_config import AuditConfig
from epe_jax.auditor.auditor import Auditor
from epe_jax.auditor.host_canaries import structures
from epe_jax.fact import Fact
from epe_jax.report import checks

_CURES = {
  'dim': 'dim=..., the floating-point numbers that a round releases',
  'rounds': 'rounds=..., as many as training will make',
  'clip_norm': 'clip_norm=..., the norm to which updates are clipped',
  'noise_multiplier': 'noise_multiplier=..., or None if no noise is claimed',
  'delta': 'delta=..., the δ of the claim',
}
"""The settings that have no default, and what to give."""

_UNKNOWN: dict[str, Any] = {'dim': 2, 'rounds': 2**62}
"""What a setting is taken for until it is known: any other setting goes with it."""

_FIELDS = [field.name for field in dataclasses.fields(AuditConfig)]


class Settings:
  """The settings of one audit; some are known only when training starts.

  A framework adds what it knows by `read`, and the auditor is made by `make` when
  nothing is missing. A setting that was given and differs from what a framework says
  is an error, except for noise_multiplier=None, which claims nothing.
  """

  def __init__(
    self,
    given: Mapping[str, Any],
    *,
    auditor: Auditor | None = None,
    seed: int | None = None,
    steps: bool = False,
  ):
    """Takes the settings that a caller gave.

    Args:
      given: fields of `AuditConfig`, without those that the framework knows.
      auditor: to continue with, in place of settings: one that was loaded.
      seed: of the canaries, for simulations; None for secret ones.
      steps: whether the rounds of this framework are given as steps.

    Raises:
      TypeError: a setting is unknown.
      ValueError: there is an auditor besides settings.
    """
    given = dict(given)
    self._names = {'rounds': 'steps'} if steps else {}
    if steps:
      if 'rounds' in given:
        raise TypeError('rounds of an optimizer are its steps; give steps.')
      if (number := given.pop('steps', None)) is not None:
        given['rounds'] = number
    if unknown := sorted(given.keys() - set(_FIELDS)):
      raise TypeError(
        f'{unknown[0]!r} is not a setting of an audit; give some of '
        f'{", ".join(self._names.get(name, name) for name in _FIELDS)}.'
      )
    if auditor is not None and (given or seed is not None):
      settings = [*sorted(given), *['seed'] * (seed is not None)]
      raise ValueError(
        f'an auditor is given besides {", ".join(settings)}, which it has; give '
        'one of the two.'
      )
    self._given, self._auditor, self._seed = given, auditor, seed
    self._read: dict[str, Any] = {}
    self._facts: dict[str, dict[str, Any]] = {}

  @property
  def auditor(self) -> Auditor:
    """The auditor.

    Raises:
      ValueError: it is not made yet.
    """
    if self._auditor is None:
      raise ValueError(
        'the auditor is made when training starts, from the size of the model; '
        'ask for it afterwards.'
      )
    return self._auditor

  def find(self, name: str, default: Any = None) -> Any:
    """Returns a setting, or the default while it is not known."""
    return self._known.get(name, default)

  def require(self, *, later: tuple[str, ...] = ()) -> None:
    """Checks that nothing is missing, and that what is known is in range.

    Args:
      later: settings that are known only when training starts, of `_UNKNOWN`.

    Raises:
      ValueError: a setting is not known, or out of range.
    """
    for name in _CURES:
      if name not in self._known and name not in later:
        cure = _CURES[name]
        if shown := self._names.get(name):
          cure = f'{shown}=..., as many as training will make'
        raise ValueError(
          f'{self._names.get(name, name)} of the audit is not known; give {cure}.'
        )
    AuditConfig(**{name: _UNKNOWN[name] for name in later} | self._known)

  def check(self, source: str, **values: Any) -> None:
    """Checks what a framework says against what is known.

    Args:
      source: what says it, such as 'strategy'.
      **values: settings by name.

    Raises:
      ValueError: one is known to be another.
    """
    for name, value in values.items():
      known = self._known.get(name, value)
      # A strategy of None is one as well: of independent noise.
      claims_nothing = known is None and name != 'strategy'
      if claims_nothing or _is_equal(known, value):
        continue
      name, shown = self._names.get(name, name), _show(value)
      cure = f'set {name}={shown}, or leave it out'
      if name == 'noise_multiplier':
        cure += ', or set None if nothing is claimed'
      raise ValueError(
        f'{name}={_show(known)}, but that of the {source} is {shown}; {cure}.'
      )

  def read(self, source: str, **values: Any) -> None:
    """Adds what a framework says.

    Args:
      source: what says it.
      **values: settings by name.

    Raises:
      ValueError: a setting is known to be another.
    """
    self.check(source, **values)
    values = {n: x for n, x in values.items() if n not in self._known}
    if values:
      self._read |= values
      # Nobody reads a matrix in a note.
      values.pop('strategy', None)
      self._facts.setdefault(source, {}).update(values)

  def read_strategy(
    self,
    source: str,
    strategy: np.ndarray,
    *,
    min_separation: int | None = None,
  ) -> None:
    """Adds the matrix by which noise is correlated, and the rounds that it allows.

    Canaries take part as often as these allow, unless `repetitions` are known.

    Args:
      source: what has the matrix.
      strategy: C, [T, T].
      min_separation: rounds from one of a participant to its next; None if unknown.

    Raises:
      ValueError: a setting is known to be another.
    """
    self.read(source, strategy=strategy)
    if min_separation is not None and self.find('repetitions') is None:
      self.read(
        source,
        repetitions=-(-len(strategy) // min_separation),
        min_separation=min_separation,
      )

  def read_dim(self, source: str, sizes: Mapping[str, int]) -> None:
    """Adds the size of what a round releases.

    Args:
      source: what has these arrays.
      sizes: the size of each floating-point array, by name.

    Raises:
      ValueError: dim is known to be another.
    """
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
    if self._auditor is None:
      self.require()
      config = AuditConfig(**self._known)
      self._auditor = Auditor(config, seed=self._seed)
      for source, values in self._facts.items():
        fact = Fact('settings_read', {'source': source, **values})
        self._auditor.add_note(fact)
        logging.getLogger(__name__).info(checks.describe_check(fact))
    return self._auditor

  def resume(self, auditor: Auditor) -> None:
    """Replaces the auditor by one that was loaded."""
    self._auditor = auditor

  @property
  def _known(self) -> dict[str, Any]:
    if self._auditor is not None:
      return dataclasses.asdict(self._auditor.config)
    return self._read | self._given


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
