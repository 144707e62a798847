"""Our methods under Flower (extra `flower`): a ServerApp that runs an ordinary run, and a ClientApp that answers it.

`requests.py` says what the server sends, `replies.py` which replies count, `clients.py` is the server's source of
updates and scores. Flower brings transport, authentication and the simulation engine; docs/flower.md says what is
trusted.
"""
