"""Sweeps: points of a grid, and seeds of a point, by local processes, Slurm or Ray."""
