"""Local training of a block of clients, and the server's optimiser."""
