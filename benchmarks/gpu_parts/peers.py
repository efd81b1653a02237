"""Rounds of other libraries on a GPU: what measuring them would take."""

from gpu_parts.results import Context, Results


def describe(context: Context, results: Results) -> None:
  """Says that they are not measured, why, and by which command they would be."""
  del context
  command = 'PEERS="{peer}" bash benchmarks/peers/install.sh && python '
  command += 'benchmarks/rounds.py --works=A,B --systems=epe_jax,{peer}'
  results.add(
    pfl_research={
      'measured': False,
      'why': 'its environment needs a network, and PyTorch for CUDA in place of '
      'that for a processor',
      'command': command.format(peer='pfl'),
    },
    fedjax={
      'measured': False,
      'why': 'its environment needs a network, and jaxlib 0.4.30 for CUDA in '
      'place of that for a processor',
      'command': command.format(peer='fedjax'),
    },
  )
