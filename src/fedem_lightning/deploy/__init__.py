"""Federated runs whose clients are processes of their own, on this machine or elsewhere.

The server runs an ordinary run, whose client updates come from a link to the clients. A client runs the same
algorithm file on a federation of its own data only. `wire.py` has what they send, `node.py` a client, `remote.py` the
server's side; they know nothing of the transport, which is Flower (`flower_*.py`, extra `flower`).
"""
