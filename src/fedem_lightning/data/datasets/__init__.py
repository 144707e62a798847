"""Data modules; each kind of data set has a file of its own."""
