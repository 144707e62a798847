from .collect import Skipped, find_runs
from .finished_run import Run
from .groups import Group, Setting, group_runs
from .papers import Papers

__all__ = ["Group", "Papers", "Run", "Setting", "Skipped", "find_runs", "group_runs"]
