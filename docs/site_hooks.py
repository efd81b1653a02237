"""Hooks of the site: pages of the API, and links to files of the repository.

A package has a page of the API with its public names, by the module that defines
them. Pages link to examples, result files and tests beside the folder of docs. The site has
a copy of each such file, so that it works without a repository behind it; a folder
is named instead.
"""

import ast
import pathlib
import posixpath
import re

from mkdocs.structure.files import File

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_LINK = re.compile(r'\[([^\]]*)\]\((\.\./[^)#]*)\)')
_COPIES = 'source'
# Folder of pages -> factor of their rank in a search, 1 for those that answer a
# question.
_SEARCHED_LAST = {'api': 0.1, 'runs': 0.2, 'results': 0.5}

PACKAGES = (
  'epsilon',
  'accounting',
  'canaries',
  'sampling',
  'training',
  'audit',
  'auditor',
  'auditor.adapters',
  'conformance',
  'conformance.adapters',
  'dpsgd',
  'planning',
  'scores.formats',
  'experiment',
)
"""Those with a page, epe_jax.NAME."""


def _read_docstring(module: str) -> str:
  """The docstring of a module, without importing it."""
  path = _ROOT / module.replace('.', '/')
  path = path / '__init__.py' if path.is_dir() else path.with_suffix('.py')
  return ast.get_docstring(ast.parse(path.read_text(encoding='utf-8'))) or ''


def _list_names(package: str) -> dict[str, list[str]]:
  """The public names of a package, by the module that defines them."""
  folder = _ROOT.joinpath('epe_jax', *package.split('.'))
  stub = folder / '__init__.pyi'
  source = (stub if stub.exists() else folder / '__init__.py').read_text(
    'utf-8'
  )
  names: dict[str, list[str]] = {}
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.ImportFrom) and node.module != 'epe_jax':
      module = node.module
      if node.level:
        module = '.'.join(filter(None, ['epe_jax', package, node.module]))
      if (
        module == f'epe_jax.{package}'
      ):  # Modules, which are pages of their own.
        names.update({f'{module}.{alias.name}': [] for alias in node.names})
      else:
        names.setdefault(module, []).extend(a.name for a in node.names)
  if not names:  # A package of modules that are imported by themselves.
    for path in sorted(folder.glob('[!_]*.py')):
      names[f'epe_jax.{package}.{path.stem}'] = []
  return dict(sorted(names.items()))


def _write_api_page(package: str) -> str:
  """A page of the API, in Markdown with directives of mkdocstrings."""
  lines = [
    f'# epe_jax.{package}',
    '',
    _read_docstring(f'epe_jax.{package}'),
    '',
  ]
  for module, names in _list_names(package).items():
    if not names:
      lines += [f'::: {module}', '']
      continue
    heading = module.removeprefix(f'epe_jax.{package}.')
    summary = _read_docstring(module).split('\n\n')[0]
    lines += [f'## {heading}', '', summary, '']
    for name in names:
      lines += [
        f'::: {module}.{name}',
        '    options:',
        '      heading_level: 3',
        '',
      ]
  return '\n'.join(lines)


def _find_target(page: File, link: str) -> pathlib.PurePosixPath | None:
  """The path in the repository that a link leads to, if it leaves the docs."""
  base = posixpath.join('docs', posixpath.dirname(page.src_uri))
  path = pathlib.PurePosixPath(posixpath.normpath(posixpath.join(base, link)))
  return None if path.parts[0] == 'docs' else path


def on_files(files, config):
  """Adds the API, and a copy of each file of the repository that pages link to."""
  for package in PACKAGES:
    content = _write_api_page(package)
    files.append(File.generated(config, f'api/{package}.md', content=content))
  targets = set()
  for page in files.documentation_pages():
    for _, link in _LINK.findall(page.content_string):
      target = _find_target(page, link)
      if target is not None and (_ROOT / target).is_file():
        targets.add(target)
  for target in sorted(targets):
    # As text, which browsers show instead of saving it.
    uri = f'{_COPIES}/{target}.txt'
    text = (_ROOT / target).read_text(encoding='utf-8')
    files.append(File.generated(config, uri, content=text))
  return files


def on_page_markdown(markdown, page, config, files):
  """Points links that leave the docs to the copies, and ranks pages for search."""
  folder = pathlib.PurePosixPath(page.file.src_uri).parts[0]
  if folder in _SEARCHED_LAST:
    page.meta.setdefault('search', {'boost': _SEARCHED_LAST[folder]})

  def replace(match: re.Match) -> str:
    text, link = match.groups()
    target = _find_target(page.file, link)
    if target is None:
      return match.group()
    path = _ROOT / target
    if not path.exists():
      raise FileNotFoundError(f'{page.file.src_uri} links to {target}.')
    if path.is_dir():
      return f'`{target}`'
    start = posixpath.dirname(page.file.src_uri) or '.'
    return f'[{text}]({posixpath.relpath(f"{_COPIES}/{target}.txt", start)})'

  return _LINK.sub(replace, markdown)
