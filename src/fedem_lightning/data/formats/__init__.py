"""Readers of the forms that federated data comes in; each gives named NumPy arrays, and none executes what it reads.

Images: x uint8 [n, h, w] or [n, h, w, channels], y [n], and where known client, coarse, split [n], client_names [T].
Text: text uint8, client and piece [characters], client_names [T]; the text runs on without a break within a piece.
"""
