"""Lower bounds on ε, which hold at their confidence, and how many canaries they need."""
