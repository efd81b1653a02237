"""Experiments of papers; nothing in the library imports them."""
