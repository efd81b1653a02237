"""The setup of a run: a config, read and checked, and what is built of it."""
