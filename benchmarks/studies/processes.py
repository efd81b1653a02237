"""A study's simulations, in processes."""

from collections.abc import Callable, Iterable, Sequence
import concurrent.futures
import multiprocessing
from typing import Any, TypeVar

Item = TypeVar('Item')
Result = TypeVar('Result')


def map_in_processes(
  function: Callable[[Item], Result],
  items: Sequence[Item],
  *,
  workers: int,
  progress: Callable[[Iterable[Any]], Iterable[Any]],
) -> list[Result]:
  """What a function makes of each item, in their order.

  Args:
    function: can be pickled, unless workers is 1.
    items: what it is called with.
    workers: processes, >= 1; 1 for this one.
    progress: wraps the list of items, as `tqdm.tqdm` does.
  """
  if workers == 1:
    return [function(item) for item in progress(items)]
  with concurrent.futures.ProcessPoolExecutor(
    workers, multiprocessing.get_context('spawn')
  ) as pool:
    futures = [pool.submit(function, item) for item in items]
    return [future.result() for future in progress(futures)]
