"""audit_card.json: what an audit found, for programs and registries.

A card has a versioned schema, audit_card.schema.json beside this module, and no secret:
it is made from what may be published of a run.
"""

from collections.abc import Mapping, Sequence
import functools
import hashlib
import importlib.resources
import json
import math
import os
import pathlib
from typing import Any, TypeAlias

import jsonschema
import jsonschema.exceptions
import numpy as np

from epe_jax import io
from epe_jax.accounting import Analytic
from epe_jax.audit import clients, release
from epe_jax.audit.evaluation import Attack
from epe_jax.audit.headline import Headline, find_headline, format_headline
from epe_jax.audit.record import Record
from epe_jax.epsilon import tradeoff_curves
from epe_jax.epsilon.types import Estimate
from epe_jax.experiment import workdirs
from epe_jax.experiment.run_result import RunResult
from epe_jax.report import facts, sentences
from epe_jax.text import audit_notes, cells, methods, tables

Card: TypeAlias = dict[str, Any]
"""A card, as `audit_card.schema.json` describes it."""

SCHEMA_VERSION = 1
"""The version of the cards that are written and read."""

FILE = 'audit_card.json'
"""The name of a card in a workdir."""

_COVERS = (
  'name, dtype, shape and bytes of each array that attackers saw and that may be '
  'published: the cosines of canaries with models and releases, and the rounds '
  'canaries were assigned to and took part in'
)


def make_card(result: RunResult, *, record: Record | None = None) -> Card:
  """Makes the card of a finished run.

  Args:
    result: what result.json holds; of an audited run.
    record: what attackers saw, for its hash; None leaves the hash out.

  Returns:
    A card without numbers that are not finite, which are spelled as in JSON.

  Raises:
    ValueError: the run was not audited.
  """
  if not result.is_audited:
    raise ValueError(
      f'{result.task} was not audited: no canaries took part, so there is no card '
      'to make. Train with canaries.observed of 2 or more.'
    )
  headline = find_headline(result.audit)
  card = {
    'schema_version': SCHEMA_VERSION,
    'kind': 'empirical privacy audit',
    'task': result.task,
    'data': io.hide_paths(result.data),
    'guarantee': '(ε, δ)-differential privacy, measured from below',
    'privacy_unit': 'client',
    'neighbours': 'one client takes part in one run and not in the other',
    'trust_model': 'central: the server sees updates before noise is added',
    'delta': result.delta,
    'headline': headline and _describe_headline(headline),
    'attackers': [_describe_attack(attack) for attack in result.audit.attacks],
    'analytic': {
      analytic.who: {'epsilon': analytic.epsilon, 'assumes': analytic.assumes}
      for analytic in facts.list_analytic_epsilons(result)
    },
    'amplification': result.amplification,
    'mechanism': {
      'rounds': result.rounds,
      'parameters': result.dim,
      'noise_multiplier': result.noise_multiplier,
      'noise': result.noise,
    },
    'canaries': {
      'took_part': result.num_observed,
      'did_not': result.num_unobserved,
      'repetitions': result.repetitions,
      'included': 'by independent coins'
      if facts.is_coin_flip(result)
      else 'by design',
      'family': (result.config.get('canaries') or {}).get('family'),
    },
    'client': _describe_client(result),
    'utility': {
      'test_accuracy': result.accuracy,
      'majority_class': result.baseline_accuracy,
      'test_loss': result.loss,
    },
    'software': dict(result.versions),
    'record': record and _describe_record(record),
    'warnings': audit_notes.list_warnings(result.audit),
    'notes': audit_notes.list_notes(result.audit),
    'assumptions': sentences.list_assumptions(result)
    + sentences.describe_hidden_state(result),
    'not_measured': sentences.list_not_measured(result),
  }
  return io.spell_non_finite(card)


def write_card(path: str | os.PathLike[str], card: Card) -> None:
  """Writes a card.

  Args:
    path: the file.
    card: as `make_card` makes it.

  Raises:
    ValueError: it is no card; the error names the field.
  """
  _validate(path, card)
  io.write_json(path, card)


def load_card(path: str | os.PathLike[str]) -> Card:
  """Reads a card and checks it against the schema.

  Args:
    path: the file, or the workdir of a run that has one.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is no card, or of another version; the error names the field.
  """
  path = pathlib.Path(path)
  if path.is_dir():
    folder, path = path, path / FILE
    if not path.is_file():
      workdirs.check_ended(folder)
  if not path.is_file():
    raise FileNotFoundError(
      f'{path} does not exist. Give an {FILE} or the workdir of an audited run; '
      '`epe-jax report WORKDIR` writes one.'
    )
  card = io.join_lines(io.read_json(path))
  _validate(path, card)
  return card


