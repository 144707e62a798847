"""`python -m fedem_lightning.report DIR...`: tables and figures over many runs, beside the papers' numbers.

In reading order: `comparison` does the command's work, `collect` finds the runs, `choice` adds the best of several for
each client, `groups` puts seeds together, `papers` has what was published and `minimum` what can be had at best,
`tables`, `components`, `bounds` and `equal_cost` make the tables out of `cells`, `figures` the figures, `writing` shows
and saves them.
"""

from fedem_lightning.startup.lazy import exports as _exports

__all__, __getattr__, __dir__ = _exports(__name__, __file__)  # what __init__.pyi lists
