"""Misuses of the package from Python, and a run of them in this process."""
