"""Fills the page of each audited framework, from what its example saved.

  bash examples/frameworks/run.sh runs/frameworks
  python scripts/framework_docs.py --audits=runs/frameworks

Each example of examples/frameworks saves its auditor; here it is read again. A page
has the lines that an audit adds to the framework's own quickstart, what the audit
printed, the scores as a figure, and what made them. Where the conformance suite has the
mechanism of a framework, the page has what NAME.check.txt says of it.
"""

import functools
import pathlib
import sys
import textwrap

from absl import app, flags

from epe_jax import io
from epe_jax.auditor.auditor import Auditor
from epe_jax.report import tables
from epe_jax.report.figures import cosines

# Papers are next to the package, and no part of it.
_ROOT = pathlib.Path(__file__).parents[1]
sys.path.append(str(_ROOT))

from papers import origins

_AUDITS = flags.DEFINE_string(
  'audits', None, 'Folder with NAME.npz of each framework.', required=True
)

_MARK = '  # +'


def list_added_statements(source: str) -> list[str]:
  """The statements of an example that are the audit, without their mark.

  The mark is on the first line of a statement, or of a decorator, which is listed
  with the head of its function.
  """
  added, lines = [], iter(source.splitlines())
  for line in lines:
    if line.endswith(_MARK):
      block = line.removesuffix(_MARK)
      while block.count('(') > block.count(')'):
        block += f'\n{next(lines)}'
      if block.lstrip().startswith('@'):
        block += f'\n{next(lines)} ...'
      added.append(textwrap.dedent(block))
  return added


def main(argv: list[str]) -> None:
  if argv[1:]:
    raise app.UsageError(f'Unknown arguments {argv[1:]}; give --audits.')
  audits = sorted(pathlib.Path(_AUDITS.value).glob('*.npz'))
  if not audits:
    raise app.UsageError(
      f'--audits={_AUDITS.value} has no .npz; run examples/frameworks/run.sh.'
    )
  for file in audits:
    (example,) = _ROOT.glob(f'examples/frameworks/{file.stem}_*.py')
    added = '\n'.join(list_added_statements(example.read_text('utf-8')))
    auditor = Auditor.load(file)
    blocks = {
      'added': f'```py\n{added}\n```',
      'printed': f'```text\n{auditor.report()}\n```',
    }
    if (versions := file.with_suffix('.versions.json')).exists():
      origin = origins.describe_state(io.read_json(versions))
      blocks['made'] = f'`make frameworks`. {origins.format_origin(origin)}'
    if (check := file.with_suffix('.check.txt')).exists():
      command, _, said = check.read_text('utf-8').strip().partition('\n')
      blocks['check'] = f'```sh\n{command}\n```\n\n```text\n{said.strip()}\n```'
    page = _ROOT / 'docs' / 'frameworks' / f'{file.stem}.md'
    io.write_text(page, tables.splice(page.read_text('utf-8'), blocks))
    figure = cosines.draw_densities(auditor.evaluate().attacks)
    save = functools.partial(figure.savefig, format='png', dpi=150)
    io.write_atomically(page.with_suffix('.png'), save)
    print(page)


if __name__ == '__main__':
  app.run(main)
