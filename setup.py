"""Lets `pip install .` work; what it installs is declared in pyproject.toml.

All but two things. The folder configs/ of a checkout is the package epe_jax.configs of
an installation, where `epe-jax run NAME` finds its files. And the README of a wheel has
no relative links, which lead nowhere outside the repository.
"""

import pathlib
import re

import setuptools

_PICTURE = re.compile(r'^!\[[^\]]*\]\((?!\w+://)[^)]*\)\n\n?', re.MULTILINE)
_LINK = re.compile(r'\[([^\]]*)\]\((?!\w+://)([^)#]*)[^)]*\)')


def read_description() -> str:
  """The README, with the names of files in place of links to them."""
  text = pathlib.Path(__file__).with_name('README.md').read_text('utf-8')

  def name_file(match: re.Match) -> str:
    words, path = match.groups()
    return words if words == path else f'{words} (`{path}`)'

  return _LINK.sub(name_file, _PICTURE.sub('', text))


setuptools.setup(
  long_description=read_description(),
  long_description_content_type='text/markdown',
  packages=[
    *setuptools.find_packages(include=['epe_jax', 'epe_jax.*']),
    'epe_jax.configs',
  ],
  package_dir={'epe_jax.configs': 'configs'},
)
