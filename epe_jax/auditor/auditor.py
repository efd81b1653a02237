"""`Auditor` audits any training loop by two calls a round, on the host, without JAX.

`injection(t)` returns what the canaries of round t add to the sum of updates, and
`observe(t, release)` scores all canaries by what the round released. Any framework
will do: a release is arrays in any structure. The state is a few numbers for each
canary and round; canaries are generated again whenever they are needed.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import os
import pathlib
import secrets
from typing import Any, NamedTuple

from jaxtyping import Bool, Float, Int
import numpy as np

from epe_jax import accounting, streams
from epe_jax.audit import audit_step, evaluation, results
from epe_jax.audit.record import Record, make_record
from epe_jax.auditor import audit_config, auditor_file, claim_check
from epe_jax.auditor.audit_config import AuditConfig
from epe_jax.auditor.host_canaries import pieces, structures
from epe_jax.auditor.host_canaries.registry import FAMILIES
from epe_jax.canaries.threefry import Root
from epe_jax.epsilon import checks
from epe_jax.fact import Fact, Facts
from epe_jax.report import loop_report
from epe_jax.training.round_scalars import CLIP_NORMS, RoundScalars
from epe_jax.watch import sequential


class CanarySum(NamedTuple):
  """What the canaries add to the sum of a round.

  Attributes:
    update: S Σ_j c_j in the requested structure; zeros in a round without canaries.
    count: the number of canaries, to be added to the number of clients.
    ids: the ids of the canaries, in increasing order.
  """

  update: Any
  count: int
  ids: Int[np.ndarray, ' m']


class Auditor:
  """Audits a training loop of any framework.

  Of what its methods take,

  - t is the round, 0 <= t < rounds;
  - like is the model, or anything of its structure: NumPy, PyTorch or JAX arrays in
    lists, tuples and mappings; None for a float32 vector [d];
  - clip_norm is S of the round, if it adapts; None for that of the config;
  - delta is in (0, 1); None for that of the config.

  References:
    One-shot Empirical Privacy Estimation, Algorithms 2 and 3.

  >>> rng = np.random.default_rng(0)
  >>> dim, clip_norm, noise_multiplier = 10_000, 1.0, 0.5
  >>> auditor = Auditor(
  ...   AuditConfig(
  ...     dim=dim, rounds=20, clip_norm=1.0, noise_multiplier=0.5, delta=1e-5
  ...   )
  ... )
  >>> for t in range(20):
  ...   injection = auditor.injection(t)
  ...   count = 10 + injection.count
  ...   clipped = np.zeros((10, dim))  # Of ten clients, in their place.
  ...   noise = noise_multiplier * clip_norm * rng.normal(size=dim)
  ...   release = (clipped.sum(axis=0) + injection.update + noise) / count
  ...   auditor.observe(t, release, divisor=count)
  >>> auditor.record().trace.shape
  (20, 2000)
  """

  def __init__(self, config: AuditConfig, *, seed: int | None = None):
    """Draws the canaries and their rounds.

    Args:
      config: sizes, claims and design.
      seed: >= 0, for simulations; None to draw from the operating system, because
        anyone who knows the canaries can remove them.

    Raises:
      ValueError: the seed is not an integer >= 0, or config not an `AuditConfig`.
    """
    if not isinstance(config, AuditConfig):
      raise ValueError(f'config={config!r}; give an AuditConfig.')
    seed = secrets.randbits(256) if seed is None else seed
    key = streams.sequence(seed, 'canary key').generate_state(2, np.uint32)
    assigned, planned = audit_config.draw_rounds(config, seed)
    unknown = [np.full(config.rounds, np.nan) for _ in RoundScalars._fields]
    self._set_state(
      auditor_file.AuditorState(
        config=config,
        key=key,
        assigned=assigned,
        planned=planned,
        included=np.zeros_like(planned),
        clip_norms=np.full(config.rounds, np.nan),
        cosines={},
        rounds=RoundScalars(*unknown),
        notes=(),
      )
    )

  def _set_state(self, state: auditor_file.AuditorState) -> None:
    self._state, config = state, state.config
    self._canaries = FAMILIES[config.family](
      self.canary_key, config.num_canaries, config.dim
    )
    # Shapes of the structure in which it was requested.
    self._shapes: list[tuple[int, ...]] | None = None

  @property
  def config(self) -> AuditConfig:
    """Sizes, claims and design."""
    return self._state.config

  @property
  def canary_key(self) -> Root:
    """The two words of the canary key: a secret, except in simulations."""
    return Root(*self._state.key)

  @property
  def planned(self) -> Bool[np.ndarray, 'T k']:
    """Row t holds the canaries that will take part in round t."""
    return self._state.planned.copy()

  @property
  def num_rounds_observed(self) -> int:
    """The number of rounds observed so far."""
    return int(np.count_nonzero(self._state.observed_rounds))

  @property
  def notes(self) -> Facts:
    """What to know of this audit besides its scores: part of its report."""
    return self._state.notes

  def add_note(self, note: Fact) -> None:
    """Adds a fact to the report, in place of an earlier one of its key and source.

    Args:
      note: a fact, for which `report.checks` has a sentence.
    """
    source = note.values.get('source')
    kept = (
      x
      for x in self.notes
      if (x.key, x.values.get('source')) != (note.key, source)
    )
    self._state = self._state._replace(notes=(*kept, note))

  def drop_sampling(self) -> None:
    """Leaves sampling to the accountant of a loop, whose rate is not the one given."""
    config = dataclasses.replace(self.config, sampling_probability=None)
    self._state = self._state._replace(config=config)

  def canary_ids(self, t: int) -> Int[np.ndarray, ' m']:
    """Returns the ids of the canaries of round t, in increasing order."""
    self._check_round(t)
    return np.flatnonzero(self._state.planned[t])

  def canary_update(
    self, canary: int, *, like: Any = None, clip_norm: float | None = None
  ) -> Any:
    """Returns S c_j, the update that a canary client sends.

    This is for frameworks in which canaries replace designated clients, and for
    secure aggregation, in which nobody adds to the sum: give each canary client its
    own updates, and neither the key nor those of others. Tell `observe` by `included`
    which of them arrived, and the clip norm if it adapts. Where clients send updates
    times their weights w, give w S, to `observe` too, and as the divisor the sum of
    weights.

    Args:
      canary: j, one of `canary_ids`.
    """
    if not 0 <= canary < self.config.num_canaries:
      raise ValueError(
        f'canary={canary} is none of the {self.config.num_canaries}, from 0.'
      )
    scale = self._choose_clip_norm(clip_norm)
    return self._superpose(np.array([canary]), scale, like)

  def injection(
    self, t: int, *, like: Any = None, clip_norm: float | None = None
  ) -> CanarySum:
    """Returns what the canaries of round t add to the sum of clipped updates.

    Every call returns the same, so a failed round may be repeated.

    Raises:
      ValueError: t is out of range, or `like` has not d numbers.
    """
    ids, scale = self.canary_ids(t), self._choose_clip_norm(clip_norm)
    update = self._superpose(ids, scale, like)
    # Set last, so that a failed call changes nothing.
    self._state.clip_norms[t] = scale
    return CanarySum(update, len(ids), ids)

  def add_injection(
    self, t: int, out: Any, *, clip_norm: float | None = None
  ) -> int:
    """Adds the canaries of round t to a sum of updates, in place.

    Unlike `injection`, it allocates no d numbers.

    Args:
      t: the round.
      out: contiguous arrays in host memory, of NumPy or of PyTorch on the CPU.

    Returns:
      m, the number of canaries.

    Raises:
      ValueError: t is out of range, or `out` has not d numbers or cannot be
        written.
    """
    vector = structures.view_writable(self._flatten(out, 'out'))
    ids, scale = self.canary_ids(t), self._choose_clip_norm(clip_norm)
    self._add(ids, scale, vector)
    self._state.clip_norms[t] = scale
    return len(ids)

  def observe(
    self,
    t: int,
    release: Any,
    *,
    divisor: float,
    included: Any = None,
    others: Any = None,
    clip_norm: float | None = None,
    noise_std: float | None = None,
  ) -> None:
    """Scores all canaries by what round t released.

    A round that is never observed counts as never made: its canaries did not take
    part, and with coins, those without another round are left out.

    Args:
      t: the round; each is observed once, in any order.
      release: the noisy mean or sum of updates, or with view='server_update' the
        change of the model; in a structure as the injection had.
      divisor: what the sum of updates was divided by: the number of clients with
        the canaries for a mean, 1 for a sum.
      included: ids [m] of the canaries that took part; None for the injected ones.
        Give it if clients dropped out or were replaced.
      others: the part of all real clients in the release, without canaries and
        noise, if known: for the attacker who knows all other updates.
      clip_norm: S of the round, if it adapts and nothing was injected.
      noise_std: standard deviation of the noise that is claimed to be in the release;
        None for z S / divisor.

    Raises:
      ValueError: an argument is out of range, the round was observed before, its
        canaries were never injected, or a number is not finite.
    """
    ids, scale = self._find_included(t, included, clip_norm)
    if not 0 < divisor < np.inf:
      raise ValueError(f'divisor={divisor}; give a number > 0.')
    view, noise = self.config.view, self.config.noise_multiplier
    vector = self._view(release, 'release')
    vectors = {view: vector}
    if others is not None:
      if view != 'aggregate' or noise is None:
        raise ValueError(
          "others is for view='aggregate' with a noise_multiplier, but view="
          f'{view!r}, noise_multiplier={noise}; set both, or leave others out.'
        )
      residual = np.concatenate(vector) - np.concatenate(
        self._view(others, 'others')
      )
      self._add(ids, -scale / divisor, [residual])
      vectors['residual'] = [residual]
    cosines, measures = self._score(vectors, f'what round {t} released')
    self.add_scores(
      t,
      cosines,
      {name: x.norm for name, x in measures.items()},
      d_eff=measures[view].effective_dimension,
      divisor=divisor,
      included=ids,
      clip_norm=scale,
      noise_std=noise_std,
    )

  def observe_final(self, model: Any, *, initial: Any = None) -> None:
    """Scores all canaries by the final model.

    Args:
      model: θ_T.
      initial: θ_0, for the attacker who knows it too; None if no attacker does.

    Raises:
      ValueError: a model has not d numbers, or some are not finite.
    """
    final = self._view(model, 'model')
    vectors = {'final': final}
    if initial is not None:
      start = self._view(initial, 'initial')
      vectors['change'] = [np.concatenate(final) - np.concatenate(start)]
    cosines, _ = self._score(vectors, 'the final model')
    # It may be of an earlier call with another model.
    self._state.cosines.pop('change', None)
    self._state.cosines.update(cosines)

  def add_scores(
    self,
    t: int,
    cosines: Mapping[str, Float[np.ndarray, ' k']],
    norms: Mapping[str, float],
    *,
    d_eff: float,
    divisor: float,
    included: Int[np.ndarray, ' m'],
    clip_norm: float | None = None,
    noise_std: float | None = None,
  ) -> None:
    """Adds the scores of a round that were computed elsewhere, as in a jitted step.

    Args:
      t: the round.
      cosines: cosines of all canaries, by the names of `Record.cosines`: what
        config.view says, and 'residual' in all rounds or in none.
      norms: norms of these vectors, by the same names.
      d_eff: the effective dimension of what the round released.
      divisor: m, by which the sum of updates was divided.
      included: the canaries that took part.
      clip_norm: S of the round; None for that of the config.
      noise_std: as for `observe`.

    Raises:
      ValueError: t is out of range, or was observed before.
    """
    self._check_round(t)
    state = self._state
    if state.observed_rounds[t]:
      raise ValueError(
        f'round {t} was observed already; give each round once. If training went '
        'on from a checkpoint, load the auditor that was saved with it.'
      )
    earlier = state.cosines.keys() - {'final', 'change'}
    if earlier and earlier != cosines.keys():
      raise ValueError(
        f'round {t} has {sorted(cosines)}, and rounds before it {sorted(earlier)}; '
        'give the same in all rounds (others is in all of them or in none).'
      )
    for name, x in cosines.items():
      shape = self.config.rounds, self._canaries.num
      state.cosines.setdefault(name, np.zeros(shape, np.float32))[t] = x
    config, z = self.config, self.config.noise_multiplier
    scale = config.clip_norm if clip_norm is None else clip_norm
    if noise_std is None or z is None:
      noise_std = np.nan if z is None else z * (scale / divisor)
    scalars = RoundScalars(
      clip_norm=scale,
      canary_norm=scale / divisor,
      noise_std=noise_std,
      num_clients=np.nan,
      num_canaries=len(included),
      sum_norm=np.nan,
      aggregate_norm=norms[config.view],
      residual_norm=norms.get('residual', np.nan),
      effective_dimension=d_eff,
    )
    for column, x in zip(state.rounds, scalars):
      column[t] = x
    state.included[t, included] = True

  def record(self) -> Record:
    """Returns the record of the rounds observed so far.

    Raises:
      ValueError: nothing was observed, or none of the rounds had a coin.
    """
    state, config = self._state, self.config
    made = state.observed_rounds
    if not made.any():
      raise ValueError(
        'no round was observed yet; call `observe` in each, or step what the adapter '
        'was given.'
      )
    included = state.included[made]
    as_planned = np.array_equal(included, state.planned[made])
    assigned, counts = included, np.ones(config.num_canaries, bool)
    if config.design == 'coin_flip':
      # A canary whose rounds were never made is not unobserved.
      assigned = state.assigned[made]
      counts = assigned.any(axis=0)
    if not counts.any():
      raise ValueError(
        f'none of the {config.num_canaries} canaries was assigned one of the '
        f'{np.count_nonzero(made)} rounds observed so far; observe more of them.'
      )
    return make_record(
      {
        n: (x if x.ndim == 1 else x[made])[..., counts]
        for n, x in state.cosines.items()
      },
      RoundScalars(*(x[made] for x in state.rounds)),
      included=included[:, counts],
      assigned=assigned[:, counts],
      design=config.design,
      dim=config.dim,
      delta=config.delta,
      momentum=config.server_momentum,
      noise_multiplier=config.noise_multiplier,
      # Periods are no longer equal when rounds of several were not made.
      periods=config.repetitions
      if as_planned
      and config.min_separation is None
      and (made.all() or config.repetitions == 1)
      else None,
      strategy=None
      if config.strategy is None
      else accounting.whiten(np.linalg.inv(config.strategy)[made]),
      planned=int(np.count_nonzero(state.planned[made])),
    )

  def evaluate(
    self, *, delta: float | None = None, simultaneous: bool = False
  ) -> results.Audit:
    """Returns what `audit.evaluate` makes of the record.

    Args:
      simultaneous: lower bounds hold all together at 95 %, not each by itself.
    """
    return evaluation.evaluate(
      self.record(), delta=delta, simultaneous=simultaneous
    )

  def rejects(self, epsilon: float, *, significance: float = 0.05) -> bool:
    """Whether the rounds so far reject a claimed ε, so that a loop may stop.

    It may be asked after every round: of Gaussian mechanisms with this ε at most
    `significance` are ever rejected (`watch.judge_claim`).

    Args:
      epsilon: claimed at the δ of the config, of one who takes part once.
      significance: in (0, 1).

    Raises:
      ValueError: an argument is out of range; nothing was observed; or canaries take
        part in several rounds, or their noise is correlated: each look would then
        score them anew.
    """
    if self.config.repetitions > 1 or self.config.strategy is not None:
      raise ValueError(
        f'repetitions={self.config.repetitions}, strategy='
        f'{"None" if self.config.strategy is None else "a matrix"}, but claims are '
        'tested while a loop runs where each canary ends with one round; set '
        'repetitions=1 and strategy=None, or use watch.judge_claim after the last '
        'round.'
      )
    record = self.record()
    claim = sequential.judge_claim(
      record, epsilon, rounds=record.num_rounds, significance=significance
    )
    return claim is not None and claim.rejected_after is not None

  def report(self, *, delta: float | None = None) -> str:
    """Formats what was estimated so far: one line for each attacker, and notes."""
    return format_report(self, self.record(), self.evaluate(delta=delta))

  def save(self, path: str | os.PathLike) -> None:
    """Writes the auditor atomically, in a folder that is made; `load` resumes from it.

    The file holds the canary key, so it must be kept secret.
    """
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    auditor_file.write_state(path, self._state)

  @classmethod
  def load(cls, path: str | os.PathLike) -> 'Auditor':
    """Reads an auditor that `save` wrote.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is damaged or of another version.
    """
    auditor = cls.__new__(cls)
    auditor._set_state(auditor_file.read_state(path))
    return auditor

  def _choose_clip_norm(self, clip_norm: float | None) -> float:
    if clip_norm is None:
      return self.config.clip_norm
    return checks.check_number('clip_norm', clip_norm, CLIP_NORMS)

  def _find_included(
    self, t: int, included: Any, clip_norm: float | None
  ) -> tuple[Int[np.ndarray, ' m'], float]:
    """Returns the canaries that took part in a round, and its clip norm."""
    planned, injected = self.canary_ids(t), float(self._state.clip_norms[t])
    is_requested = not np.isnan(injected)
    if included is None and not is_requested and len(planned):
      raise ValueError(
        f'round {t} has {len(planned)} canaries, but its injection was never asked '
        'for; call `injection`, or say which canaries took part with included.'
      )
    if clip_norm is not None or not is_requested:
      injected = self._choose_clip_norm(clip_norm)
    ids = planned if included is None else _check_ids(included)
    if len(stray := np.setdiff1d(ids, planned)):
      raise ValueError(
        f'included has {stray.tolist()}, which are not among the canaries of round '
        f'{t}, {planned.tolist()}; give those of them that took part.'
      )
    if self.config.design == 'coin_flip' and not np.array_equal(ids, planned):
      raise ValueError(
        f'included={ids.tolist()} in round {t}, but coins chose '
        f"{planned.tolist()}; where clients may drop out set design='fixed'."
      )
    return ids, injected

  def _score(
    self, vectors: Mapping[str, Sequence[np.ndarray]], where: str
  ) -> tuple[dict[str, Float[np.ndarray, ' k']], dict[str, pieces.Measure]]:
    """Cosines of all canaries with each vector, 0 where it is 0; and its measures."""
    measures = {name: pieces.measure(x) for name, x in vectors.items()}
    for name, x in measures.items():
      if not np.isfinite(x.norm):
        raise ValueError(
          f'{where} ({name}) has numbers that are not finite: training has '
          'diverged, or a client sent such numbers. Lower the learning rate, or '
          'leave that client out.'
        )
    products = self._canaries.project(list(vectors.values()))
    cosines = {
      name: audit_step.divide_by_norm(row, measures[name].norm).astype(
        np.float32
      )
      for name, row in zip(vectors, products)
    }
    return cosines, measures

  def _superpose(
    self, ids: Int[np.ndarray, ' m'], scale: float, like: Any
  ) -> Any:
    """Returns S Σ_j c_j in the structure of a model."""
    if like is None:
      update = np.zeros(self.config.dim, np.float32)
      self._add(ids, scale, [update])
      return update
    arrays = self._flatten(like, 'like').values()
    out = [np.zeros(array.size, np.float32) for array in arrays]
    self._add(ids, scale, out)
    update = structures.unflatten(out, like)
    self._shapes = [array.shape for array in arrays]
    return update

  def _add(
    self, ids: Int[np.ndarray, ' m'], scale: float, out: Sequence[np.ndarray]
  ) -> None:
    if len(ids):
      self._canaries.add(ids, np.full(len(ids), scale), out)

  def _view(self, model: Any, name: str) -> Sequence[np.ndarray]:
    """Returns the vector of a model in pieces, after checks of its shapes."""
    arrays = self._flatten(model, name).values()
    shapes = [x.shape for x in arrays]
    is_flat = len(shapes) == 1 and len(shapes[0]) == 1
    if self._shapes is not None and not is_flat and shapes != self._shapes:
      raise ValueError(
        f'{name} has the shapes {shapes}, but the injection was made like '
        f'{self._shapes}; give both in one structure.'
      )
    return [x.reshape(-1) for x in arrays]

  def _flatten(self, model: Any, name: str) -> dict[str, np.ndarray]:
    arrays = structures.flatten(model, name)
    sizes = {key: array.size for key, array in arrays.items()}
    if sum(sizes.values()) != (dim := self.config.dim):
      raise ValueError(structures.describe_difference(name, sizes, dim))
    return arrays

  def _check_round(self, t: int) -> None:
    if not isinstance(t, int | np.integer) or not 0 <= t < self.config.rounds:
      raise ValueError(
        f'round {t!r} is none of the {self.config.rounds} rounds, from 0, that the '
        'audit was made for; give as many rounds, or steps, as training will make.'
      )


def format_report(
  auditor: Auditor, record: Record, audit: results.Audit
) -> str:
  """Formats what an auditor reports, of its record and what was estimated from it."""
  config = auditor.config
  return loop_report.format_loop(
    record,
    audit,
    rounds=config.rounds,
    num_canaries=config.num_canaries,
    family=config.family,
    failed=claim_check.check_claim(record, audit),
    notes=(
      *auditor.notes,
      *claim_check.compare_with_sampling(
        config, auditor.num_rounds_observed, audit.attacks[0].first.delta
      ),
    ),
  )


def _check_ids(included: Any) -> Int[np.ndarray, ' m']:
  """Returns the ids of canaries, sorted."""
  ids = np.asarray(included)
  if not ids.size and ids.ndim == 1:
    return ids.astype(int)
  is_integer = ids.ndim == 1 and np.issubdtype(ids.dtype, np.integer)
  if not is_integer or len(np.unique(ids)) < len(ids):
    raise ValueError(
      f'included={included!r}; give the numbers of canaries, each once, such as '
      'some of `canary_ids(t)`.'
    )
  return np.sort(ids.astype(int))
