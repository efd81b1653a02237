"""Images that are shifted and mirrored."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip('jax_privacy', reason='jax-privacy is not installed')

from papers.tight_auditing import augmentation


@pytest.mark.parametrize('channels', [(), (2,)])
def test_images_are_windows_of_the_reflected_image_or_its_mirror(
  channels, monkeypatch
):
  # Of wider edges some windows would be their own mirrors.
  side, padding, num = 5, 1, 300
  monkeypatch.setattr(augmentation, '_PADDING', padding)
  image = np.random.default_rng(0).random((side, side, *channels), np.float32)
  batch = {
    'pixels': jnp.broadcast_to(image, (num, *image.shape)),
    'label': jnp.arange(num),
  }
  augment = augmentation.make_crop_and_flip('pixels')
  changed = jax.jit(augment)(jax.random.key(0), batch)
  np.testing.assert_array_equal(changed['label'], batch['label'])
  edges = [(padding, padding)] * 2 + [(0, 0)] * len(channels)
  wide = np.pad(image, edges, mode='reflect')
  windows = {}
  for i in range(2 * padding + 1):
    for j in range(2 * padding + 1):
      window = wide[i : i + side, j : j + side]
      windows[window.tobytes()] = (i, j, False)
      windows[window[:, ::-1].tobytes()] = (i, j, True)
  drawn = [windows[x.tobytes()] for x in np.asarray(changed['pixels'])]
  # 300 draws of 18: that one of them is left out has a probability below 1e-6.
  assert len(set(drawn)) == 2 * (2 * padding + 1) ** 2
  # Half of them are mirrored, within five standard deviations.
  assert abs(sum(x[2] for x in drawn) - num / 2) < 5 * np.sqrt(num) / 2
