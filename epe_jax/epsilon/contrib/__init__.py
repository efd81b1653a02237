"""Estimators that no command and no report of this project uses.

They are tested like the others and imported from their modules, but their names
may change without notice.
"""
