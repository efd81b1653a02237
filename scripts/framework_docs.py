"""Writes a page of docs for each audited framework, from what its example saved.

  bash examples/frameworks/run.sh runs/frameworks
  python scripts/framework_docs.py --audits=runs/frameworks

Each example of examples/frameworks saves its auditor; here it is read again. A page
has the lines that an audit adds to the framework's own quickstart, what the audit
printed, and the scores as a figure.
"""

import ast
import pathlib
import textwrap

from absl import app, flags

from epe_jax import io
from epe_jax.auditor.auditor import Auditor
from epe_jax.report.figures import cosines

_AUDITS = flags.DEFINE_string(
  'audits', None, 'Folder with NAME.npz of each framework.', required=True
)
_OUT = flags.DEFINE_string('out', 'docs/frameworks', 'Folder of the pages.')

_EXAMPLES = pathlib.Path(__file__).parent.parent / 'examples' / 'frameworks'
_MARK = '# epe_jax'

TITLES = {
  'numpy': 'A loop in NumPy',
  'flower': 'Flower',
  'pfl': 'pfl-research',
  'opacus': 'Opacus',
  'jax_privacy': 'jax_privacy',
  'optax': 'optax.contrib',
  'fedjax': 'FedJAX',
  'nvflare': 'NVFlare',
}


def find_example(name: str) -> pathlib.Path:
  """The example of a framework."""
  (path,) = _EXAMPLES.glob(f'{name}_*.py')
  return path


def list_added_statements(path: pathlib.Path) -> list[str]:
  """The statements of an example that are the audit, without their mark.

  The mark is on the first line of a statement.
  """
  source = path.read_text(encoding='utf-8')
  lines = source.splitlines()
  ranges = sorted(
    (node.lineno - 1, node.end_lineno)
    for node in ast.walk(ast.parse(source))
    if isinstance(node, ast.stmt) and _MARK in lines[node.lineno - 1]
  )
  return [
    textwrap.dedent('\n'.join(line.split(_MARK)[0].rstrip() for line in block))
    for block in (lines[start:end] for start, end in ranges)
  ]


def format_page(name: str, auditor: Auditor) -> str:
  """The page of a framework, in Markdown."""
  path = find_example(name)
  doc = path.read_text(encoding='utf-8').split('"""')[1].strip()
  summary = doc.split('\n\n')[0]
  added = '\n'.join(list_added_statements(path))
  return '\n'.join(
    [
      f'# {TITLES[name]}',
      '',
      f'{summary} Written by `scripts/framework_docs.py` from a run of '
      f'[examples/frameworks/{path.name}](../../examples/frameworks/{path.name}).',
      '',
      'The lines that the audit adds to the loop:',
      '',
      f'```py\n{added}\n```',
      '',
      'What it prints:',
      '',
      f'```text\n{auditor.report()}\n```',
      '',
      f'![Scores of canaries that took part and of those that did not]({name}.png)',
      '',
      '[Reading the numbers](../estimates.md) explains what each number guarantees.',
      '',
    ]
  )


def main(argv: list[str]) -> None:
  if argv[1:]:
    raise app.UsageError(f'Unknown arguments {argv[1:]}; give --audits.')
  out = pathlib.Path(_OUT.value)
  out.mkdir(parents=True, exist_ok=True)
  audits = sorted(pathlib.Path(_AUDITS.value).glob('*.npz'))
  if not audits:
    raise app.UsageError(
      f'--audits={_AUDITS.value} has no .npz; run examples/frameworks/run.sh.'
    )
  for file in audits:
    auditor = Auditor.load(file)
    figure = cosines.draw_densities(auditor.evaluate().attacks)
    io.write_atomically(
      out / f'{file.stem}.png',
      lambda f, figure=figure: figure.savefig(f, format='png', dpi=150),
    )
    io.write_text(out / f'{file.stem}.md', format_page(file.stem, auditor))
    print(f'{out / file.stem}.md')


if __name__ == '__main__':
  app.run(main)
