"""Evaluation: scores of every client, recovery of the ground truth, generalisation bounds."""
