"""Models of single examples which the papers train."""
