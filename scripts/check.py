"""Checks a DP aggregation under adversarial inputs; docs/conformance.md.

  python scripts/check.py examples/check_aggregation.py:make --clip_norm=1 \
    --noise_multiplier=1 --num_clients=10

is what `epe-jax check` does, without an installation.
"""

from collections.abc import Sequence

from absl import app, flags

from epe_jax import command

command.define_flags(flags.FLAGS)


def main(argv: Sequence[str]) -> int:
  if len(argv) != 2:
    raise app.UsageError(
      f'give one factory, such as package.module:factory, not {argv[1:]}.'
    )
  try:
    return command.run_check(argv[1], flags.FLAGS)
  except ValueError as error:
    raise app.UsageError(str(error)) from error


if __name__ == '__main__':
  app.run(main)
