"""Rule `noise_between_processes`: every process draws noise of its own."""

from concurrent import futures
import math
import os
import pickle
import subprocess
import sys

from jaxtyping import Float
import numpy as np
from scipy import stats

from epe_jax import python_path
from epe_jax.conformance import samples
from epe_jax.conformance.measurements import Measurements
from epe_jax.conformance.noise import split
from epe_jax.conformance.rule import Outcome, rule
from epe_jax.conformance.session import NotChecked, Session

_PROCESSES, _FEWEST_NUMBERS = 2, 16
# Closer than this in standard deviations, noise is equal; of this share of a tensor.
_EQUAL, _SHARE = 1e-4, 0.01
_is_fresh = False


@rule('runs that differ', 'noise')
def noise_between_processes(m: Measurements) -> Outcome:
  """Processes that are started alike have different noise."""
  noise = samples.measure_noise(m)
  runs = math.ceil(_FEWEST_NUMBERS / min(m.layout.kept_sizes))
  first, second = (
    np.stack([m.layout.keep(release) for release in releases])
    for releases in _release_in_processes(m, runs)
  )
  differences = np.where((first == 0) & (second == 0), math.inf, first - second)
  differences = split(np.abs(differences), m.layout.kept_sizes)
  p_values, counts = [], []
  for std, usual, difference in zip(noise.stds, noise.tensors, differences):
    # Noise on a coarse grid is equal by chance as often as it is between runs.
    by_chance = np.abs(np.diff(usual, axis=0)) <= _EQUAL * std
    rate = (np.sum(by_chance) + 1) / (by_chance.size + 1)
    num = int(np.sum(difference <= _EQUAL * std)) if std else 0
    is_much = num > _SHARE * difference.size
    p = stats.binom.sf(num - 1, difference.size, rate) if is_much else 1.0
    p_values.append(float(p))
    counts.append(num)
  worst = int(np.argmin(p_values))
  p = min(1.0, len(p_values) * p_values[worst])
  measured = (
    f'{counts[worst]:,} of {runs * m.layout.kept_sizes[worst]:,} numbers of the noise '
    f'of {m.name_tensor(worst)} are equal in {_PROCESSES} processes'
  )
  return Outcome(measured, p, 'noise_equal_between_processes', math.inf)


def _release_in_processes(
  m: Measurements, runs: int
) -> list[Float[np.ndarray, 'R d']]:
  """First releases of runs in fresh processes that are started at once.

  Raises:
    NotChecked: the factory cannot be loaded there, fails, or takes too long.
  """
  name, limit = m.session.name, m.session.seconds
  if name is None or _is_fresh:
    raise NotChecked(
      'another process cannot load the factory; define it in a module that can be '
      'imported, or check it as file.py:factory'
    )
  session = m.session
  given = pickle.dumps(
    (name, session.full_claim, session.is_constant, m.cohort(m.zero), runs)
  )
  code = f'from {__name__} import release_afresh; release_afresh()'

  def run(_: int) -> Float[np.ndarray, 'R d']:
    try:
      ended = subprocess.run(
        python_path.make_command(code),
        env=python_path.make_environment(XLA_PYTHON_CLIENT_PREALLOCATE='false'),
        input=given,
        capture_output=True,
        timeout=limit,
        check=True,
      )
    except subprocess.TimeoutExpired as error:
      raise NotChecked(
        f'fresh processes that load {name} released nothing within {limit:g} s, the '
        'budget; raise it'
      ) from error
    except subprocess.CalledProcessError as error:
      last = error.stderr.decode(errors='replace').strip().splitlines()[-1:]
      raise NotChecked(
        f'a fresh process that loads {name} fails: {"".join(last)}'
      ) from error
    if not ended.stdout:
      raise NotChecked(f'a fresh process that loads {name} ends by itself')
    return pickle.loads(ended.stdout)

  # What importing takes is not to be missing for other rules.
  with m.session.pause(), futures.ThreadPoolExecutor(_PROCESSES) as pool:
    return [*pool.map(run, range(_PROCESSES))]


def release_afresh() -> None:
  """Runs in a fresh process: reads what to do, and writes the releases of its runs."""
  global _is_fresh
  # A module that checks its factory as it is imported starts no further processes.
  _is_fresh = True
  # What a mechanism prints is not part of the releases.
  out = os.dup(1)
  os.dup2(2, 1)
  name, claim, is_constant, cohort, runs = pickle.load(sys.stdin.buffer)
  session = Session(python_path.import_function(name), claim, seconds=math.inf)
  session.leave_out(is_constant)
  releases = [session.start(session.claim).release(cohort) for _ in range(runs)]
  with open(out, 'wb') as file:
    file.write(pickle.dumps(np.stack(releases)))
  # Threads of the mechanism may go on for ever, and what it runs at exit may fail.
  os._exit(0)
