"""The files of a run: results.json, clients.parquet, coefficients.npz, figures; and the table on the terminal."""

from fedem_lightning.reporting.figures import draw_figures
from fedem_lightning.reporting.results import run_results, save_results
from fedem_lightning.reporting.summary import print_summary

__all__ = ["draw_figures", "print_summary", "run_results", "save_results"]