def format_cards(cards: Mapping[str, Card] | Sequence[Card]) -> str:
  """Cards side by side, a column each.

  Args:
    cards: as `load_card` gives them, with the names of their columns; without
      names they are numbered by task.

  Returns:
    Text without a final newline.

  Raises:
    ValueError: there is no card.
  """
  if not cards:
    raise ValueError('no card is given; give one or more.')
  if not isinstance(cards, Mapping):
    cards = {f'{i + 1}: {card["task"]}': card for i, card in enumerate(cards)}
  columns = [_list_cells(card) for card in cards.values()]
  names = dict.fromkeys(name for column in columns for name in column)
  rows = [
    [name, *(column.get(name, '-') for column in columns)] for name in names
  ]
  remarks_of_cards = [
    (name, f'{kind}: {text}.')
    for name, card in cards.items()
    for kind, key in (('Warning', 'warnings'), ('Note', 'notes'))
    # Cards of before have no notes.
    for text in card.get(key, ())
  ]
  notes = [
    text if len(cards) == 1 else f'{name}: {text}'
    for name, text in remarks_of_cards
  ]
  return tables.format_text(tables.Table('', ['', *cards], rows, notes))


def hash_record(record: Record) -> str:
  """SHA-256 of the arrays of a record that may be published, in hexadecimal digits."""
  record = release.redact_record(record)
  arrays = {
    **{f'cosines.{name}': x for name, x in record.cosines.items()},
    'assigned': record.assigned,
    'included': record.included,
  }
  digest = hashlib.sha256()
  for name, array in sorted(arrays.items()):
    array = np.ascontiguousarray(array)
    # Little-endian on every machine.
    array = array.astype(array.dtype.newbyteorder('<'), copy=False)
    head = f'{name} {array.dtype.str} {array.shape}\n'
    digest.update(head.encode() + array.tobytes())
  return digest.hexdigest()


def _describe_record(record: Record) -> dict[str, str]:
  return {'sha256': hash_record(record), 'covers': _COVERS}


def _describe_headline(headline: Headline) -> dict[str, Any]:
  attack, bound, point = headline
  return {
    'text': format_headline(headline),
    'threat_model': _describe_threat_model(attack),
    'lower_bound': _describe_bound(bound),
    'point_estimate': point and _describe_point(point),
  }


def _describe_attack(attack: Attack) -> dict[str, Any]:
  return {
    'threat_model': _describe_threat_model(attack),
    'is_calibrated': attack.is_calibrated,
    'lower_bound': _describe_bound(attack.bounds[0]) if attack.bounds else None,
    'point_estimate': _describe_point(attack.first)
    if attack.is_calibrated
    else None,
    'analytic': attack.analytic and _describe_analytic(attack.analytic),
  }


def _describe_client(result: RunResult) -> dict[str, Any]:
  """How often a client takes part, and what is expected of it in the model."""
  participations = facts.count_participations(result)
  expected = {
    attack.threat_model.key: clients.expect_client(attack, participations)
    for attack in result.audit.attacks
  }
  return {
    'participations': participations.clients,
    'expected_epsilon': {
      key: epsilon._asdict()
      for key, epsilon in expected.items()
      if epsilon is not None
    },
  }


def _describe_threat_model(attack: Attack) -> dict[str, str]:
  model = attack.threat_model
  return {
    'key': model.key,
    'name': model.name,
    'who': model.who,
    'sees': attack.sees,
    'statistic': model.statistic,
  }


def _describe_bound(bound: Estimate) -> dict[str, Any]:
  return {
    'epsilon': float(bound.epsilon),
    'mu': _compute_mu(bound),
    'confidence': bound.confidence,
    'method': bound.method,
    'label': methods.describe_method(bound),
    'assumes': [str(assumption) for assumption in bound.assumes],
    'is_shape_free': bound.is_shape_free,
  }


def _describe_point(point: Estimate) -> dict[str, Any]:
  return {
    'epsilon': float(point.epsilon),
    'mu': _compute_mu(point),
    'method': point.method,
    'label': methods.describe_method(point),
    'assumes': [str(assumption) for assumption in point.assumes],
    'interval_90': point.interval and list(point.interval),
    'floor_90': point.floor and [point.floor.q05, point.floor.q95],
    'p_value': point.p_value,
  }


def _describe_analytic(analytic: Analytic) -> dict[str, Any]:
  return {
    'epsilon': analytic.epsilon,
    'kind': analytic.kind,
    'assumes': analytic.assumes,
  }


