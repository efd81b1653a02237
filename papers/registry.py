"""The items of all papers, by name."""

from collections.abc import Iterable
from typing import NamedTuple

from papers.item import Item
from papers.one_shot import items as one_shot
from papers.production import mechanisms
from papers.reported import Reported
from papers.tight_auditing import bug_hunts, simulated, trained


class Paper(NamedTuple):
  """A paper, and what of it can be made again.

  Attributes:
    title: as printed.
    items: name within the paper -> item.
    reported: the numbers that it prints.
    remarks: sentences on how ours compare with them, and on what is not made.
  """

  title: str
  items: dict[str, Item]
  reported: Reported
  remarks: tuple[str, ...] = ()


PAPERS = {
  'one_shot': Paper(
    'One-shot Empirical Privacy Estimation for Federated Learning',
    one_shot.ITEMS,
    Reported('papers.one_shot'),
    one_shot.REMARKS,
  ),
  'tight': Paper(
    'Tight Auditing of Differentially Private Machine Learning',
    {**simulated.ITEMS, **bug_hunts.ITEMS, **trained.ITEMS},
    Reported('papers.tight_auditing'),
  ),
  'production': Paper(
    'What production federated learning runs',
    mechanisms.ITEMS,
    Reported('papers.production'),
    mechanisms.REMARKS,
  ),
}
"""The papers, by the name that stands before the colon."""

# The items of the first paper are known without its name.
_PLAIN = 'one_shot'


def name_item(paper: str, name: str) -> str:
  """The name of an item among those of all papers.

  >>> name_item('tight', 'figure3'), name_item('one_shot', 'algorithm1')
  ('tight:figure3', 'algorithm1')
  """
  return name if paper == _PLAIN else f'{paper}:{name}'


ITEMS: dict[str, Item] = {
  name_item(key, name): item
  for key, paper in PAPERS.items()
  for name, item in paper.items.items()
}
"""Every item, as 'tight:figure3' or, of the first paper, 'algorithm1'."""


def select_items(names: Iterable[str]) -> list[str]:
  """Names of `ITEMS` for names as people write them, each of them once.

  Args:
    names: of items, with or without 'one_shot:' for those of the first paper;
      'all' for every item and 'tight:all' for those of one paper.

  Raises:
    ValueError: there is no such item.

  >>> select_items(['one_shot:algorithm1', 'algorithm1', 'tight:figure3'])
  ['algorithm1', 'tight:figure3']
  """
  selected = []
  for written in names:
    paper, colon, name = written.rpartition(':')
    if written == 'all':
      selected += ITEMS
    elif name == 'all' and paper in PAPERS:
      selected += [name_item(paper, each) for each in PAPERS[paper].items]
    else:
      full = name_item(paper, name) if colon else name
      if full not in ITEMS:
        raise ValueError(f'{written!r} is not an item')
      selected.append(full)
  return list(dict.fromkeys(selected))


def folder_of(name: str) -> str:
  """The folder of an item below that of its scale: 'tight/figure3'."""
  return name.replace(':', '/')


def find_reported(name: str) -> dict[str, list[dict[str, float]]]:
  """The tables of numbers that the paper itself has for an item: title -> rows.

  >>> list(find_reported('emnist')), find_reported('tight:figure4')
  (['emnist'], {})
  """
  key, _, short = name.rpartition(':')
  paper = PAPERS[key or _PLAIN]
  return {
    title: rows
    for title, rows in paper.reported.load_tables(short).items()
    if title == short or title not in paper.items
  }
