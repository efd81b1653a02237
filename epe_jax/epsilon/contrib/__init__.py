"""Estimators and families that no command, report or page of ours uses.

They are tested like all others, and imported by the names of their modules.
"""
