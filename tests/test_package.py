"""What says of the package elsewhere what it is agrees with it, and with itself."""

import ast
import pathlib
import re
import shutil
import subprocess

import pytest
import yaml

import epe_jax
from tests import installed, test_install

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = installed.PROJECT


def read(name):
  return (ROOT / name).read_text('utf-8')


def test_the_image_is_made_of_what_builds_the_package():
  text = read('Dockerfile')
  copied = ' '.join(re.findall(r'^COPY (.*) \S+$', text, re.M)).split()
  assert sorted(copied) == sorted([*test_install.FOLDERS, *test_install.FILES])
  for named in re.findall(r'EXTRAS=(\w+(?:,\w+)*)', text):
    assert {*named.split(',')} <= PROJECT['optional-dependencies'].keys()
  assert 'epe-jax run digits\n' in read('README.md')
  assert 'ENTRYPOINT ["epe-jax"]\nCMD ["run", "digits"]' in text


def list_messages(path):
  """The strings of a module; of its docstrings that of a command, which is its help."""
  tree = ast.parse(path.read_text('utf-8'))
  statements = [x for x in ast.walk(tree) if isinstance(x, ast.Expr)]
  if path.parent.name == 'cli':
    statements.remove(tree.body[0])
  docstrings = {x.value for x in statements}
  for node in ast.walk(tree):
    if isinstance(node, ast.Constant) and node not in docstrings:
      yield str(node.value)


def test_no_message_names_a_file_that_only_a_checkout_has():
  # A wheel has configs within epe_jax.
  named = re.compile(
    r'(?<![\w./-])((benchmarks|colabs|configs|docs|examples|paper|scripts'
    r'|tests)/|[A-Z]+\.md|Makefile)'
  )
  for folder in ('epe_jax', 'configs'):
    for path in (ROOT / folder).rglob('*.py'):
      for text in list_messages(path):
        assert not named.search(text), f'{path}: {text}'


def read_references():
  """The fields of each entry of the bibliography, by its key."""
  found = re.findall(
    r'^@\w+{(\w+),\n(.*?)\n}$', read('paper/references.bib'), re.M | re.S
  )
  references = {
    key: dict(re.findall(r'^  (\w+) = {(.*)},$', fields, re.M))
    for key, fields in found
  }
  assert (
    len(references) == len(found) == read('paper/references.bib').count('@')
  )
  for fields in references.values():
    assert 'and others' not in fields['author']
    assert ('eprint' in fields) == (fields.get('archiveprefix') == 'arXiv')
  return references


def test_the_page_of_the_bibliography_has_the_references():
  references = read_references().values()
  page = ' '.join(read('docs/bibliography.md').split())
  assert {r['eprint'] for r in references if 'eprint' in r} == {
    *re.findall(r'\[(\d{4}\.\d{5})\]', page)
  }
  titles = [r['title'].casefold() for r in references]
  for title in re.findall('"([^"]+)"', page):
    start = title.rstrip(',').casefold()
    assert any(x.startswith(start) for x in titles), title
  for reference in references:
    first = reference['author'].partition(' and ')[0].partition(',')[0]
    name = first.strip('{}').removeprefix('The ')
    cited = re.escape(name) + rf'.{{0,250}}?\b{reference["year"]}\b'
    assert re.search(cited, page), reference['title']


def test_what_is_to_be_cited_is_in_the_bibliography():
  references = read_references()
  titles = {r['title'] for r in references.values()}
  citation = yaml.safe_load(read('CITATION.cff'))
  assert citation['version'] == epe_jax.__version__
  assert citation['abstract'] == PROJECT['description']
  for work in (citation['preferred-citation'], *citation['references']):
    assert work['title'] in titles
  _, _, paper = read('paper/paper.md').split('---\n', 2)
  keys = {*re.findall(r'@(\w+)', paper)}
  assert {'andrew2024oneshot'} <= keys <= references.keys()
  # Sections and length that JOSS demands.
  assert {
    'Summary',
    'Statement of need',
    'State of the field',
    'Software design',
    'Research impact statement',
    'AI usage disclosure',
  } < {*re.findall(r'^# (.*)$', paper, re.M)}
  assert 750 <= len(paper.split()) <= 1750


@pytest.mark.integration
def test_a_release_has_its_version_and_its_day(tmp_path):
  names = '.ci/run', 'epe_jax/_version.py', 'CHANGELOG.md', 'CITATION.cff'
  for name in names:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    shutil.copy(ROOT / name, tmp_path / name)

  def release(tag):
    done = subprocess.run(
      ['bash', '.ci/run', 'release', tag],
      capture_output=True,
      text=True,
      check=False,
      cwd=tmp_path,
    )
    return done.returncode, done.stderr

  version, day = epe_jax.__version__, '2031-02-03'
  changelog = tmp_path / 'CHANGELOG.md'
  entries = re.sub(
    rf'(?m)^## {version} \(.*\)$',
    f'## {version} (unreleased)',
    read('CHANGELOG.md'),
  )
  changelog.write_text(entries)
  code, said = release(f'v{version}')
  assert code == 1
  assert 'CHANGELOG.md has no heading' in said
  changelog.write_text(entries.replace('unreleased', day, 1))
  code, said = release(f'v{version}')
  assert code == 1
  assert f"CITATION.cff has no line 'date-released: {day}'" in said
  with (tmp_path / 'CITATION.cff').open('a') as file:
    file.write(f'date-released: {day}\n')
  assert release(f'v{version}') == (0, '')
  code, said = release(f'v{version}.1')
  assert code == 1
  assert f'The tag is v{version}.1, and the version {version}.' in said
