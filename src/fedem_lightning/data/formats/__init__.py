"""Readers of the file formats of federated data; each returns named NumPy arrays, and none executes code from a file.

Images: x uint8 [n, h, w] or [n, h, w, channels], y [n], and if known client, coarse, split [n], client_names [T].
Text: text uint8, client and piece [characters], client_names [T]; a piece is text without a gap.
"""
