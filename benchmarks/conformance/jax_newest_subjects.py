"""jax_privacy of its repository, in the environment `jax` of install.sh."""

from benchmarks.conformance import jax_subjects

SUBJECTS = tuple(x for x in jax_subjects.SUBJECTS if x.package == 'jax-privacy')
