"""audit_card.json: the facts of an audit, for programs and registries.

A card has a versioned schema, audit_card.schema.json in this folder, and no secret: it
is made from what may be published of a run. It holds keys and numbers; `format_cards`
makes the words.
"""

from collections.abc import Iterator, Mapping, Sequence
import functools
import importlib.resources
import json
import os
import pathlib
from typing import Any, TypeAlias

import jsonschema
import jsonschema.exceptions

from epe_jax import io
from epe_jax.audit import audit_json, clients
from epe_jax.audit.attack_results import AttackResult
from epe_jax.experiment import workdirs
from epe_jax.experiment.run_result import RunResult
from epe_jax.fact import Facts, facts_to_json
from epe_jax.report import facts
from epe_jax.report.provenance import UNKNOWN, Provenance
from epe_jax.text import audit_notes, cells, tables, wording

Card: TypeAlias = dict[str, Any]
"""A card, as `audit_card.schema.json` describes it."""

SCHEMA_VERSION = 4
"""The version of the cards that are written and read."""

FILE = 'audit_card.json'
"""The name of a card in a workdir."""


def make_card(result: RunResult, belongs_to: Provenance = UNKNOWN) -> Card:
  """Makes the card of a finished run.

  Args:
    result: what result.json holds; of an audited run.
    belongs_to: the run, its model, its record and the day on which it ended.

  Returns:
    A card in which numbers that are not finite are spelled as in JSON.

  Raises:
    ValueError: the run was not audited.
  """
  if not result.is_audited:
    raise ValueError(
      f'{result.task} was not audited: no canaries took part, so there is no card '
      'to make. Train with canaries.observed of 2 or more.'
    )
  participations = facts.count_participations(result)
  expected = {
    attack.threat_model.key: clients.expect_client(attack, participations)
    for attack in result.audit.attacks
  }
  card = {
    'schema_version': SCHEMA_VERSION,
    'date': belongs_to.date,
    'run_id': belongs_to.run_id,
    'model': _show_digest(belongs_to.model),
    'record': _show_digest(belongs_to.record),
    'task': result.task,
    'data': io.hide_paths(result.data),
    'privacy': {
      'notion': 'approximate_dp',
      'unit': 'client',
      'neighbours': 'add_or_remove_one',
      'trust_model': 'central',
    },
    'delta': result.delta,
    # As many numbers by round as all others are left to result.json.
    'audit': audit_json.to_json(
      result.audit._replace(by_round=None, sequential=None)
    ),
    'analytic': {
      'canaries': _analytic_to_json(
        result.analytic_epsilon, result.analytic_assumes
      ),
      'clients': _analytic_to_json(
        result.clients_analytic_epsilon, result.clients_analytic_assumes
      ),
    },
    'amplification': result.amplification and result.amplification.to_json(),
    'mechanism': {
      'rounds': result.rounds,
      'parameters': result.dim,
      'noise_multiplier': result.noise_multiplier,
      'noise': result.noise,
    },
    'canaries': {
      'observed': result.num_observed,
      'unobserved': result.num_unobserved,
      'participations': result.participations,
      'design': 'coin_flip' if facts.is_coin_flip(result) else 'fixed',
      'family': (result.config.get('canaries') or {}).get('family'),
    },
    'client': {
      'participations': participations.clients,
      'expected_epsilon': {
        key: epsilon._asdict()
        for key, epsilon in expected.items()
        if epsilon is not None
      },
    },
    'utility': {
      'test_accuracy': result.accuracy,
      'majority_class': result.baseline_accuracy,
      'test_loss': result.loss,
    },
    'software': dict(result.versions),
  }
  return io.spell_non_finite(card)


def write_card(path: str | os.PathLike[str], card: Card) -> None:
  """Writes a card.

  Args:
    path: the file.
    card: as `make_card` makes it.

  Raises:
    ValueError: it is not a card; the error names the field.
  """
  _validate(path, card)
  io.write_sealed(path, card)


def load_card(path: str | os.PathLike[str]) -> Card:
  """Reads a card and checks it against the schema.

  Args:
    path: the file, or the workdir of a run that has one.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is not a card, or of another version; the error names the field.
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
  card = io.join_lines(io.read_sealed(path))
  _validate(path, card)
  return card


def format_cards(cards: Mapping[str, Card] | Sequence[Card]) -> str:
  """A table with a column for each card, and the warnings and notes of their audits.

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
  notes = [
    text if len(cards) == 1 else f'{name}: {text}'
    for name, card in cards.items()
    for text in audit_notes.format_notes(audit_json.from_json(card['audit']))
  ]
  return tables.format_text(tables.Table('', ['', *cards], rows, notes))


