from .finished_run import Run, find_runs
from .groups import Group, Setting, group_runs

__all__ = ["Group", "Run", "Setting", "find_runs", "group_runs"]
