"""Our methods under Flower (extra `flower`): a ServerApp that runs an ordinary run, and a ClientApp that answers it.

`messages.py` says what the server sends and which replies count, `clients.py` is its source of updates and scores.
Flower brings transport, authentication and the simulation engine; docs/flower.md says what is trusted.
"""
