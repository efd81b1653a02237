"""Puts the figures of finished runs into docs/runs and the README.

  make docs

makes the runs and calls this. Without flags the README is written anew from
what docs/runs holds; a test checks that it is up to date.
"""

import pathlib
import shutil

from absl import app, flags

from epe_jax import gaussian_report, report, results

_ROOT = pathlib.Path(__file__).parents[1]
_RUNS = _ROOT / 'docs' / 'runs'
_KEPT = ('result.json', 'densities.png', 'trace.png', 'accuracy.png')

_DIGITS = flags.DEFINE_string('digits', None, 'Workdir of a digits run.')
_EMNIST = flags.DEFINE_string('emnist', None, 'Workdir of an EMNIST run.')
_GAUSSIAN = flags.DEFINE_string('gaussian', None, 'Rows of Algorithm 1, .json.')


def blocks() -> dict[str, str]:
  """What stands between the README's markers, by their name."""
  rows = results.read_json(_RUNS / 'gaussian.json')
  tables = {
    'gaussian': gaussian_report.text(gaussian_report.from_records(rows))
  }
  for name in ('digits', 'emnist'):
    tables[name] = report.table(report.read_result(_RUNS / name))
  return {name: f'```text\n{text}\n```' for name, text in tables.items()}


def spliced(text: str) -> str:
  """The README with each block as the files in docs/runs have it.

  Raises:
    ValueError: a marker is missing.
  """
  for name, block in blocks().items():
    begin, end = f'<!-- begin {name} -->', f'<!-- end {name} -->'
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
      raise ValueError(f'README.md lacks {begin} or {end}; put them back.')
    text = f'{before}{begin}\n{block}\n{end}{after}'
  return text


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'{argv[1]!r} is no flag; see --help.')
  for name, workdir in (('digits', _DIGITS.value), ('emnist', _EMNIST.value)):
    if workdir:
      report.write(workdir)
      (_RUNS / name).mkdir(parents=True, exist_ok=True)
      for kept in _KEPT:
        shutil.copyfile(pathlib.Path(workdir) / kept, _RUNS / name / kept)
  if _GAUSSIAN.value:
    source = pathlib.Path(_GAUSSIAN.value)
    shutil.copyfile(source, _RUNS / 'gaussian.json')
    shutil.copyfile(source.with_suffix('.png'), _RUNS / 'gaussian.png')
  readme = _ROOT / 'README.md'
  text = spliced(readme.read_text()).encode()
  results.write_atomically(readme, lambda f: f.write(text))


if __name__ == '__main__':
  app.run(main)
