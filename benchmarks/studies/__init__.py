"""What the library itself is checked and planned by: coverage, costs."""
