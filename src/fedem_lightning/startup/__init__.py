"""Quick starts: imports at first use, signals while packages load, the rank of this process. Nothing here is heavy."""
