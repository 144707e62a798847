"""docs/serving.md is followed from top to bottom, in one folder."""

import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fedem_lightning.serving.commands import main_of
from helpers import serving
from helpers.paths import ROOT

PAGE = ROOT / "docs" / "serving.md"
COMMANDS = ("personalize", "predict", "evaluate")


@pytest.mark.skipif(not PAGE.is_file(), reason="docs/ is only in a checkout")
def test_the_page_works(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    full = serving.arrays()
    serving.finished_run(tmp_path / "runs" / "a", place / "all.npz", "fedem")
    schema = import_module("fedem_lightning").load("runs/a").schema
    names = [schema.name(t) for t in range(schema.n_clients)]
    new = [name for name, seen in zip(names, schema.seen.tolist(), strict=True) if not seen]
    for file, chosen in (("new", new), ("rows", [name for name in names if name not in new])):
        serving.as_table(serving.of_clients(full, chosen)).to_csv(f"{file}.csv", index=False)
    own = {"clinic 0": new[0], "clinic 1": next(name for name in names if name not in new)}
    text = re.sub("clinic [01]", lambda found: own[found[0]], PAGE.read_text())
    ran: list[str] = []
    for language, block in re.findall(r"^```(python|bash)\n(.*?)^```", text, re.S | re.M):
        if language == "python":
            found: dict[str, Any] = {"__name__": "__main__"}
            exec(compile(block, str(PAGE), "exec"), found)
            continue
        for command in re.sub(r"\\\n\s*", "", block).splitlines():
            _, _, module, *arguments = shlex.split(command)
            ran.append(module.rpartition(".")[2])
            main_of(ran[-1])(arguments)
    assert set(ran) == {*COMMANDS, "export"}
    assert len(pd.read_parquet("predictions.parquet")) == 3 * 24
