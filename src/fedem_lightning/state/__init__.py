"""What clients, rounds and processes keep."""