def _show_digest(digest: str | None) -> dict[str, str] | None:
  return None if digest is None else {'sha256': digest}


def _analytic_to_json(
  epsilon: float | None, assumes: Facts | None
) -> dict[str, Any]:
  assert assumes is not None, 'canaries took part'
  return {'epsilon': epsilon, 'assumes': facts_to_json(assumes)}


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
  fault = _find_fault(card)
  if fault is not None:
    raise ValueError(
      f'{path} is not an audit card: {fault}. Write it again with `epe-jax report '
      'WORKDIR`.'
    )


def _find_fault(card: Any) -> str | None:
  """What is wrong with a card, with the name of its field; None if nothing is."""
  error = jsonschema.exceptions.best_match(_load_validator().iter_errors(card))
  if error is not None:
    field = '.'.join(map(str, error.absolute_path)) or 'the card'
    return f'{field}: {error.message[:200]}'
  try:
    audit = audit_json.from_json(card['audit'])
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    return f'audit: {error!r}'
  return next((text for a in audit.attacks for text in _list_inverted(a)), None)


def _list_inverted(attack: AttackResult) -> Iterator[str]:
  """The intervals of an attacker that end before they begin."""
  for estimate in attack.estimates:
    floor = estimate.floor and (estimate.floor.q05, estimate.floor.q95)
    for name, pair in (('interval', estimate.interval), ('floor', floor)):
      if pair and pair[0] > pair[1]:
        yield (
          f'{name} of {attack.threat_model.key}, {estimate.method}: it goes from '
          f'{pair[0]:g} to {pair[1]:g}'
        )


def _list_cells(card: Card) -> dict[str, str]:
  """The lines of a card, by their names."""
  audit = audit_json.from_json(card['audit'])
  headline, canaries = audit.headline, card['canaries']
  lines = {}
  if headline is not None:
    bound, point = headline.bound, headline.point
    lines = {
      'attacker': headline.attack.threat_model.name,
      'lower bound ε': f'≥ {cells.format_epsilon(bound)}',
      'confidence': f'{100 * (bound.confidence or 0):.4g} %',
      'bound by': cells.describe_method(bound),
    }
    if point is not None:
      lines |= {
        'point estimate ε': cells.format_epsilon(point),
        '90 % interval': cells.format_interval(point.interval) or '-',
        'floor 5-95 %': cells.format_floor(point) or '-',
      }
  lines['δ'] = cells.format_delta(card['delta'])
  analytic = card['analytic']
  if analytic['canaries'] == analytic['clients']:
    analytic = {'canaries and clients': analytic['clients']}
  for who, values in analytic.items():
    lines[f'analytic ε, {who}'] = cells.format_number(values['epsilon'])
  for attack in audit.attacks:
    lines[f'ε, {attack.threat_model.name}'] = _format_attack(attack)
  names = {a.threat_model.key: a.threat_model.name for a in audit.attacks}
  for key, expected in card['client']['expected_epsilon'].items():
    epsilons = cells.format_range(expected['orthogonal'], expected['agreeing'])
    lines[f'ε of a client, {names.get(key, key)}'] = epsilons
  mechanism = card['mechanism']
  return lines | {
    'rounds of a canary': f'{canaries["participations"]:,}',
    'rounds of a client': f'{card["client"]["participations"]:,}',
    'canaries in + out': f'{canaries["observed"]:,} + {canaries["unobserved"]:,}',
    'rounds': f'{mechanism["rounds"]:,}',
    'parameters': f'{mechanism["parameters"]:,}',
    'noise': f'{mechanism["noise_multiplier"]:g}, '
    f'{wording.spell_key(mechanism["noise"])}',
    'test accuracy': cells.format_percent(card['utility']['test_accuracy']),
    'warnings': f'{len(audit_notes.list_warnings(audit))}',
    'epe_jax': card['software'].get('epe_jax', '-'),
    'date': card['date'] or '-',
    'run': card['run_id'] or '-',
    **{
      name: card[name]['sha256'][:12] if card[name] else '-'
      for name in ('model', 'record')
    },
  }


def _format_attack(attack: AttackResult) -> str:
  parts = []
  if attack.bounds:
    parts.append(f'≥ {cells.format_epsilon(attack.bounds[0])}')
  if attack.is_calibrated:
    parts.append(f'≈ {cells.format_epsilon(attack.first)}')
  return ', '.join(parts) or '-'
