"""Checks a DP aggregation under adversarial inputs, as `epe-jax check` does.

  python scripts/check.py epe_jax.conformance.example:make --clip_norm=1 \\
    --noise_multiplier=1 --num_clients=10

docs/conformance.md has the rules.
"""

from epe_jax.cli import program

if __name__ == '__main__':
  program.run_script('check')
