"""Mechanisms of frameworks for the conformance suite; each needs its framework alone."""
