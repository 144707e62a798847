from fedem_lightning.report.collect import Skipped, find_runs
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import Group, Setting, group_runs
from fedem_lightning.report.loaded import LoadedRuns, load
from fedem_lightning.report.papers import Papers

__all__ = ["Group", "LoadedRuns", "Papers", "Run", "Setting", "Skipped", "find_runs", "group_runs", "load"]
