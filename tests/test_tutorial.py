"""docs/tutorial.md is followed from top to bottom, in one folder."""

import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helpers.commands import call
from helpers.paths import ROOT

PAGE = ROOT / "docs" / "tutorial.md"
pytestmark = [
    pytest.mark.skipif(not PAGE.is_file(), reason="docs/ is only in a checkout"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # a Trainer's own loggers
]


def test_the_tutorial_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for language, text in re.findall(r"^```(python|bash)\n(.*?)^```", PAGE.read_text(), re.S | re.M):
        if language == "python":
            names = {"__name__": "__main__"}
            exec(compile(text, str(PAGE), "exec"), names)
            continue
        for command in re.sub(r"\\\n\s*", "", text).splitlines():
            python, flag, module, *arguments = shlex.split(command)
            assert (python, flag) == ("python", "-m")
            if module == "fedem_lightning":
                assert call(tmp_path, monkeypatch, *arguments) == 0
            else:
                room = import_module(module)
                (room if hasattr(room, "main") else import_module(f"{module}.__main__")).main(arguments)
    out = capsys.readouterr().out
    assert "4 features: 2 numbers standardised, 1 columns one-hot" in out
    found = pd.read_csv("predictions.csv")
    assert len(found) == 10
    assert set(found.client) == {"hospital_12"}
    assert np.allclose(names["probabilities"].sum(), 1)
    weights = [float(w) for w in re.findall(r"tensor\(\[([\d.]+), ([\d.]+)\]\)", out)[-1]]
    assert max(weights) > 0.6, "the new hospital is of one group"
