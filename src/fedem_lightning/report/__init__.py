"""`python -m fedem_lightning.report DIR...`: tables and figures over many runs, beside the papers' numbers.

In reading order: `command` does the command's work, prints and writes, `finished_run` finds and reads runs, `groups`
groups those that differ by seed. `scores_table` makes the table of `columns`, with published numbers, and says which
row is best, `doubts` what makes that less sure; `gains_by_client` compares two rows client by client, with tests.
`figures` draws.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)  # what __init__.pyi lists
