"""Readers of the forms that federated data comes in; each gives named NumPy arrays, and none executes what it reads.

Images: x uint8 [n, h, w] or [n, h, w, channels], y [n], and where known client [n], client_names [T], coarse [n], split.
Text: text uint8 [characters], client [characters], client_names [T], and piece [characters], equal where the text runs
on without a break.
"""
