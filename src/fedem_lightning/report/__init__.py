"""`python -m fedem_lightning.report DIR...`: tables and figures over many runs, beside the papers' numbers.

In reading order: `command` does the command's work, `collect` finds the runs, each a `finished_run`, `groups` groups
those that differ by seed, `papers` has the published numbers. `scores_table` with `more_columns`, `equal_cost` and
`diagnostic_tables` make tables of `cells`; `gains_by_client` compares two rows client by client, with the tests of
`significance`. `choose_by_client`, `compare_rows` and `recommend_method` are options of the command. `looks` says how
rows look, `terminal` prints (also for `--watch`), `report_files` writes with the words of `markup`, `figures` draws,
and `page` makes the HTML page.
"""

from fedem_lightning.startup import exports as _exports

__all__, __getattr__, __dir__ = _exports(__name__, __file__)  # what __init__.pyi lists
