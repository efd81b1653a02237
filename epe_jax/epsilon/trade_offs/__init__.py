"""What a mechanism allows an attacker: trade-off curves, their ε and their risks."""
