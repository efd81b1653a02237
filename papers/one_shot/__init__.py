"""The tables and figures of One-shot Empirical Privacy Estimation, by name."""
