"""flwr 1.41, 1.42: the noise of LocalDpMod is not that of its ε.

Its standard deviation is sensitivity sqrt(2 ln(1.25/δ)) / ε, which is proven for ε < 1
(Dwork and Roth 2014, appendix A). `sensitivity` is an argument of its own beside
`clipping_norm`, and nothing relates them; an update clipped to norm S differs from none
by S, and from another update by 2 S. Here it is S. The table has the exact ε of both,
of the noise as it is measured.

  python examples/findings/flower_local_dp.py
"""

import logging

from epe_jax import conformance
from epe_jax.conformance.adapters import flower

logging.disable(logging.INFO)
SHAPES = ((40, 60), (60,), (25, 60))


def check(epsilon, adjacency, shapes=SHAPES):
  claim = conformance.Claim.from_epsilon(
    epsilon,
    delta=1e-5,
    clip_norm=1.0,
    num_clients=1,
    shapes=shapes,
    release='sum',
    adjacency=adjacency,
  )
  return conformance.check(flower.local_dp, claim)


def main():
  print('claimed ε  an update or none  any two updates')
  for epsilon in (1, 5, 10, 20, 50):
    reports = [check(epsilon, x) for x in ('zero_out', 'replace')]
    cells = []
    for report in reports:
      is_short = any(
        f.rule == 'noise_scale' and f.severity == 'privacy' and not f.at
        for f in report.findings
      )
      cells.append(f'{report.epsilon:.3g} {"short" if is_short else ""}')
    print(f'{epsilon:9}  {cells[0]:17}  {cells[1]}')
  print('with a parameter without an axis:')
  for finding in check(1, 'zero_out', (*SHAPES, ())).findings:
    print(f'{finding.rule}: {finding.measured}; ε = {finding.epsilon}')


if __name__ == '__main__':
  main()
