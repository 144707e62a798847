"""`python -m fedem_lightning.report DIR...`: tables and figures over many runs, beside the papers' numbers.

In reading order: `command` does the command's work, `collect` finds the runs, each a `finished_run`, `groups` groups
those that differ by seed, `papers` has the published numbers. `scores_table`, `equal_cost` and `diagnostic_tables` make
tables of `cells`; `gains_by_client` compares two rows client by client, with the tests of `significance`.
`choices` are by validation samples, for options of the command. `terminal` prints (also for `--watch`),
`report_files` writes, `figures` draws, with the looks of `drawing`, and `page` makes the HTML page.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)  # what __init__.pyi lists
