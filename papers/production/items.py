"""The tables and figures of what production runs, by name."""

from papers.grid import from_grid
from papers.item import Item, from_settings
from papers.production import deployed, mechanisms

_OURS = 'of this project'

ITEMS = {
  'deployed': Item(
    'A deployed keyboard model: its accounting',
    'Google AI blog, February 2022',
    'production_deployed',
    from_settings(deployed.make_deployed),
  ),
  **{
    task: from_grid(
      f'{title}: matrix mechanisms, audited',
      _OURS,
      f'production_{task}',
      data,
      mechanisms.make_mechanisms,
    )
    for task, title, data in (
      ('digits', 'Digits', ()),
      ('emnist', 'EMNIST', ('emnist',)),
      ('stackoverflow', 'StackOverflow', ('stackoverflow', 'word_count')),
    )
  },
  'rings': from_grid(
    'EMNIST behind secure aggregation, audited',
    _OURS,
    'production_rings',
    ('emnist',),
    mechanisms.make_rings,
  ),
}
