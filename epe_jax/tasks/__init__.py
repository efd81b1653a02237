"""Models and their losses as `types.Task`: a file per task, and kernels for CPUs."""
