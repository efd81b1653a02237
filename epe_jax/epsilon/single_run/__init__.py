"""Lower bounds on ε from one run whose canaries independent coins included."""
