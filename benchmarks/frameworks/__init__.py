"""Mechanisms of other frameworks as released, for `benchmarks/findings.py`.

Each module runs in the environment of its framework, which
tests/auditor/adapters/install.sh makes, and has SUBJECTS.
"""
