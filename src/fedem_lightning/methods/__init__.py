"""Federated algorithms; `backbone`, `n_clients` and `options` of all are those of `FederatedAlgorithm`."""
