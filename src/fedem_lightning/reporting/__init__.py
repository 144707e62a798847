"""What a run leaves behind: results.json, clients.parquet, coefficients.npz, figures, and a table on the terminal."""

from fedem_lightning.reporting.figures import draw_figures
from fedem_lightning.reporting.results import found_coefficients, run_results, save_results
from fedem_lightning.reporting.summary import print_summary

__all__ = ["draw_figures", "found_coefficients", "print_summary", "run_results", "save_results"]
