"""The parts of benchmarks/gpu.py, each run in a process of its own."""
