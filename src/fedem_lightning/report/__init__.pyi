from .columns import Papers
from .finished_run import Run, find_runs
from .groups import Group, Setting, group_runs

__all__ = ["Group", "Papers", "Run", "Setting", "find_runs", "group_runs"]
