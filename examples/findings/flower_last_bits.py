"""flwr 1.41, 1.42: last bits of a noisy sum tell that no client moved a parameter.

add_gaussian_noise_inplace (supercore/differential_privacy.py) rounds noise to float32 and
adds it to a float32 sum. The result is hardly finer than the last bit of the larger of
the two, so that in a parameter that was zero a finer number rules out an update of C/n.
That is an event of probability 0 with the client, and of 0.16 without: no ε holds at a
smaller δ. Of noise that is added in float64, and rounded with the sum, it is 0.10 with.

  python examples/findings/flower_last_bits.py
"""

from flwr.supercore.differential_privacy import add_gaussian_noise_inplace
import numpy as np

CLIENTS, NUM = 20, 1_000_000

for name, sent in (('nobody', 0.0), ('one client, C/n', 1 / CLIENTS)):
  rounded = [np.full(NUM, sent, np.float32)]
  add_gaussian_noise_inplace(rounded, 1 / CLIENTS)
  exact = [np.full(NUM, sent, np.float32).astype(np.float64)]
  add_gaussian_noise_inplace(exact, 1 / CLIENTS)
  for added, (noisy,) in (('float32', rounded), ('float64', exact)):
    fine = np.mean(noisy.astype(np.float32) * np.float64(2**29) % 1 != 0)
    print(
      f'noise added in {added}, moved by {name}: {fine:.3f} of all numbers are no '
      'multiple of 2^-29'
    )
