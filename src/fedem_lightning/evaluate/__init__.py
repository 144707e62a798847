"""Evaluation: scores of all clients, recovery of the ground truth, generalisation bounds."""
