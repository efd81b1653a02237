"""Devices and processes: one mesh, a fusion barrier."""
