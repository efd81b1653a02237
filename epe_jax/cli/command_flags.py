"""What a flag of a command is, and the flags that several commands have.

A command that says more of a shared flag than others replaces its help, as in
`DELTA._replace(help=...)`.
"""

from typing import Any, NamedTuple

from absl import flags


class Flag(NamedTuple):
  """A flag of a command.

  Attributes:
    name: without dashes.
    help: a sentence.
    kind: of its value: bool, int, float, str; list, for words with commas between;
      set, for a flag that may be given several times; or the words that it may be.
    default: its value where it is not given.
    smallest: the smallest valid integer; None if there is none.
  """

  name: str
  help: str
  kind: type | tuple[str, ...] = str
  default: Any = None
  smallest: int | None = None


_DEFINE = {
  bool: flags.DEFINE_bool,
  float: flags.DEFINE_float,
  str: flags.DEFINE_string,
  list: flags.DEFINE_list,
  set: flags.DEFINE_multi_string,
}


def define(values: flags.FlagValues, *declared: Flag) -> None:
  """Defines flags."""
  for name, text, kind, default, smallest in declared:
    own: Any = {'flag_values': values}
    if isinstance(kind, tuple):
      flags.DEFINE_enum(name, default, list(kind), text, **own)
    elif kind is int:
      flags.DEFINE_integer(name, default, text, lower_bound=smallest, **own)
    else:
      _DEFINE[kind](name, default, text, **own)


DELTA = Flag('delta', 'δ, in (0, 1).', float)
DESIGN = Flag(
  'design',
  'Inclusion of canaries: a fixed number, or independent fair coin flips.',
  ('fixed', 'coin_flip'),
)
SIMULTANEOUS = Flag(
  'simultaneous',
  'Make all lower bounds hold together at 95 %, not each by itself.',
  bool,
  False,
)
CLAIM = Flag(
  'claim',
  'Claimed ε. The exit status is 1 if the headline bound exceeds it, which 5 % of true '
  'claims do if canaries score independently.',
  float,
)
CLAIM_OF_SEVERAL = CLAIM._replace(
  help='Claimed ε. The exit status is 1 if the headline bound exceeds it; with '
  '--simultaneous, if any bound does that assumes no shape, as these hold together.'
)
WORKDIR = Flag('workdir', 'Folder of the run.')
OUT = Flag('out', 'Folder of what is written.')
VERBOSE = Flag('verbose', 'Print every estimate and its meaning.', bool, False)
FORMAT = Flag('format', 'How to print the result.', ('text', 'json'), 'text')
RETRY = Flag('retry', 'Repeat failed runs.', bool, False)
CONFIG = Flag(
  'config',
  'A name, such as digits, or a file, optionally followed by :MODE. The flag name '
  'may be omitted. --config.FIELD=VALUE sets a field.',
)
