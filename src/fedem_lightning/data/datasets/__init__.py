"""Data modules: one file for each kind of data set."""
