"""Says what an audit will tell, as `epe-jax plan` does; docs/planning.md.

  python scripts/plan.py --dim=55210 --rounds=100 --clients_per_round=40 \\
    --noise_multiplier=0.2 --delta=2.9e-3 --observed=50 --unobserved=50
"""

from epe_jax.cli import program

if __name__ == '__main__':
  program.run_script('plan')
