"""Fast start of the package: lazy imports, signals while modules are loaded, rank of the process. Imports are light."""
