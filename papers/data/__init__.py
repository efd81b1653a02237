"""Data of single examples on which the papers train."""
