"""Figures of audits and comparisons, drawn without pyplot."""
