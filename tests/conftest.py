"""Shapes and dtypes in signatures are checked while the tests run."""

import jaxtyping

jaxtyping.install_import_hook('epe_jax', 'beartype.beartype')
