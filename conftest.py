"""Leaves out of the doctests the integrations whose frameworks are not installed."""

import importlib.util

_FRAMEWORKS = {
  'flower': 'flwr',
  'nvflare': 'nvflare',
  'opacus': 'opacus',
  'pfl': 'pfl',
}

collect_ignore = [
  f'epe_jax/auditor/adapters/{name}.py'
  for name, package in _FRAMEWORKS.items()
  if importlib.util.find_spec(package) is None
]
if importlib.util.find_spec('flwr') is None:
  collect_ignore.append('epe_jax/conformance/adapters/flower.py')
if importlib.util.find_spec('nvflare') is None:
  collect_ignore.append('tests/auditor/adapters/nvflare_job.py')
