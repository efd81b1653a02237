"""The figures of a part, written to disk as soon as they are measured."""

from collections.abc import Callable
import os
import pathlib
import time
import traceback
from typing import Any, NamedTuple, TypeVar

import harness
import jax

from epe_jax import io

T = TypeVar('T')


class Context(NamedTuple):
  """The arguments of a part.

  Attributes:
    folder: for files of its own, such as the workdir of a run.
    quick: toy sizes, to see that everything runs.
    deadline: by `time.monotonic`; the part is stopped a little later.
    files: 'emnist', 'stackoverflow' or 'word_count' -> path of real data, if given.
  """

  folder: pathlib.Path
  quick: bool
  deadline: float
  files: dict[str, str]

  @property
  def seconds_left(self) -> float:
    return self.deadline - time.monotonic()


class Results:
  """Figures by name, in a file that is rewritten with each of them."""

  def __init__(self, path: str | os.PathLike, *, quick: bool):
    """Writes a file without figures.

    Args:
      path: of the JSON file.
      quick: whether sizes are small.
    """
    self.path = pathlib.Path(path)
    self.figures: dict[str, Any] = {}
    self._about = {
      'quick': quick,
      'load_before': os.getloadavg()[0],
      'machine': harness.describe_machine(
        'jax', 'jaxlib', 'flax', 'optax', 'numpy'
      ),
    }
    self._write(finished=False)

  def add(self, **figures: Any) -> None:
    """Adds figures, or replaces those of the same names."""
    self.figures |= figures
    self._write(finished=False)

  def attempt(self, name: str, measure: Callable[[], Any]) -> Any:
    """Adds what is measured; if that fails, adds the reason and continues.

    Args:
      name: of the figures.
      measure: () -> what JSON can hold.

    Returns:
      What was measured, or None.
    """
    begun = time.monotonic()
    try:
      value = measure()
    except Exception as error:
      traceback.print_exc()
      self.add(**{name: {'not_measured': summarize_error(error)}})
      return None
    self.add(**{name: value})
    print(f'{name}: {time.monotonic() - begun:.1f} s', flush=True)
    return value

  def build(self, name: str, make: Callable[[], T]) -> T:
    """Makes what is to be measured; if that fails, adds the reason and raises."""
    begun = time.monotonic()
    try:
      made = make()
    except Exception as error:
      self.add(**{name: {'not_measured': summarize_error(error)}})
      raise
    print(f'{name} was built: {time.monotonic() - begun:.1f} s', flush=True)
    return made

  def finish(self) -> None:
    """Marks the part as one that need not be run again."""
    self._write(finished=True)

  def _write(self, *, finished: bool) -> None:
    io.write_json(
      self.path,
      {
        **self.figures,
        'finished': finished,
        **self._about,
        'date': harness.format_now(),
      },
    )


def check_accelerator(*, quick: bool) -> None:
  """Refuses to run real sizes on a CPU, which would take hours.

  Raises:
    RuntimeError: JAX has found no accelerator.
  """
  backend = jax.default_backend()
  if backend == 'cpu' and not quick:
    raise RuntimeError(
      'JAX found no accelerator. Install jax[cuda13], look at nvidia-smi and '
      'JAX_PLATFORMS, or give --quick.'
    )


def summarize_error(error: BaseException) -> str:
  """The kind of an error and its first line, without paths of the machine."""
  text = (str(error).splitlines() or [''])[0][:300]
  return io.hide_paths(f'{type(error).__name__}: {text}')