def _compute_mu(estimate: Estimate) -> float:
  """μ of the Gaussian mechanism with this ε at this δ."""
  epsilon = float(estimate.epsilon)
  if math.isnan(epsilon):
    return math.nan
  return float(tradeoff_curves.mu_of_epsilon(epsilon, estimate.delta))


@functools.cache
def _load_validator() -> jsonschema.Draft202012Validator:
  file = importlib.resources.files('epe_jax.report') / 'audit_card.schema.json'
  return jsonschema.Draft202012Validator(json.loads(file.read_text('utf-8')))


def _validate(path: str | os.PathLike[str], card: Any) -> None:
  if isinstance(card, dict) and 'schema_version' in card:
    version = card['schema_version']
    if version != SCHEMA_VERSION:
      raise ValueError(
        f'{path} has schema_version={version!r}, but this version of epe_jax reads '
        f'{SCHEMA_VERSION}. Read it with the version that wrote it.'
      )
  error = jsonschema.exceptions.best_match(_load_validator().iter_errors(card))
  if error is not None:
    field = '.'.join(map(str, error.absolute_path)) or 'the whole'
    fault = f'{field}: {error.message[:200]}'
  elif (fault := _find_inverted(card)) is None:
    return
  raise ValueError(
    f'{path} is no audit card: {fault}. Write it again with `epe-jax report '
    'WORKDIR`.'
  )


def _find_inverted(card: Card) -> str | None:
  """The interval of a card that ends before it begins, in words."""
  for one in (card['headline'], *card['attackers']):
    point = one and one['point_estimate']
    for name in ('interval_90', 'floor_90'):
      if not point or point[name] is None:
        continue
      low, high = map(float, point[name])
      if low > high:
        return (
          f'point_estimate.{name} of {one["threat_model"]["key"]}: it goes from '
          f'{low:g} to {high:g}'
        )
  return None


def _list_cells(card: Card) -> dict[str, str]:
  """The lines of a card, by their names."""
  headline, canaries = card['headline'], card['canaries']
  lines = {}
  if headline is not None:
    bound, point = headline['lower_bound'], headline['point_estimate']
    lines = {
      'attacker': headline['threat_model']['name'],
      'lower bound ε': f'≥ {cells.format_number(bound["epsilon"])}',
      'confidence': f'{100 * bound["confidence"]:.4g} %',
      'bound by': bound['label'],
    }
    if point is not None:
      interval, floor = point['interval_90'], point['floor_90']
      lines |= {
        'point estimate ε': cells.format_number(point['epsilon']),
        '90 % interval': _format_pair(interval),
        'floor 5-95 %': _format_pair(floor),
      }
  lines['δ'] = cells.format_delta(card['delta'])
  for who, analytic in card['analytic'].items():
    lines[f'analytic ε, {who}'] = cells.format_number(analytic['epsilon'])
  for attack in card['attackers']:
    lines[f'ε, {attack["threat_model"]["name"]}'] = _format_attack(attack)
  # Cards of before say nothing of clients.
  client = card.get('client') or {'participations': '-', 'expected_epsilon': {}}
  names = {
    attack['threat_model']['key']: attack['threat_model']['name']
    for attack in card['attackers']
  }
  for key, expected in client['expected_epsilon'].items():
    lines[f'ε of a client, {names[key]}'] = _format_pair(
      [*dict.fromkeys(expected.values())]
    )
  mechanism = card['mechanism']
  return lines | {
    'rounds of a canary': f'{canaries["repetitions"]:,}',
    'rounds of a client': f'{client["participations"]}',
    'canaries in + out': f'{canaries["took_part"]:,} + {canaries["did_not"]:,}',
    'rounds': f'{mechanism["rounds"]:,}',
    'parameters': f'{mechanism["parameters"]:,}',
    'noise': f'{mechanism["noise_multiplier"]:g}, {mechanism["noise"]}',
    'test accuracy': cells.format_percent(card['utility']['test_accuracy']),
    'warnings': f'{len(card["warnings"])}',
    'epe_jax': card['software'].get('epe_jax', '-'),
    'record': card['record']['sha256'][:12] if card['record'] else '-',
  }


def _format_pair(pair: Sequence[float | str] | None) -> str:
  return '-' if pair is None else ' to '.join(map(cells.format_number, pair))


def _format_attack(attack: Mapping[str, Any]) -> str:
  bound, point = attack['lower_bound'], attack['point_estimate']
  parts = []
  if bound is not None:
    parts.append(f'≥ {cells.format_number(bound["epsilon"])}')
  if point is not None:
    parts.append(f'≈ {cells.format_number(point["epsilon"])}')
  return ', '.join(parts) or '-'
