"""The command line, and one run from a configuration to a finished folder."""
