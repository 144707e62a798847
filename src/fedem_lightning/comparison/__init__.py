"""`compare`: whether each client should have a model of its own, and which method gives the best ones."""
