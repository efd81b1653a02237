"""Audits of training loops that are not ours, one module for each framework.

Each is a thin use of `epe_jax.Auditor` and needs its framework alone. What is wrapped
has the `auditor` of the audit. The arguments of every `audit` are

- settings: of `AuditConfig`, those that the framework does not say: delta, and others.
  One that it does say may be given only if it is the same, but for
  noise_multiplier=None, which claims nothing;
- auditor: to continue with, in place of settings, such as one that was loaded;
- seed: of the canaries, for simulations; None for secret ones.

A setting that is missing, unknown or another than the framework's is a ValueError or
a TypeError, before training where it can be.
"""
