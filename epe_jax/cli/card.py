"""Validates audit cards against their schema, and compares them.

  epe-jax card runs/digits
  epe-jax card runs/a runs/b others/audit_card.json

A card is the audit_card.json of an audited run, for registries and programs. Give its
path or the workdir.
"""

from collections.abc import Sequence

from absl import app, flags


def define_flags(values: flags.FlagValues) -> None:
  """Defines no flags: a card has all that is shown of it."""
  del values


def execute(values: flags.FlagValues, argv: Sequence[str]) -> int:
  """Runs the command, as `program` does."""
  paths = values(list(argv))[1:]
  if not paths:
    raise app.UsageError('give an audit_card.json, or the workdir of a run.')
  for path in paths:
    if paths.count(path) > 1:
      raise app.UsageError(f'{path} is given more than once; give it once.')
  from epe_jax.report import audit_card

  cards = {path: audit_card.load_card(path) for path in paths}
  print(audit_card.format_cards(cards))
  return 0
