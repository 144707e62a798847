"""Objects as plain values: the hyper-parameters that loggers record, the recipes in checkpoints."""
