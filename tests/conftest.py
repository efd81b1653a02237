"""Shapes and dtypes in signatures are checked while the tests run."""

import jaxtyping

from tests import typecheck

jaxtyping.install_import_hook('epe_jax', f'{typecheck.__name__}.checked')
