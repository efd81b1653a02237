"""Whether what an auditor saw is what the claim of its config says, as facts.

Three things follow from a claim and are measured in every round: how large the noise
is, how much of a canary arrives in a release, and that no attacker finds more than
the claim allows. Each check tells by how much it fails.
"""

import numpy as np

from epe_jax import accounting, epsilon
from epe_jax.audit import attackers, noise_scale
from epe_jax.audit.record import Record
from epe_jax.audit.results import AttackResult, Audit
from epe_jax.auditor.audit_config import AuditConfig
from epe_jax.fact import Fact, Facts

_STANDARD_ERRORS = 4.0
"""Differences beyond this are named: of right audits, fewer than 1 in 10,000."""

_ROUNDING = 1e-3
_Z_90 = 1.645
_ROOM = 0.1
"""The largest share of the noise's variance that other canaries may make up."""


def check_claim(record: Record, audit: Audit) -> Facts:
  """What contradicts the claim; nothing if nothing does.

  Args:
    record: of an auditor, with the noise that it was told of.
    audit: what was estimated from it.
  """
  own = audit.find(attackers.OWN)
  assert record.rounds is not None, 'the record of a whole run'
  failed = None
  # Noise that is measured is named by the attacker whose scores are in its units.
  if not any(attack.contradictions for attack in audit.attacks):
    # If canaries are as claimed, a higher ε is the noise's.
    failed = (
      _check_release_norm(record) or _check_canaries(own) or _check_excess(own)
    )
  room = _check_room(record)
  return tuple(x for x in (failed, room) if x is not None)


def compare_with_sampling(
  config: AuditConfig, rounds: int, delta: float
) -> Facts:
  """The analytic ε of a canary, and of one who is drawn, if sampling is accounted for.

  Args:
    config: of the auditor.
    rounds: that were observed, >= 1.
    delta: δ.
  """
  noise, probability = config.noise_multiplier, config.sampling_probability
  if not noise or probability is None:
    return ()
  certain = accounting.epsilon_of_releases(
    noise, delta=delta, participations=config.repetitions
  )
  try:
    sampled = accounting.epsilon_of_poisson(
      noise, delta=delta, probability=probability, rounds=rounds
    )
  except ValueError:
    return ()  # Its loss takes more numbers than have room.
  values = {
    'certain': certain.epsilon,
    'sampled': sampled.epsilon,
    'probability': probability,
    'repetitions': config.repetitions,
    'rounds': rounds,
  }
  return (Fact('sampling_accounted', values),)


def _check_release_norm(record: Record) -> Fact | None:
  """Whether releases are shorter than the noise that is claimed to be in them."""
  std = noise_scale.find_claimed_std(record)
  # A server's update has other units than the noise.
  if record.view != 'aggregate' or std is None or record.rounds is None:
    return None
  norm = np.asarray(record.rounds.aggregate_norm, np.float64)
  is_known = np.isfinite(norm) & (std > 0)
  if not is_known.any():
    return None
  claimed = std[is_known] * np.sqrt(record.dim)
  # Of a median over rounds; each norm is that of d normals.
  share = is_known.sum() / record.num_rounds
  num = 2 * record.dim * share * noise_scale.count_independent(record)
  error = np.sqrt(np.pi / 2 / num)
  ratio = float(np.median(norm[is_known] / claimed))
  if 1 - ratio < max(_STANDARD_ERRORS * float(error), _ROUNDING):
    return None
  return Fact('release_shorter_than_noise', {'ratio': ratio})


def _check_canaries(own: AttackResult | None) -> Fact | None:
  """Compares the scores of canaries with the norms of what they are in."""
  if own is None or own.agreement is None:
    return None
  errors = own.agreement.standard_errors
  expected = _compute_mu(own.agreement.epsilon, own.first.delta)
  if abs(errors) < _STANDARD_ERRORS or not 0 < expected < np.inf:
    return None
  share = _compute_mu(float(own.first.epsilon), own.first.delta) / expected
  values = {'standard_errors': errors}
  # An ε has no sign, and scores that are reversed have another.
  if own.is_calibrated:
    values['share'] = share
  return Fact('canaries_not_as_predicted', values)


def _check_excess(own: AttackResult | None) -> Fact | None:
  """Compares what the attacker of a canary's own round finds with the claim."""
  if own is None or own.analytic is None or own.first.interval is None:
    return None
  low, high = own.first.interval
  error = (high - low) / (2 * _Z_90)
  allowed = own.analytic.epsilon
  if not own.first.epsilon - _STANDARD_ERRORS * error > allowed:
    return None
  delta = own.first.delta
  share = _compute_mu(allowed, delta) / _compute_mu(
    float(own.first.epsilon), delta
  )
  values = {'epsilon': float(own.first.epsilon), 'claimed': float(allowed)}
  return Fact('epsilon_above_claim', {**values, 'noise_share': share})


def _compute_mu(at_delta: float, delta: float) -> float:
  return float(epsilon.mu_of_epsilon(float(at_delta), delta))


def _check_room(record: Record) -> Fact | None:
  """Whether the canaries of a round hide one another."""
  rounds, dim = record.rounds, record.dim
  assert rounds is not None, 'the record of a whole run'
  with np.errstate(divide='ignore', invalid='ignore'):
    among = rounds.num_canaries / dim
    std = noise_scale.find_claimed_std(record)
    share = among * (rounds.canary_norm / std) ** 2
  share = share[np.isfinite(share)]
  if not share.size or np.max(share) < _ROOM:
    return None
  values = {'num': int(np.max(rounds.num_canaries)), 'dim': dim}
  return Fact('canaries_hide_one_another', values)
