"""`python -m fedem_lightning.report DIR...`: tables and figures over many runs, beside the papers' numbers.

In reading order: `comparison` does the command's work, `collect` finds the runs, `choice` selects the best of several
runs for each client, `groups` groups runs that differ by seed, `papers` has the published numbers, `minimum` the least
possible loss; `tables`, `components`, `bounds` and `equal_cost` make tables of `cells`, `figures` makes figures, and
`writing` prints and saves them.
"""

from fedem_lightning.startup.lazy import exports as _exports

__all__, __getattr__, __dir__ = _exports(__name__, __file__)  # what __init__.pyi lists
