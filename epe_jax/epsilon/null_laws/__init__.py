"""How unobserved canaries score, and what estimators then report."""
