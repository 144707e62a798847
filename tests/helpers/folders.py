"""Folders of images by client and class, whose colours say the class."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {"cat": (220, 40, 40), "dog": (40, 200, 60), "fish": (40, 60, 220)}


def save_images(folder: Path, classes: Mapping[str, Sequence[str]], n: int = 4, pixels: int = 6) -> Path:
    """n images of each of the clients' classes in CLIENT/CLASS; returns the folder."""
    rng = np.random.default_rng(0)
    for client, names in classes.items():
        for name in names:
            (folder / client / name).mkdir(parents=True)
            for i in range(n):
                image = np.array(COLOURS[name]) + rng.integers(-30, 30, size=(pixels, pixels, 3))
                Image.fromarray(image.astype(np.uint8)).save(folder / client / name / f"{i}.png")
    return folder


def save_text(file: Path, spoken: Mapping[str, str]) -> Path:
    """An .npz of a text, by role."""
    codes = [np.frombuffer(text.encode(), dtype=np.uint8) for text in spoken.values()]
    client = np.repeat(np.arange(len(codes)), [len(code) for code in codes])
    np.savez(file, text=np.concatenate(codes), client=client, names=list(spoken))
    return file
