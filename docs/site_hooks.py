"""Hooks of the site: pages of the API, and links to files of the repository.

A package that the navigation names has a page with its public names, by the module
that defines them. Pages link to examples, result files and tests beside the folder of
docs. The site has a copy of each such file, so that it works without a repository behind
it; a folder is named instead.
"""

import ast
import collections
import json
import os
import pathlib
import re

from mkdocs.structure.files import File

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# Folder of pages -> factor of their rank in a search, 1 for those that answer a
# question.
_BOOSTS = {'docs/api': 0.1, 'docs/runs': 0.2, 'docs/results': 0.5}


def on_files(files, config):
  """Adds a page of the API, with directives of mkdocstrings, for each package."""
  for name in re.findall(r'api/([\w.]+)\.md', json.dumps(config.nav)):
    package = f'epe_jax.{name}'
    folder = _ROOT / package.replace('.', '/')
    # The stub, if there is one.
    source = max(folder.glob('__init__.py*')).read_text('utf-8')
    modules = collections.defaultdict(list)
    for node in ast.walk(ast.parse(source)):
      if isinstance(node, ast.ImportFrom) and node.module != 'epe_jax':
        names = [alias.name for alias in node.names]
        module = f'{package}.' * bool(node.level) + (node.module or '')
        if node.module:
          modules[module] += names
        else:  # Modules, and not names in one.
          modules |= {module + name: [] for name in names}
    if not modules:  # A package of modules that are imported by themselves.
      paths = sorted(folder.glob('[!_]*.py'))
      modules = {f'{package}.{path.stem}': [] for path in paths}
    content = f'# {package}\n\n::: {package}\n    options:'
    content += ' {members: false, show_root_heading: false}'
    for module, names in sorted(modules.items()):
      content += f'\n\n::: {module}'
      content += f'\n    options: {{members: {names}}}' * bool(names)
    files.append(File.generated(config, f'api/{name}.md', content=content))
  return files


def on_page_markdown(markdown, page, config, files):
  """Ranks pages for search, and points links that leave the docs to copies."""
  folder = pathlib.Path('docs', page.file.src_uri).parent
  for path, boost in _BOOSTS.items():
    if folder.is_relative_to(path):
      page.meta.setdefault('search', {'boost': boost})

  def replace(match: re.Match) -> str:
    target = os.path.normpath(folder / match[2])
    if target.startswith('docs/'):
      return match[0]
    if (_ROOT / target).is_dir():
      return f'`{target}`'
    # As text, which browsers show instead of saving it.
    copy = f'source/{target}.txt'
    if copy not in files.src_uris:
      content = (_ROOT / target).read_text('utf-8')
      files.append(File.generated(config, copy, content=content))
    return f'[{match[1]}]({os.path.relpath(f"docs/{copy}", folder)})'

  return re.sub(r'\[([^\]]*)\]\((\.\./[^)#]*)\)', replace, markdown)
