"""Readers of files, each a `sources.Source`; the contents of a file choose among them.

A reader gives the clients of a split in the order of their ids and knows nothing of
imports: `data.store` skips those that it has.
"""
