"""What Flower's messages need outside of its processes."""

import pytest


@pytest.fixture(autouse=True)
def in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's messages ask which task makes them."""
    identity = pytest.importorskip("flwr.supercore.task_identity").TaskIdentity
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(identity, f"_{name}", 1, raising=False)
