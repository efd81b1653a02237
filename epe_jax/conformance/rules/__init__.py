"""The rules, each a function of measurements that returns an `Outcome`.

A rule is such a function and its row in `suite.RULES`; what it needs are keys in
`rule.NEEDS`. Its causes are rows in `causes.CAUSES`. Probes of clipping are rows in
`clipping._list_probes`.
"""
