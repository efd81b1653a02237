"""How estimates scatter over canaries and over runs."""
