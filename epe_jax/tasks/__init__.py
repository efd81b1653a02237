"""Models and their losses as `types.Task`: a file per task, CPU kernels in `_cpu`."""
