"""The contract of an algorithm: one page, client state declared once, old names refused."""

import pytorch_lightning as pl

from fedem_lightning import FederatedAlgorithm


def test_the_base_class_has_few_members() -> None:
    ours = [name for name in vars(FederatedAlgorithm) if not name.startswith("_")]
    members = [name for name in ours if not hasattr(pl.LightningModule, name)]
    assert len(members) <= 26
