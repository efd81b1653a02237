"""Federated data: from files of clients to the padded arrays of a round.

`formats` read a file as a source, `imports` writes its splits as stores, `store` opens
one as `FederatedData`, `cohort` gathers the clients of a round. A data set, such as
`emnist`, is a module with a `DATA_SET` and a line in `data_sets`.
"""
