"""Writes a page of docs for each audited framework, from what its example saved.

  bash examples/frameworks/run.sh runs/frameworks
  python scripts/framework_docs.py --audits=runs/frameworks

Each example of examples/frameworks saves its auditor; here it is read again. A page
has the lines that an audit adds to the framework's own quickstart, what the audit
printed, and the scores as a figure. Where the conformance suite has the mechanism of
a framework, the page begins with what NAME.check.txt says of it.
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
_MARK = '# +'

TITLES = {
  'numpy': 'A loop in NumPy',
  'flower': 'Flower',
  'secagg': 'Flower with SecAgg+',
  'pfl': 'pfl-research',
  'opacus': 'Opacus',
  'jax_privacy': 'jax_privacy',
  'optax': 'optax.contrib',
  'nvflare': 'NVFlare',
}


def find_example(name: str) -> pathlib.Path:
  """The example of a framework."""
  (path,) = _EXAMPLES.glob(f'{name}_*.py')
  return path


def list_added_statements(path: pathlib.Path) -> list[str]:
  """The statements of an example that are the audit, without their mark.

  The mark is on the first line of a statement, or of a decorator, which is listed
  with the head of its function.
  """
  source = path.read_text(encoding='utf-8')
  lines = source.splitlines()

  def is_marked(node: ast.stmt | ast.expr) -> bool:
    return lines[node.lineno - 1].endswith(f'  {_MARK}')

  def read(node: ast.stmt | ast.expr) -> str:
    block = lines[node.lineno - 1 : node.end_lineno]
    text = '\n'.join(line.removesuffix(f'  {_MARK}') for line in block)
    return textwrap.dedent(text)

  added = []
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.FunctionDef):
      head = f'def {node.name}({ast.unparse(node.args)}): ...'
      added += [
        (x.lineno, f'{read(x)}\n{head}')
        for x in node.decorator_list
        if is_marked(x)
      ]
    elif isinstance(node, ast.stmt) and is_marked(node):
      added.append((node.lineno, read(node)))
  return [text for _, text in sorted(added)]


def format_page(name: str, auditor: Auditor, check: str | None) -> str:
  """The page of a framework, in Markdown.

  Args:
    name: of the framework.
    auditor: of its example.
    check: a command of the conformance suite and what it prints, if it has the
      mechanism of the framework.
  """
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
      *([] if check is None else _format_check(check)),
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


def _format_check(check: str) -> list[str]:
  """What the conformance suite says, which comes before an audit."""
  command, _, report = check.strip().partition('\n')
  return [
    '## Check the mechanism',
    '',
    'An audit measures what training leaks of canaries. Whether the mechanism clips, '
    'averages and adds noise as it claims, for all clients, is what '
    '[the conformance suite](../conformance.md) checks, in a minute and without '
    'training:',
    '',
    f'```sh\n{command}\n```',
    '',
    f'```text\n{report.strip()}\n```',
    '',
    'For another strategy give a factory of your own, `make(claim)` in a file, that '
    'returns `epe_jax.conformance.adapters.flower.Mechanism(strategy, claim)`.',
    '',
    '## Audit the training',
    '',
  ]


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
    check = file.with_suffix('.check.txt')
    text = check.read_text(encoding='utf-8') if check.exists() else None
    page = format_page(file.stem, auditor, text)
    io.write_text(out / f'{file.stem}.md', page)
    print(f'{out / file.stem}.md')


if __name__ == '__main__':
  app.run(main)
