"""The type checker that the tests put into the package."""

import beartype

# An int is a number too, wherever a float is.
checked = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
