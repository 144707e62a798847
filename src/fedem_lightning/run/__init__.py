"""The command line, and a run from its configuration to its finished folder."""
